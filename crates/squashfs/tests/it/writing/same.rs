//! The same input makes the same image.

use esker_squashfs::writer::Options;

use super::scene::{Scene, noise};
use super::{CODECS, options, quick};

#[test]
fn the_number_of_threads_changes_nothing() {
    let scene = Scene::new();
    for codec in CODECS {
        let images = [1, 8, 3].map(|threads| {
            let level = (codec.name() == "zstd").then_some(3);
            scene.build(&Options { threads, ..options(codec, level) }).expect("an image");
            scene.image()
        });
        assert!(images.iter().all(|image| *image == images[0]), "{codec:?}");
    }
}

#[test]
fn the_order_in_which_files_were_made_changes_nothing() {
    let images = [["a", "b", "c"], ["c", "a", "b"]].map(|names| {
        let scene = Scene::empty();
        for name in names {
            scene.write(&format!("{name}/{name}"), name.as_bytes());
        }
        scene.build(&Options { entry_time: Some(5), ..quick() }).expect("an image");
        scene.image()
    });
    assert!(images[0] == images[1]);
}

#[test]
fn nothing_is_left_of_what_was_taken_back() {
    let scene = Scene::empty();
    let content = noise(1, 6 << 20);
    // The second one is written before it shows that it is the first one.
    for name in ["a", "z"] {
        scene.write(name, &content);
    }
    let report = scene.build(&quick()).expect("an image");
    assert_eq!(report.duplicates, 1);
    let image = scene.image();
    let used = u64::from_le_bytes(*image[40..].first_chunk().expect("a superblock")) as usize;
    assert!(image.len() > used && image[used..].iter().all(|byte| *byte == 0), "{used} of {}", image.len());
}
