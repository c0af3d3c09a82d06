//! Who reads images, besides us.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use esker_squashfs::{Extract, ExtractError, FileImage, ImageTree, Options, extract};
use esker_vfs::Tree as _;

/// Somebody who reads images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judge {
    Unsquashfs,
    Squashfuse,
    /// Our own reader, and what makes a folder of any tree.
    Esker,
    /// Only root may have it mount an image.
    Kernel,
}

/// All judges that this user can call. Continuous integration is root, and nobody else can mount by the kernel.
pub(super) fn judges() -> Vec<Judge> {
    let mut judges = vec![Judge::Unsquashfs, Judge::Squashfuse, Judge::Esker];
    if rustix::process::geteuid().is_root() {
        judges.push(Judge::Kernel);
    }
    judges
}

#[track_caller]
fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// A mount that ends with the test, however that ends.
struct Mounted<'p>(&'p Path, &'static str);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let mut words = self.1.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        let output = command.args(words).arg(self.0).output();
        assert!(output.is_ok_and(|output| output.status.success()), "{} can be unmounted", self.0.display());
    }
}

impl Judge {
    /// Shows the image at a place while `look` looks.
    #[track_caller]
    pub(super) fn show(self, image: &Path, at: &Path, look: impl FnOnce(&Path)) {
        match self {
            Judge::Unsquashfs => {
                let output = run(Command::new("unsquashfs").args(["-q", "-n", "-d"]).arg(at).arg(image));
                assert!(output.stderr.is_empty(), "{output:?}");
                look(at);
                self.remove(at);
            }
            Judge::Esker => {
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
                // It fails unless the folder is there and empty.
                fs::remove_dir(at).expect("the folder as it was");
                extract(&tree, &tree.root(), at, how).expect("a folder");
                look(at);
                self.remove(at);
            }
            Judge::Squashfuse => {
                // It lists neither `.` nor `..`, so what is looked at is a copy.
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
            Judge::Kernel => {
                fs::create_dir(at).expect("a mount point");
                run(Command::new("mount").args(["-t", "squashfs", "-o", "loop,ro"]).arg(image).arg(at));
                let mounted = Mounted(at, "umount");
                look(at);
                drop(mounted);
                fs::remove_dir(at).expect("removing the mount point");
            }
        }
    }

    /// Removes what was unpacked.
    fn remove(self, at: &Path) {
        let writable = Command::new("chmod").args(["-R", "u+rwx"]).arg(at).status();
        assert!(writable.is_ok_and(|status| status.success()));
        fs::remove_dir_all(at).expect("removing what was unpacked");
    }
}
