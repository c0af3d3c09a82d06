//! Reads a folder as a source: how its entries are opened, its names, and extended attributes.
//!
//! Entries are reached through descriptors of their directories. So no path is too long, and no symlink that appears
//! meanwhile leads out of the folder.

use std::ffi::CString;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::fs::{Dir, OFlags, lgetxattr, llistxattr};
use rustix::io::Errno;

/// Flags for opening files of a folder.
pub const OPEN_FILE: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);
/// Flags for opening directories of a folder.
pub const OPEN_DIRECTORY: OFlags = OPEN_FILE.union(OFlags::DIRECTORY);

/// Attributes that describe the machine rather than the file.
const MACHINE_NAMES: [&[u8]; 3] = [b"security.selinux", b"security.ima", b"security.evm"];
/// Name and value of an extended attribute.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// Length of a list of names, and of a value, that is read at the first attempt, in bytes.
const USUAL_LENGTH: usize = 1024;

/// Returns the names in a directory without `.` and `..`, sorted.
pub fn names(directory: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Returns names and values of the extended attributes of the entry `name` of a directory, except those of the machine and
/// those that are `unwanted`, which are not read.
///
/// Old kernels have no call that takes a directory and a name. So the path goes through the directory's link
/// in `/proc`; only its last name is not followed.
pub fn xattrs(directory: &OwnedFd, name: &[u8], unwanted: &[&[u8]]) -> Result<Vec<Xattr>, Errno> {
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    let path = CString::new(path).map_err(|_| Errno::INVAL)?;
    let names = match read_grown(|room| llistxattr(&path, room)) {
        Ok(names) => names,
        Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if MACHINE_NAMES.contains(&name) || unwanted.contains(&name) {
            continue;
        }
        let c_name = CString::new(name).map_err(|_| Errno::INVAL)?;
        match read_grown(|room| lgetxattr(&path, &c_name, room)) {
            Ok(value) => found.push((name.to_vec(), value)),
            // The attribute was removed meanwhile, or this user may not read it.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS | Errno::NOTSUP) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Repeats a call with growing buffers until the reply fits.
fn read_grown(call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; USUAL_LENGTH];
    loop {
        match call(&mut bytes) {
            Ok(len) => {
                bytes.truncate(len);
                return Ok(bytes);
            }
            Err(Errno::RANGE) if bytes.len() < 1 << 20 => bytes.resize(bytes.len() * 4, 0),
            Err(error) => return Err(error),
        }
    }
}
