//! Extended attributes of the source.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsRawFd as _, OwnedFd};

use esker_format::catalog::XattrList;
use esker_format::copied_xattr::PUBLISHED_PATH;
use esker_repository::{LongXattrs, Settings, path};

use crate::error::PublishError;
use rustix::fs::{lgetxattr, llistxattr};
use rustix::io::Errno;

/// Extended attributes of an entry, encoded for catalogs.
#[derive(Debug, Default)]
pub(crate) struct Xattrs {
    /// Encoded attributes; none if the entry has no attributes.
    pub(crate) packed: Option<Vec<u8>>,
    /// Number of attributes that catalogs can't represent.
    pub(crate) left_out: u64,
}

/// Name and value of an extended attribute.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// Length of a value that is read at the first attempt, in bytes.
const USUAL_LENGTH: usize = 256;

/// Attributes that describe the publisher's machine and not the file.
const MACHINE_NAMES: [&[u8]; 4] = [b"security.selinux", b"security.ima", b"security.evm", b"system.nfs4_acl"];

/// Reads the names and values of the extended attributes of the entry `name` of a directory, whatever it is, except those
/// of the publisher's machine.
///
/// There is no call that takes a directory and a name on old kernels, so the way is through the directory's
/// link in `/proc`, of which only the last name is not followed.
pub(crate) fn read_xattr_pairs(directory: &OwnedFd, name: &[u8]) -> Result<Vec<Pair>, Errno> {
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    let path = CString::new(path).map_err(|_| Errno::INVAL)?;
    let names = match read_grown(1024, |room| llistxattr(&path, room)) {
        Ok(names) => names,
        Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found: Vec<Pair> = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if MACHINE_NAMES.contains(&name) {
            continue;
        }
        let c_name = CString::new(name).map_err(|_| Errno::INVAL)?;
        match read_grown(USUAL_LENGTH, |room| lgetxattr(&path, &c_name, room)) {
            Ok(value) => found.push((name.to_vec(), value)),
            // Gone meanwhile, or not for us to see.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS | Errno::NOTSUP) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Encodes the extended attributes that catalogs can represent, as the settings say; `at` is the path for messages.
pub(crate) fn pack_xattrs(found: Vec<Pair>, at: &[u8], settings: &Settings) -> Result<Xattrs, PublishError> {
    if !settings.xattrs {
        return Ok(Xattrs::default());
    }
    let mut all = found.len();
    // Archives may have names that no file system would take, and readers refuse whole lists for one of them.
    let is_name = |name: &[u8]| !name.is_empty() && name.len() <= XattrList::NAME_MAX && !name.contains(&0);
    let mut kept: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for (name, value) in found {
        let is_long = value.len() > XattrList::SHORT_VALUE_MAX;
        if is_long && settings.long_xattrs == LongXattrs::Refuse {
            let (path, name, size) = (path::shown(at), path::shown(&name), value.len());
            return Err(PublishError::LongXattr { path, name, size });
        }
        // It tells of a published tree, and copies of its files have it too.
        if name == PUBLISHED_PATH {
            all -= 1;
            continue;
        }
        let may_be =
            value.len() <= XattrList::VALUE_MAX && (!is_long || settings.long_xattrs == LongXattrs::Publish);
        if may_be && is_name(&name) {
            kept.entry(name).or_insert(value);
        }
    }
    let list: XattrList = kept.into_iter().take(XattrList::COUNT_MAX).collect();
    Ok(Xattrs { left_out: (all - list.len()) as u64, packed: list.to_blob() })
}

/// Repeats a call with growing buffers until the reply fits.
fn read_grown(
    room: usize,
    call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; room];
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
