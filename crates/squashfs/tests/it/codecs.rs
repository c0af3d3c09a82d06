//! Reads images of every codec and block size, and compares them with the source folder and with a kernel
//! mount.

use std::path::Path;

use esker_testkit::skip_part;

use crate::samples::{self, SampleImage};
use crate::walk;

/// A kernel mount, unmounted when dropped.
struct KernelMount(tempfile::TempDir);

impl KernelMount {
    fn of(image: &Path) -> Self {
        let at = tempfile::tempdir().unwrap();
        let (image, dir) = (image.to_str().unwrap(), at.path().to_str().unwrap());
        samples::run("mount", &["-t", "squashfs", "-o", "loop,ro", image, dir], None);
        Self(at)
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        samples::run("umount", &[self.0.path().to_str().unwrap()], None);
    }
}

#[track_caller]
fn reads_back(folder: &Path, options: &[&str]) {
    let sample = SampleImage::new(|image| samples::mksquashfs(folder, image, options));
    let ours = walk::image(&sample.open().unwrap()).unwrap();
    walk::assert_same(&ours, &walk::folder(folder), false);
    if rustix::process::geteuid().is_root() {
        let mount = KernelMount::of(&sample.image);
        walk::assert_same(&ours, &walk::folder(mount.0.path()), true);
    } else {
        skip_part!("only root mounts images with the kernel");
    }
}

#[test]
fn every_codec_reads_back() {
    let folder = samples::folder();
    for codec in ["gzip", "lzo", "xz", "lz4", "zstd"] {
        reads_back(folder.path(), &["-comp", codec]);
    }
    reads_back(folder.path(), &["-comp", "lz4", "-Xhc"]);
    reads_back(folder.path(), &["-comp", "xz", "-Xbcj", "x86,arm"]);
    reads_back(folder.path(), &["-comp", "gzip", "-Xstrategy", "fixed", "-Xwindow-size", "10"]);
}

#[test]
fn every_block_size_and_storage_option_reads_back() {
    let folder = samples::folder();
    for size in ["4K", "16K", "64K", "256K", "1M"] {
        reads_back(folder.path(), &["-comp", "zstd", "-Xcompression-level", "1", "-b", size]);
    }
    reads_back(folder.path(), &["-comp", "lz4", "-no-fragments"]);
    reads_back(folder.path(), &["-comp", "lz4", "-always-use-fragments", "-b", "1M"]);
    reads_back(folder.path(), &["-comp", "lz4", "-noI", "-noD", "-noF", "-noX"]);
    reads_back(folder.path(), &["-comp", "lz4", "-no-sparse", "-no-exports", "-no-duplicates"]);
}
