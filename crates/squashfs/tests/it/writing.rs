//! Images of our writer, checked by the kernel, unsquashfs and squashfuse.

mod archives;
mod faults;
mod fixture;
mod random;
mod readers;
mod reproducible;

use esker_squashfs::layout::CodecId;
use esker_squashfs::writer::{Compression, IdRange, Options, Owners};

use fixture::Fixture;
use readers::{ImageReader, readers};

const CODECS: [CodecId; 4] = [CodecId::Gzip, CodecId::Xz, CodecId::Lz4, CodecId::Zstd];

fn options(codec: CodecId, level: Option<u32>) -> Options {
    Options::new(Compression::new(codec, level).expect("a level"), 3)
}

/// Returns options that compress quickly.
fn quick() -> Options {
    options(CodecId::Zstd, Some(1))
}

#[test]
fn every_reader_accepts_images_of_every_codec() {
    let fixture = Fixture::new();
    for codec in CODECS {
        fixture.build(&options(codec, None)).expect("an image");
        for reader in readers() {
            fixture.check_with(reader, &format!("{codec:?}"));
        }
    }
    for (codec, level) in [(CodecId::Lz4, 12), (CodecId::Gzip, 1), (CodecId::Zstd, 3), (CodecId::Xz, 1)] {
        fixture.build(&options(codec, Some(level))).expect("an image");
        fixture.check_with(ImageReader::Unsquashfs, &format!("{codec:?} {level}"));
    }
}

#[test]
fn every_block_size_and_tail_option_reads_back() {
    let fixture = Fixture::new();
    for log in 12..=20 {
        for (fragments, tail_ends) in [(false, false), (true, false), (true, true)] {
            fixture
                .build(&Options { block_size: 1 << log, fragments, tail_ends, ..quick() })
                .expect("an image");
            fixture.check_with(ImageReader::Unsquashfs, &format!("{log} {fragments} {tail_ends}"));
        }
    }
    fixture.build(&Options { block_size: 4096, tail_ends: true, ..quick() }).expect("an image");
    for reader in readers() {
        fixture.check_with(reader, "small blocks");
    }
}

#[test]
fn duplicate_files_and_holes_take_no_space() {
    let fixture = Fixture::empty();
    let noise = fixture::noise(1, 5_000_000);
    for name in ["a", "b/c", "d"] {
        fixture.write(name, &noise);
        fixture.write(&format!("{name}-small"), &noise[..1000]);
        fixture.write(&format!("{name}-middle"), &noise[1..600_001]);
    }
    fixture.sparse("hole", 1 << 33, &[(5 << 30, b"in the middle")]);
    let report = fixture.build(&quick()).expect("an image");
    assert_eq!(report.duplicates, 6);
    assert_eq!(report.duplicate_bytes, 2 * (5_000_000 + 1000 + 600_000));
    assert!(report.image_bytes < 5_800_000, "{report:?}");
    assert_eq!(report.blocks_hole, (1 << 33) / (128 << 10) - 1, "the holes were not even read");
    assert!(report.bytes < 20_000_000, "{report:?}");
    let twice = fixture.build(&Options { duplicates: false, ..quick() }).expect("an image");
    assert_eq!(twice.duplicates, 0);
    assert!(twice.image_bytes > 3 * 5_600_000, "{twice:?}");
}

#[test]
fn owners_times_and_exclusions_follow_the_options() {
    let fixture = Fixture::new().without_odd_names();
    let all = Owners { uid: Some(0), gid: Some(70_000), ..Owners::default() };
    fixture
        .build(&Options { owners: all, entry_time: Some(86_400), image_time: Some(1), ..quick() })
        .expect("an image");
    let listed = fixture.listed();
    assert!(listed.lines().all(|line| line.contains("0/70000")), "{listed}");
    assert!(listed.lines().all(|line| line.contains("1970-01-02 00:00")), "{listed}");
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let range = |from, to| vec![IdRange { from, to, count: 1 }];
    let mapped = Owners { uids: range(uid, 4711), gids: range(gid, 4712), ..Owners::default() };
    fixture
        .build_without(&Options { owners: mapped, ..quick() }, &|path| {
            path.starts_with(b"many") || path == b"deep/er"
        })
        .expect("an image");
    let listed = fixture.listed();
    assert!(listed.lines().all(|line| line.contains("4711/4712")), "{listed}");
    assert!(!listed.contains("/many") && !listed.contains("/deep/er"), "{listed}");
    assert!(listed.contains("/deep"), "{listed}");
}

#[test]
fn ordered_files_are_stored_first() {
    let fixture = Fixture::empty();
    for name in ["a", "b", "c", "d"] {
        fixture.write(name, &fixture::noise(u64::from(name.as_bytes()[0]), 200_000));
    }
    let order = ["/c", "no/such", "a"].map(|path| path.as_bytes().to_vec()).to_vec();
    fixture.build(&Options { order, ..quick() }).expect("an image");
    let image = fixture.image();
    let place = |name: &str| {
        let start = &fixture::noise(u64::from(name.as_bytes()[0]), 200_000)[..64];
        image.windows(64).position(|window| window == start).expect("noise is stored as it is")
    };
    let places = ["c", "a", "b", "d"].map(place);
    assert!(places.is_sorted(), "{places:?}");
}
