//! Mounts a small disk, which other programs can fill.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// A small file system in memory, unmounted on drop.
pub struct Tmpfs {
    path: PathBuf,
}

impl Tmpfs {
    /// Mounts a file system of `size` bytes at a folder, which is made if need be; `None` without root's rights.
    pub fn mount(path: &Path, size: u64) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        fs::create_dir_all(path).unwrap();
        let options = std::ffi::CString::new(format!("size={size},mode=755")).unwrap();
        mount("tmpfs", path, "tmpfs", MountFlags::empty(), Some(options.as_c_str())).expect("a small disk");
        Some(Self { path: path.to_owned() })
    }

    /// Fills the disk to the last byte.
    pub fn fill(&self) {
        let mut ballast = File::create(self.ballast()).expect("a file");
        let piece = vec![1; 64 << 10];
        while ballast.write_all(&piece).is_ok() {}
    }

    /// Makes the room free again that [`Self::fill`] took.
    pub fn empty(&self) {
        fs::remove_file(self.ballast()).expect("the ballast");
    }

    fn ballast(&self) -> PathBuf {
        self.path.join("ballast")
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = unmount(&self.path, UnmountFlags::DETACH);
    }
}
