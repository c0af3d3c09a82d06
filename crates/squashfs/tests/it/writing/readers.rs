//! Other programs that read images, for comparison.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use esker_squashfs::{Extract, ExtractError, FileImage, ImageTree, Options, extract};
use esker_testkit::skip_part;
use esker_vfs::Tree as _;

/// A program that reads images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImageReader {
    Unsquashfs,
    Squashfuse,
    /// Our own reader and extractor.
    Esker,
    /// A kernel mount, which requires root.
    Kernel,
}

/// Returns all readers that this user can run; only root can mount with the kernel.
pub(super) fn readers() -> Vec<ImageReader> {
    let mut readers = vec![ImageReader::Unsquashfs, ImageReader::Squashfuse, ImageReader::Esker];
    if rustix::process::geteuid().is_root() {
        readers.push(ImageReader::Kernel);
    } else {
        skip_part!("only root mounts images with the kernel");
    }
    readers
}

#[track_caller]
fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// A mount that is unmounted when dropped, also after a panic.
struct Mounted<'p>(&'p Path, &'static str);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let mut words = self.1.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        let output = command.args(words).arg(self.0).output();
        assert!(output.is_ok_and(|output| output.status.success()), "{} can be unmounted", self.0.display());
    }
}

impl ImageReader {
    /// Makes the image readable at a path while `look` runs.
    #[track_caller]
    pub(super) fn show(self, image: &Path, at: &Path, look: impl FnOnce(&Path)) {
        match self {
            ImageReader::Unsquashfs => {
                let output = run(Command::new("unsquashfs").args(["-q", "-n", "-d"]).arg(at).arg(image));
                assert!(output.stderr.is_empty(), "{output:?}");
                look(at);
                self.remove(at);
            }
            ImageReader::Esker => {
                let file = FileImage::open(image, 0).expect("the image");
                let tree = ImageTree::open(Arc::new(file), &Options::default()).expect("an image");
                let as_root = rustix::process::geteuid().is_root();
                let how = Extract { as_root, threads: 3, stop: &AtomicBool::new(false) };
                let stopped = Extract { stop: &AtomicBool::new(true), ..how };
                let outcome = extract(&tree, &tree.root(), at, stopped);
                assert!(matches!(outcome, Err(ExtractError::Interrupted)) && !at.exists(), "{outcome:?}");
                fs::create_dir(at).expect("a folder");
                let outcome = extract(&tree, &tree.root(), at, stopped);
                assert!(matches!(outcome, Err(ExtractError::Interrupted)), "{outcome:?}");
                // Fails unless the folder exists and is empty.
                fs::remove_dir(at).expect("the folder as it was");
                extract(&tree, &tree.root(), at, how).expect("a folder");
                look(at);
                self.remove(at);
            }
            ImageReader::Squashfuse => {
                // This reader doesn't list `.` and `..`, so the test reads a copy.
                let mountpoint = at.with_extension("mounted");
                fs::create_dir(&mountpoint).expect("a mount point");
                run(Command::new("squashfuse_ll").arg(image).arg(&mountpoint));
                let mounted = Mounted(&mountpoint, "fusermount3 -u");
                run(Command::new("cp").arg("-a").arg(&mountpoint).arg(at));
                drop(mounted);
                look(at);
                self.remove(at);
                fs::remove_dir(&mountpoint).expect("removing the mount point");
            }
            ImageReader::Kernel => {
                fs::create_dir(at).expect("a mount point");
                run(Command::new("mount").args(["-t", "squashfs", "-o", "loop,ro"]).arg(image).arg(at));
                let mounted = Mounted(at, "umount");
                look(at);
                drop(mounted);
                fs::remove_dir(at).expect("removing the mount point");
            }
        }
    }

    /// Removes the extracted files.
    fn remove(self, at: &Path) {
        let writable = Command::new("chmod").args(["-R", "u+rwx"]).arg(at).status();
        assert!(writable.is_ok_and(|status| status.success()));
        fs::remove_dir_all(at).expect("removing extracted files");
    }
}
