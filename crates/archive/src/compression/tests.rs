use std::io::{BufReader, Write as _};

use super::*;

fn read(stored: &[u8]) -> io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    // Pieces of three bytes, so that no start comes at once.
    let input = BufReader::with_capacity(3, stored);
    unpacked(input)?.read_to_end(&mut plain)?;
    Ok(plain)
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut stored = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    stored.write_all(plain).unwrap();
    stored.finish().unwrap()
}

fn xz(plain: &[u8]) -> Vec<u8> {
    let mut stored = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).unwrap();
    stored.write_all(plain).unwrap();
    stored.finish().unwrap()
}

fn zstd(plain: &[u8]) -> Vec<u8> {
    zstd::encode_all(plain, 1).unwrap()
}

#[test]
fn every_kind_is_found_out_and_undone_part_after_part() {
    let kinds = [(Packed::Gzip, gzip as fn(&[u8]) -> Vec<u8>), (Packed::Zstd, zstd), (Packed::Xz, xz)];
    for (kind, pack) in kinds {
        let stored = [pack(b"one, "), pack(b"two")].concat();
        assert_eq!(Packed::of(&stored), Some(kind));
        assert_eq!(read(&stored).unwrap(), b"one, two", "{kind:?}");
        assert!(read(&stored[..stored.len() - 1]).is_err(), "{kind:?}: one that was cut");
    }
}

#[test]
fn what_is_not_compressed_is_as_it_is() {
    for plain in [&b"a"[..], b"\x1f", b"\x28\xb5\x2f", b"\xfd7zXZ", b"something longer"] {
        assert_eq!((Packed::of(plain), read(plain).unwrap().as_slice()), (None, plain));
    }
    assert!(unpacked(&b""[..]).unwrap().is_empty() && read(b"").unwrap().is_empty());
    assert!(!unpacked(&gzip(b"")[..]).unwrap().is_empty() && read(&gzip(b"")).unwrap().is_empty());
}

#[test]
fn what_follows_the_last_part_of_gzip_is_ignored() {
    let padded = [gzip(b"one, "), gzip(b"two"), vec![0; 700]].concat();
    assert_eq!(read(&padded).unwrap(), b"one, two");
}

#[test]
fn an_archive_of_xz_may_not_have_all_memory() {
    let mut stored = xz(b"small");
    // The size of the dictionary, 4 GiB less one byte, behind the header of the stream and that of its filter.
    assert_eq!(stored[14..16], [0x21, 1]);
    stored[16] = 40;
    let sum = crc(&stored[12..20]);
    stored[20..24].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(read(&stored).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
}

fn crc(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}
