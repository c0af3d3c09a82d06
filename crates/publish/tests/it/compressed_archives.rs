//! Compressed archives, and ends of archives.

use esker_publish::PublishError;
use std::io::Write as _;

use tar::Builder;

use crate::ingest::{file, ingest, paths, write};
use crate::workshop::Workshop;

/// An archive of one file that no compression makes smaller, so that a wrong byte of it is found by a checksum only.
fn incompressible() -> Vec<u8> {
    let mut state = 1u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let bytes: Vec<u8> = (0..400_000).map(|_| random()).collect();
    let mut archive = Builder::new(Vec::new());
    file(&mut archive, "random", &bytes);
    archive.into_inner().unwrap()
}

fn gzipped(plain: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(plain).unwrap();
    gzip.finish().unwrap()
}

#[test]
fn checksums_of_compressed_archives_are_checked() {
    let plain = incompressible();
    let mut zstd = zstd::Encoder::new(Vec::new(), 1).unwrap();
    zstd.include_checksum(true).unwrap();
    zstd.write_all(&plain).unwrap();
    let mut xz = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).unwrap();
    xz.write_all(&plain).unwrap();
    let compressed = [("gz", gzipped(&plain)), ("zst", zstd.finish().unwrap()), ("xz", xz.finish().unwrap())];
    for (name, mut bytes) in compressed {
        let workshop = Workshop::new();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        let outcome = ingest(&workshop, &write(&workshop, name, &bytes), |_| ());
        assert!(matches!(outcome, Err(PublishError::Source { .. })), "{name}: {outcome:?}");
        assert_eq!(workshop.check().assert_clean().revision, 0);
        bytes[middle] ^= 1;
        assert!(ingest(&workshop, &write(&workshop, name, &bytes), |_| ()).unwrap().published);
    }
}

#[test]
fn archives_end_where_other_programs_end_them() {
    let mut archive = Builder::new(Vec::new());
    file(&mut archive, "a", b"1");
    file(&mut archive, "b", b"2");
    let whole = archive.into_inner().unwrap();
    let members = &whole[..4 * 512];
    let halves = [gzipped(&whole[..700]), gzipped(&whole[700..])].concat();
    let good = [
        // What some writers leave out, and libarchive doesn't miss.
        members.to_vec(),
        [&whole, &b"something else"[..]].concat(),
        halves.clone(),
        // Tapes are padded.
        [&halves, &[0; 1000][..]].concat(),
        [&halves, &b"something else"[..]].concat(),
    ];
    for bytes in good {
        let workshop = Workshop::new();
        ingest(&workshop, &write(&workshop, "good", &bytes), |_| ()).unwrap();
        assert_eq!(paths(&workshop.check()), ["/", "/in", "/in/here", "/in/here/a", "/in/here/b"]);
    }
    let cut =
        [members[..1536 + 1].to_vec(), members[..1024 + 9].to_vec(), halves[..halves.len() - 4].to_vec()];
    for bytes in cut {
        let workshop = Workshop::new();
        let outcome = ingest(&workshop, &write(&workshop, "cut", &bytes), |_| ());
        assert!(matches!(outcome, Err(PublishError::Source { .. })), "{outcome:?}");
    }
}
