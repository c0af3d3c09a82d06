//! Images in the formats of common programs, read back.

mod samples;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;

use esker_oci::{FileContent, Image, Kind, Limits, Merged};
use esker_testkit::container::Packing;
use samples::SampleImages;

/// Returns the paths of a tree, with contents of files and targets of links.
fn shown(merged: &Merged) -> BTreeMap<String, String> {
    let text = |kind: &Kind| match kind {
        Kind::File { layer, data } => {
            let mut content = Vec::new();
            FileContent::new(layer.clone(), data.clone()).read_to_end(&mut content).expect("the content");
            String::from_utf8(content).expect("text")
        }
        Kind::Symlink(target) => format!("-> {}", String::from_utf8_lossy(target)),
        Kind::Directory => "/".to_owned(),
        other => format!("{other:?}"),
    };
    merged
        .iter()
        .map(|(path, entry)| (String::from_utf8_lossy(path).into_owned(), text(&entry.kind)))
        .collect()
}

fn merged(image: &Image, folder: &Path) -> Result<Merged, esker_oci::OciError> {
    image.merge(folder, &Limits::default(), &mut |_| ControlFlow::Continue(()))
}

#[test]
fn layouts_and_archives_yield_the_same_tree() {
    let layers: &[&[(&str, &str)]] = &[
        &[("etc/a", "lower"), ("etc/b", "lower"), ("old/x", "lower"), ("bin", "-> usr/bin")],
        &[
            ("etc/a", "upper"),
            ("etc/.wh.b", ""),
            ("old/.wh..wh..opq", ""),
            ("old/y", "upper"),
            ("bin/sh", "upper"),
        ],
    ];
    let expected: BTreeMap<String, String> = [
        ("bin", "-> usr/bin"),
        ("etc", "/"),
        ("etc/a", "upper"),
        ("old", "/"),
        ("old/y", "upper"),
        ("usr", "/"),
        ("usr/bin", "/"),
        ("usr/bin/sh", "upper"),
    ]
    .map(|(path, what)| (path.to_owned(), what.to_owned()))
    .into();
    for packing in [Packing::Plain, Packing::Gzip, Packing::Zstd] {
        let samples = SampleImages::new(layers, packing);
        let folder = samples.path();
        let layout = Image::in_layout(&folder.join("layout"), None).expect("a layout");
        assert_eq!(shown(&merged(&layout, folder).expect("a tree")), expected, "{packing:?}");
        let archive = Image::in_docker_archive(&samples.docker_archive(), Some("it:1")).expect("an archive");
        assert_eq!(shown(&merged(&archive, folder).expect("a tree")), expected, "{packing:?}");
        let tarred =
            Image::in_docker_archive(&samples.layout_archive(), None).expect("an archive of a layout");
        assert_eq!(shown(&merged(&tarred, folder).expect("a tree")), expected, "{packing:?}");
        assert_eq!(layout.config, archive.config);
        let left: Vec<_> = fs::read_dir(folder)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(".esker")), "{left:?}");
    }
}

#[test]
fn every_changed_byte_of_a_layout_is_detected() {
    let samples = SampleImages::new(&[&[("a", "one")], &[("b", "two")]], Packing::Gzip);
    let folder = samples.path();
    let mut damaged = 0;
    for blob in fs::read_dir(folder.join("layout/blobs/sha256")).expect("blobs") {
        let path = blob.expect("a blob").path();
        let mut good = Vec::new();
        File::open(&path).and_then(|mut file| file.read_to_end(&mut good)).expect("a blob");
        for at in (0..good.len()).step_by(7) {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).expect("samples");
            let opened = Image::in_layout(&folder.join("layout"), None);
            let outcome = opened.and_then(|image| merged(&image, folder));
            assert!(outcome.is_err(), "{} with another byte {at}", path.display());
            damaged += 1;
        }
        fs::write(&path, &good).expect("samples");
    }
    assert!(damaged > 40, "only {damaged}");
    let image = Image::in_layout(&folder.join("layout"), None).expect("whole again");
    merged(&image, folder).expect("whole again");
}

#[test]
fn an_image_beyond_the_limits_is_rejected() {
    let zeros = "0".repeat(1 << 20);
    let samples = SampleImages::new(&[&[("a", &zeros)], &[("b", &zeros)]], Packing::Zstd);
    let image = Image::in_layout(&samples.path().join("layout"), None).expect("a layout");
    let with = |bytes, entries| {
        image.merge(samples.path(), &Limits { bytes, entries, ..Limits::default() }, &mut |_| {
            ControlFlow::Continue(())
        })
    };
    with(3 << 20, 2).expect("within bounds");
    let error = with((1 << 20) + 4096, 2).expect_err("too many bytes").to_string();
    assert!(error.contains("more than is allowed"), "{error}");
    let error = with(3 << 20, 1).expect_err("too many entries").to_string();
    assert!(error.contains("too many entries"), "{error}");
}

#[test]
fn an_image_for_another_machine_or_name_is_rejected() {
    let samples = SampleImages::new(&[&[("a", "one")]], Packing::Plain);
    let error =
        Image::in_layout(&samples.path().join("layout"), Some("none")).expect_err("no such tag").to_string();
    assert!(error.contains("none") && error.contains("latest"), "{error}");
    let error = Image::in_docker_archive(&samples.docker_archive(), Some("other:1"))
        .expect_err("no such name")
        .to_string();
    assert!(error.contains("no image of that name"), "{error}");
    let with_escaping_names = samples.with_escaping_names();
    let error = Image::in_docker_archive(&with_escaping_names.docker_archive(), None)
        .expect_err("outside")
        .to_string();
    assert!(error.contains("outside of itself"), "{error}");
}
