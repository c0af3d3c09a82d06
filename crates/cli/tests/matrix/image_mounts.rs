//! Images in files, mounted.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use esker_testkit::fixture;
use esker_testkit::skip;

use crate::hot::requests;
use crate::test_env::{TestEnv, words};
use crate::test_user::TestUser;

/// Builds an image of a small folder, behind `before` other bytes.
fn image(world: &TestEnv, before: usize) -> String {
    image_with(world, before, |_| ())
}

/// Builds an image after a change to the folder.
pub(crate) fn image_with(world: &TestEnv, before: usize, and: impl FnOnce(&Path)) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("sub")).expect("a folder");
    fs::write(folder.path().join("sub/file"), "content\n".repeat(50_000)).expect("a file");
    fs::hard_link(folder.path().join("sub/file"), folder.path().join("linked")).expect("a link");
    and(folder.path());
    let made = tempfile::NamedTempFile::new().expect("a file");
    let mut command = Command::new("mksquashfs");
    command.arg(folder.path()).arg(made.path()).args([
        "-noappend",
        "-quiet",
        "-no-progress",
        "-comp",
        "zstd",
    ]);
    let output = command.output().expect("mksquashfs, which scripts/needs.sh installs");
    assert!(output.status.success(), "{}", words(&output));
    let path = world.path(&format!("image-{before}"));
    let bytes = [vec![b'#'; before], fs::read(made.path()).expect("the image")].concat();
    fs::write(&path, bytes).expect("an image");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("a mode");
    path.to_str().expect("a path that is text").to_owned()
}

#[test]
fn an_image_is_mounted_read_shown_and_unmounted() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        let ways = [
            &[][..],
            &["--offset", "777"][..],
            &["--stripe", "1M"][..],
            &["--show-with", "overlay"][..],
            &["--show-with", "fuse"][..],
            &["--noexec"][..],
        ];
        for options in ways {
            let before = if options.contains(&"777") { 777 } else { 0 };
            let image = image(&world, before);
            let mounted = world.mount_of(&image, options);
            mounted.does(|| {
                let read = fs::read_to_string(mounted.path("sub/file")).expect("reading");
                assert_eq!(read, "content\n".repeat(50_000));
                let of = |name: &str| fs::metadata(mounted.path(name)).expect("looking");
                let (file, linked) = (of("sub/file"), of("linked"));
                assert_eq!((file.ino(), file.nlink()), (linked.ino(), 2));
                assert_eq!(of("").uid(), person.uid, "made by root, claimed by an ordinary user");
                let error = fs::write(mounted.path("sub/new"), "").expect_err("it is read-only");
                assert_eq!(error.raw_os_error(), Some(libc::EROFS));
            });
            let status = mounted.status();
            assert_eq!(status["image"]["codec"], "zstd", "{status:#}");
            assert_eq!(status["url"], image.as_str(), "{status:#}");
            assert_eq!(status["fixed"], true, "{status:#}");
            let shown_with = match options {
                _ if !person.is_root() => "fuse",
                ["--show-with", wanted] => wanted,
                _ => "erofs",
            };
            assert_eq!(status["shown_with"], shown_with, "{status:#}");
            let update = world.esker(&["revision", "--update"]).arg(world.mountpoint()).output();
            let update = update.expect("running esker");
            assert!(!update.status.success() && words(&update).contains("image"), "{}", words(&update));
        }
        assert!(!world.is_mounted());
    }
}

#[test]
fn a_cached_image_causes_no_requests() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        let mounted = world.mount_of(&image(&world, 0), &[]);
        let look = || {
            mounted.does(|| {
                let names = fs::read_dir(mounted.path("sub")).expect("listing").count();
                let bytes = fs::read(mounted.path("sub/file")).expect("reading").len();
                (names, bytes)
            })
        };
        let asked = || {
            let mut asked = requests(&mounted.status());
            asked.retain(|name, _| {
                ["LOOKUP", "GETATTR", "OPENDIR", "READDIR", "READDIRPLUS", "OPEN", "READ"]
                    .contains(&name.as_str())
            });
            asked
        };
        // The kernel keeps a listing when it is read for the second time. It may take back any page at any time, but not
        // each time.
        look();
        look();
        let asks = || {
            let before = asked();
            assert_eq!(look(), (1, 400_000));
            asked() != before
        };
        assert!((0..20).any(|_| !asks()), "each look asks: {:?}", asked());
    }
}

/// The packed folder may have been the layer of another overlay. Its marks are for that one.
#[test]
fn overlay_marks_in_an_image_have_no_effect() {
    let Some(root) = TestUser::root() else { skip!("only root sets marks of overlays") };
    let world = TestEnv::new(root, fixture::RMD);
    let image = image_with(&world, 0, |folder| {
        let (dir, none) = (folder.join("sub"), rustix::fs::XattrFlags::empty());
        rustix::fs::setxattr(&dir, "trusted.overlay.redirect", b"/elsewhere", none).expect("an attribute");
    });
    let mark = |mounted: &Path| {
        let mut value = [0; 64];
        rustix::fs::getxattr(mounted.join("sub"), "trusted.overlay.redirect", &mut value)
    };
    let ways = [
        (&["--show-with", "fuse"][..], Ok(10)),
        (&["--show-with", "overlay"], Err(rustix::io::Errno::NODATA)),
        (&[], Ok(10)),
    ];
    for (options, expected) in ways {
        let mounted = world.mount_of(&image, options);
        let read = fs::read_to_string(mounted.path("sub/file")).expect("reading");
        assert_eq!(read, "content\n".repeat(50_000));
        assert_eq!(mark(&mounted.path("")), expected);
    }
}

#[test]
fn damaged_images_and_other_files_are_refused_with_the_reason() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let refused = |place: &str, options: &[&str], reason: &str| {
        let mut command = world.esker(&["mount", place]);
        let output = command.arg(world.mountpoint()).args(options).output().expect("running esker");
        assert!(!output.status.success() && words(&output).contains(reason), "{}", words(&output));
        assert!(!world.is_mounted());
    };
    let whole = image(&world, 0);
    let other = image(&world, 100);
    refused(&other, &[], "there is no squashfs image in it");
    refused(&whole, &["--offset", "100"], "is no squashfs image");
    refused("http://host/cvmfs/sw.example.org", &["--offset", "1"], "is not an image");
    let bytes = fs::read(&whole).expect("the image");
    // Its file is padded; the superblock says how long the image is.
    let used = u64::from_le_bytes(bytes[40..48].try_into().expect("eight bytes"));
    fs::write(Path::new(&whole), &bytes[..usize::try_from(used).expect("small") - 1]).expect("cutting it");
    refused(&whole, &[], "length of the truncated image");
}
