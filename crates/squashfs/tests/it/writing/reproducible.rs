//! The same input produces the same image.

use esker_squashfs::writer::Options;

use super::fixture::{Fixture, noise};
use super::{CODECS, options, quick};

#[test]
fn the_number_of_threads_does_not_change_the_image() {
    let fixture = Fixture::new();
    for codec in CODECS {
        let images = [1, 8, 3].map(|threads| {
            let level = (codec.name() == "zstd").then_some(3);
            fixture.build(&Options { threads, ..options(codec, level) }).expect("an image");
            fixture.image()
        });
        assert!(images.iter().all(|image| *image == images[0]), "{codec:?}");
    }
}

#[test]
fn the_creation_order_of_files_does_not_change_the_image() {
    let images = [["a", "b", "c"], ["c", "a", "b"]].map(|names| {
        let fixture = Fixture::empty();
        for name in names {
            fixture.write(&format!("{name}/{name}"), name.as_bytes());
        }
        fixture.build(&Options { entry_time: Some(5), ..quick() }).expect("an image");
        fixture.image()
    });
    assert!(images[0] == images[1]);
}

#[test]
fn blocks_of_discarded_duplicates_leave_no_trace() {
    let fixture = Fixture::empty();
    let content = noise(1, 6 << 20);
    // The second file is written before its digest shows that it equals the first.
    for name in ["a", "z"] {
        fixture.write(name, &content);
    }
    let report = fixture.build(&quick()).expect("an image");
    assert_eq!(report.duplicates, 1);
    let image = fixture.image();
    let used = u64::from_le_bytes(*image[40..].first_chunk().expect("a superblock")) as usize;
    assert!(image.len() > used && image[used..].iter().all(|byte| *byte == 0), "{used} of {}", image.len());
}
