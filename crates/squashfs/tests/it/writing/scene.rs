//! A folder with everything that an image can hold, and the image of it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use esker_squashfs::writer::{Folder, ImageFile, Input, Options, Report, Watch, WriteError, build};
use esker_testkit::listing::Entry;
use esker_testkit::survey::survey;
use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, mknodat, setxattr, utimensat,
};

use super::judges::Judge;

pub(super) struct Scene {
    folder: tempfile::TempDir,
}

/// Neither text nor one line.
const ODD_NAME: &[u8] = b"odd \xff\n name";

/// Bytes that can't be compressed.
pub(super) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

fn text(seed: u64, len: usize) -> Vec<u8> {
    noise(seed, len).into_iter().map(|byte| b"the quick brown fox "[usize::from(byte % 20)]).collect()
}

impl Scene {
    /// An empty folder.
    pub(super) fn empty() -> Self {
        let scene = Self { folder: tempfile::tempdir().expect("a folder") };
        fs::create_dir(scene.tree()).expect("a folder");
        scene
    }

    /// A folder with everything.
    pub(super) fn new() -> Self {
        let scene = Self::empty();
        for len in [0, 1, 4095, 4096, 4097, 131_071, 131_072, 131_073, 3 * 131_072 + 17, 5_000_001] {
            scene.write(&format!("sizes/text-{len}"), &text(len as u64, len));
            scene.write(&format!("sizes/noise-{len}"), &noise(len as u64, len));
        }
        scene.write("copies/one", &text(4097, 4097));
        scene.write("copies/large", &noise(5_000_001, 5_000_001));
        scene.write("zeros/short", &[0; 1000]);
        scene.write("zeros/blocks", &[0; 300_000]);
        scene.sparse("zeros/holes", 9_000_000, &[(0, b"x"), (5_500_000, b"y")]);
        scene.sparse("zeros/nothing", 9_000_000, &[]);
        scene.write("deep/er/and/deeper/file", b"deep");
        for number in 0..800 {
            scene.write(&format!("many/{}-{number}", "a-name-that-is-not-short".repeat(number % 4)), b"");
        }
        let tree = scene.tree();
        fs::create_dir(tree.join("empty")).expect("a folder");
        fs::write(tree.join(OsStr::from_bytes(ODD_NAME)), "odd").expect("writing");
        fs::write(tree.join("n".repeat(255)), "long").expect("writing");
        symlink("deep/er", tree.join("link")).expect("a link");
        symlink("x".repeat(4000), tree.join("long-link")).expect("a link");
        fs::hard_link(tree.join("copies/one"), tree.join("deep/one")).expect("a link");
        fs::hard_link(tree.join("copies/one"), tree.join("zz")).expect("a link");
        fs::hard_link(tree.join("link"), tree.join("same-link")).expect("a link");
        let kinds: &[(&str, FileType, u64)] = match rustix::process::geteuid().is_root() {
            // Device numbers with all their bits.
            true => &[
                ("pipe", FileType::Fifo, 0),
                ("socket", FileType::Socket, 0),
                ("char", FileType::CharacterDevice, rustix::fs::makedev(0xabc, 0xfedcb)),
                ("block", FileType::BlockDevice, rustix::fs::makedev(8, 1)),
            ],
            // Only root makes devices.
            false => &[("pipe", FileType::Fifo, 0), ("socket", FileType::Socket, 0)],
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
            // tar says names and values line by line, so those with an end of a line don't get through.
            ("deep/er", "user.long", &text(1, 3000)),
        ] {
            setxattr(tree.join(name), attribute, value, XattrFlags::empty()).expect("an attribute");
        }
        scene.age();
        scene
    }

    /// Removes what not every program can say.
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

    /// Gives everything a time of its own, in whole seconds.
    fn age(&self) {
        for (second, found) in (1_000_000_000..).zip(survey(&self.tree())) {
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
        let mut watch = Watch { excludes, stop: &stop, progress: &mut |_| {} };
        let mut image = ImageFile::create(&self.path("image")).expect("a file");
        build(&mut folder, options, &mut watch, &mut image)
    }

    /// Builds an image of something else.
    pub(super) fn build_of(&self, input: &mut dyn Input, options: &Options) -> Result<Report, WriteError> {
        let stop = AtomicBool::new(false);
        let mut watch = Watch { excludes: &|_| false, stop: &stop, progress: &mut |_| {} };
        let mut image = ImageFile::create(&self.path("image")).expect("a file");
        build(input, options, &mut watch, &mut image)
    }

    /// What unsquashfs lists, without the line for each mount of it.
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

    /// Lets a judge show the image, and compares that with the folder.
    pub(super) fn judged_by(&self, judge: Judge, what: &str) {
        let mut expected = entries(&self.tree());
        if matches!(judge, Judge::Squashfuse) {
            // It doesn't show attributes without a value.
            expected.iter_mut().for_each(|entry| entry.xattrs.retain(|_, value| !value.is_empty()));
        }
        if matches!(judge, Judge::Unsquashfs) && !rustix::process::geteuid().is_root() {
            // For an ordinary user it sets no bit that lends rights.
            expected.iter_mut().for_each(|entry| entry.mode &= !0o6000);
        }
        judge.show(&self.path("image"), &self.path("shown"), |shown| {
            let found = entries(shown);
            assert_eq!(found.len(), expected.len(), "{what}: {judge:?} shows as many entries");
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found, expected, "{what}: {judge:?}");
            }
        });
    }
}

/// Everything that an image holds of a folder; directories have no size of their own there.
fn entries(folder: &Path) -> Vec<Entry> {
    survey(folder).into_iter().map(|found| found.entry).collect()
}
