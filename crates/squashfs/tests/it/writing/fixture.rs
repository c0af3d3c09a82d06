//! A folder with everything that an image can hold, and its image.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use esker_squashfs::writer::{BuildControl, Folder, ImageFile, Input, Options, Report, WriteError, build};
use esker_testkit::listing::Entry;
use esker_testkit::skip_part;
use esker_testkit::tree_scan::scan_tree;
use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, mknodat, setxattr, utimensat,
};

use super::readers::ImageReader;

pub(super) struct Fixture {
    folder: tempfile::TempDir,
}

/// A name that is neither UTF-8 nor a single line.
const ODD_NAME: &[u8] = b"odd \xff\n name";

/// Returns incompressible bytes.
pub(super) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

fn text(seed: u64, len: usize) -> Vec<u8> {
    noise(seed, len).into_iter().map(|byte| b"the quick brown fox "[usize::from(byte % 20)]).collect()
}

impl Fixture {
    /// Creates an empty folder.
    pub(super) fn empty() -> Self {
        let fixture = Self { folder: tempfile::tempdir().expect("a folder") };
        fs::create_dir(fixture.tree()).expect("a folder");
        fixture
    }

    /// Creates a folder with every kind of entry.
    pub(super) fn new() -> Self {
        let fixture = Self::empty();
        for len in [0, 1, 4095, 4096, 4097, 131_071, 131_072, 131_073, 3 * 131_072 + 17, 5_000_001] {
            fixture.write(&format!("sizes/text-{len}"), &text(len as u64, len));
            fixture.write(&format!("sizes/noise-{len}"), &noise(len as u64, len));
        }
        fixture.write("copies/one", &text(4097, 4097));
        fixture.write("copies/large", &noise(5_000_001, 5_000_001));
        fixture.write("zeros/short", &[0; 1000]);
        fixture.write("zeros/blocks", &[0; 300_000]);
        fixture.sparse("zeros/holes", 9_000_000, &[(0, b"x"), (5_500_000, b"y")]);
        fixture.sparse("zeros/nothing", 9_000_000, &[]);
        fixture.write("deep/er/and/deeper/file", b"deep");
        for number in 0..800 {
            fixture.write(&format!("many/{}-{number}", "a-name-that-is-not-short".repeat(number % 4)), b"");
        }
        let tree = fixture.tree();
        fs::create_dir(tree.join("empty")).expect("a folder");
        fs::write(tree.join(OsStr::from_bytes(ODD_NAME)), "odd").expect("writing");
        fs::write(tree.join("n".repeat(255)), "long").expect("writing");
        symlink("deep/er", tree.join("link")).expect("a link");
        symlink("x".repeat(4000), tree.join("long-link")).expect("a link");
        fs::hard_link(tree.join("copies/one"), tree.join("deep/one")).expect("a link");
        fs::hard_link(tree.join("copies/one"), tree.join("zz")).expect("a link");
        fs::hard_link(tree.join("link"), tree.join("same-link")).expect("a link");
        let kinds: &[(&str, FileType, u64)] = match rustix::process::geteuid().is_root() {
            // Device numbers that use all bits.
            true => &[
                ("pipe", FileType::Fifo, 0),
                ("socket", FileType::Socket, 0),
                ("char", FileType::CharacterDevice, rustix::fs::makedev(0xabc, 0xfedcb)),
                ("block", FileType::BlockDevice, rustix::fs::makedev(8, 1)),
            ],
            false => {
                skip_part!("only root creates devices");
                &[("pipe", FileType::Fifo, 0), ("socket", FileType::Socket, 0)]
            }
        };
        for (name, kind, device) in kinds {
            mknodat(CWD, tree.join(name), *kind, Mode::from(0o640), *device).expect("a node");
        }
        for (name, mode) in [("sizes/text-1", 0o4755), ("deep", 0o3770), ("zz", 0o400)] {
            fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).expect("a mode");
        }
        for (name, attribute, value) in [
            ("sizes/text-1", "user.empty", &b""[..]),
            ("sizes/text-1", "user.name", b"value"),
            ("sizes/text-4096", "user.name", b"value"),
            // tar stores names and values line by line, so values with newlines don't survive.
            ("deep/er", "user.long", &text(1, 3000)),
        ] {
            setxattr(tree.join(name), attribute, value, XattrFlags::empty()).expect("an attribute");
        }
        fixture.age();
        fixture
    }

    /// Removes the name that not every program can print.
    pub(super) fn without_odd_names(self) -> Self {
        fs::remove_file(self.tree().join(OsStr::from_bytes(ODD_NAME))).expect("the odd name");
        self.age();
        self
    }

    pub(super) fn tree(&self) -> PathBuf {
        self.folder.path().join("tree")
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn image(&self) -> Vec<u8> {
        fs::read(self.path("image")).expect("the image")
    }

    pub(super) fn write(&self, name: &str, content: &[u8]) {
        let path = self.tree().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, content).expect("writing");
    }

    pub(super) fn sparse(&self, name: &str, len: u64, pieces: &[(u64, &[u8])]) {
        self.write(name, b"");
        let file = File::options().write(true).open(self.tree().join(name)).expect("the file");
        file.set_len(len).expect("a length");
        for (offset, piece) in pieces {
            file.write_all_at(piece, *offset).expect("writing");
        }
    }

    /// Gives every entry its own modification time in whole seconds.
    fn age(&self) {
        for (second, found) in (1_000_000_000..).zip(scan_tree(&self.tree())) {
            let path = self.tree().join(OsStr::from_bytes(&found.entry.path[1..]));
            let time = Timespec { tv_sec: second, tv_nsec: 0 };
            let times = Timestamps { last_access: time, last_modification: time };
            utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("a time");
        }
    }

    pub(super) fn build(&self, options: &Options) -> Result<Report, WriteError> {
        self.build_without(options, &|_| false)
    }

    pub(super) fn build_without(
        &self,
        options: &Options,
        excludes: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Report, WriteError> {
        let mut folder = Folder::open(&self.tree(), true).expect("the folder");
        let stop = AtomicBool::new(false);
        let mut watch = BuildControl { excludes, stop: &stop, progress: &mut |_| {} };
        let mut image = ImageFile::create(&self.path("image")).expect("a file");
        build(&mut folder, options, &mut watch, &mut image)
    }

    /// Builds an image of another input.
    pub(super) fn build_of(&self, input: &mut dyn Input, options: &Options) -> Result<Report, WriteError> {
        let stop = AtomicBool::new(false);
        let mut watch = BuildControl { excludes: &|_| false, stop: &stop, progress: &mut |_| {} };
        let mut image = ImageFile::create(&self.path("image")).expect("a file");
        build(input, options, &mut watch, &mut image)
    }

    /// Returns the listing of unsquashfs, without its header.
    pub(super) fn listed(&self) -> String {
        let output = Command::new("unsquashfs")
            .env("TZ", "UTC")
            .args(["-lln", "-d", ""])
            .arg(self.path("image"))
            .output()
            .expect("unsquashfs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Reads the image with `reader` and compares it with the folder.
    pub(super) fn check_with(&self, reader: ImageReader, what: &str) {
        let mut expected = entries(&self.tree());
        if matches!(reader, ImageReader::Squashfuse) {
            // This reader doesn't show attributes with an empty value.
            expected.iter_mut().for_each(|entry| entry.xattrs.retain(|_, value| !value.is_empty()));
        }
        if matches!(reader, ImageReader::Unsquashfs) && !rustix::process::geteuid().is_root() {
            // For an ordinary user this reader clears setuid and setgid.
            expected.iter_mut().for_each(|entry| entry.mode &= !0o6000);
        }
        reader.show(&self.path("image"), &self.path("shown"), |shown| {
            let found = entries(shown);
            assert_eq!(found.len(), expected.len(), "{what}: {reader:?} shows as many entries");
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found, expected, "{what}: {reader:?}");
            }
        });
    }
}

/// Returns all entries of a folder as an image stores them; sizes of directories are left out.
fn entries(folder: &Path) -> Vec<Entry> {
    scan_tree(folder).into_iter().map(|found| found.entry).collect()
}
