//! Folders with every kind of entry, and images of them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use esker_squashfs::{FileImage, ImageTree, OpenError, Options};
use esker_testkit::skip_part;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};

/// Returns bytes that compress a little.
pub(crate) fn bytes(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        if state & 3 == 0 { (state >> 8) as u8 } else { b'a' + (state >> 28) as u8 }
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Returns a folder with every kind of entry.
pub(crate) fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (name, len) in [("empty", 0), ("tiny", 1), ("small", 3000), ("block", 4096), ("over", 4097)] {
        fs::write(at(name), bytes(len, len as u32 + 1)).unwrap();
    }
    fs::write(at("large"), bytes(3_333_333, 7)).unwrap();
    fs::write(
        at("noise"),
        (0..300_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect::<Vec<_>>(),
    )
    .unwrap();
    let mut sparse = vec![0; 2_500_000];
    sparse[1_200_000..1_200_010].copy_from_slice(b"not a hole");
    fs::write(at("sparse"), sparse).unwrap();
    fs::write(at("zeros"), vec![0; 1_048_576]).unwrap();
    fs::create_dir_all(at("a/b/c/d")).unwrap();
    fs::create_dir(at("none")).unwrap();
    fs::write(at("a/b/c/d/deep"), "deep\n").unwrap();
    fs::hard_link(at("small"), at("a/also small")).unwrap();
    fs::hard_link(at("large"), at("a/b/also large")).unwrap();
    symlink("../over", at("a/link")).unwrap();
    symlink("x".repeat(2000), at("a/long link")).unwrap();
    fs::create_dir(at("many")).unwrap();
    for number in 0..2000 {
        fs::write(
            at(&format!("many/name {number:05} of a directory that has an index")),
            format!("{number}\n"),
        )
        .unwrap();
    }
    mknodat(CWD, at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    let xattr = |name: &str, key: &str, value: &[u8]| {
        setxattr(at(name), key, value, XattrFlags::empty()).unwrap();
    };
    xattr("tiny", "user.one", b"1");
    xattr("small", "user.two", b"");
    xattr("small", "user.long", &bytes(2000, 3));
    xattr("large", "user.long", &bytes(2000, 3));
    xattr("a", "user.of a directory", b"value");
    if rustix::process::geteuid().is_root() {
        xattr("tiny", "trusted.only root sees it", b"yes");
        xattr("tiny", "security.esker", b"label");
        let device = rustix::fs::makedev(259, 70_000);
        mknodat(CWD, at("block device"), FileType::BlockDevice, Mode::from_raw_mode(0o600), device).unwrap();
        let null = rustix::fs::makedev(1, 3);
        mknodat(CWD, at("null"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), null).unwrap();
        rustix::fs::chown(
            at("over"),
            Some(rustix::fs::Uid::from_raw(4711)),
            Some(rustix::fs::Gid::from_raw(99)),
        )
        .unwrap();
    } else {
        skip_part!("only root makes devices and other owners");
    }
    folder
}

/// Runs a program of the system and panics if it fails.
#[track_caller]
pub(crate) fn run(program: &str, arguments: &[&str], input: Option<&Path>) {
    let stdin = input.map_or_else(Stdio::null, |input| fs::File::open(input).unwrap().into());
    let output = Command::new(program).args(arguments).stdin(stdin).output();
    let output = output.unwrap_or_else(|error| panic!("{program} (scripts/needs.sh installs it): {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Creates an image of a folder with mksquashfs.
pub(crate) fn mksquashfs(folder: &Path, image: &Path, options: &[&str]) {
    let fixed = [folder.to_str().unwrap(), image.to_str().unwrap(), "-noappend", "-no-progress", "-quiet"];
    run("mksquashfs", &[&fixed[..], options].concat(), None);
}

/// An image in a temporary folder.
pub(crate) struct SampleImage {
    pub(crate) image: PathBuf,
    _folder: tempfile::TempDir,
}

impl SampleImage {
    pub(crate) fn new(make: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image.sqfs");
        make(&image);
        Self { image, _folder: folder }
    }

    pub(crate) fn open(&self) -> Result<ImageTree, OpenError> {
        let image = FileImage::open(&self.image, 0).unwrap();
        ImageTree::open(Arc::new(image), &Options::default())
    }
}
