//! Creates a file system in memory that only this process sees; it ends with its last descriptor.
//!
//! It is a mount without a place in any tree of names (`fsmount`, Linux 5.2). An ordinary user may make one in a user
//! namespace only.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use crate::namespace::{IdMap, made_in_namespace, made_nowhere};

/// Creates an empty file system of this size, whose root belongs to the user.
pub fn private_memory(bytes: u64) -> io::Result<OwnedFd> {
    let size = CString::new(bytes.to_string())?;
    match make(&size) {
        Err(Errno::PERM) => make_in_namespace(&size),
        made => Ok(made?),
    }
}

fn make(size: &CStr) -> rustix::io::Result<OwnedFd> {
    made_nowhere(c"tmpfs", [(c"size", size), (c"mode", c"0700")], MountAttrFlags::empty())
}

fn make_in_namespace(size: &CStr) -> io::Result<OwnedFd> {
    made_in_namespace(IdMap::Ourselves, || make(size)).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::new(
            io::ErrorKind::PermissionDenied,
            "an ordinary user may have memory of their own only where user namespaces are allowed",
        ),
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;

    use rustix::process::geteuid;

    #[test]
    fn a_memory_file_system_is_private_bounded_and_ends_with_its_descriptor() {
        let uid = geteuid().as_raw();
        // As root both ways are there, otherwise the second.
        let made = [make(c"1m").ok(), Some(make_in_namespace(c"1m").expect("user namespaces"))];
        assert!(!geteuid().is_root() || made[0].is_some());
        for root in made.into_iter().flatten() {
            let path = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
            let folder = fs::metadata(path.join(".")).expect("its root");
            assert_eq!((folder.uid(), folder.mode() & 0o7777), (uid, 0o700));
            fs::create_dir(path.join("a")).expect("a folder");
            fs::write(path.join("a/b"), vec![7; 512 << 10]).expect("a file");
            fs::rename(path.join("a/b"), path.join("c")).expect("another name");
            assert_eq!(fs::read(path.join("c")).expect("the file").len(), 512 << 10);
            let full = fs::write(path.join("d"), vec![7; 2 << 20]).expect_err("too much");
            assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
            drop(root);
            assert!(fs::metadata(path.join("c")).is_err());
        }
    }
}
