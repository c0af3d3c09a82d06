use std::io::{BufReader, Write as _};

use super::*;

fn read(stored: &[u8]) -> io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    // A buffer of three bytes, so that no magic is available at once.
    let input = BufReader::with_capacity(3, stored);
    decompressed(input)?.read_to_end(&mut plain)?;
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
fn every_compression_is_detected_and_removed_in_all_members() {
    let kinds =
        [(Compression::Gzip, gzip as fn(&[u8]) -> Vec<u8>), (Compression::Zstd, zstd), (Compression::Xz, xz)];
    for (kind, pack) in kinds {
        let stored = [pack(b"one, "), pack(b"two")].concat();
        assert_eq!(Compression::of(&stored), Some(kind));
        assert_eq!(read(&stored).unwrap(), b"one, two", "{kind:?}");
        assert!(read(&stored[..stored.len() - 1]).is_err(), "{kind:?}: one that was cut");
    }
}

#[test]
fn an_uncompressed_stream_is_unchanged() {
    for plain in [&b"a"[..], b"\x1f", b"\x28\xb5\x2f", b"\xfd7zXZ", b"something longer"] {
        assert_eq!((Compression::of(plain), read(plain).unwrap().as_slice()), (None, plain));
    }
    assert!(decompressed(&b""[..]).unwrap().is_empty() && read(b"").unwrap().is_empty());
    assert!(!decompressed(&gzip(b"")[..]).unwrap().is_empty() && read(&gzip(b"")).unwrap().is_empty());
}

#[test]
fn bytes_after_the_last_gzip_member_are_ignored() {
    let padded = [gzip(b"one, "), gzip(b"two"), vec![0; 700]].concat();
    assert_eq!(read(&padded).unwrap(), b"one, two");
}

#[test]
fn an_xz_archive_can_not_exhaust_memory() {
    let mut stored = xz(b"small");
    // Dictionary size (4 GiB less one byte), after the headers of the stream and of its filter.
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
