//! Extended attributes of the source.

use std::ffi::CString;
use std::os::fd::{AsRawFd as _, OwnedFd};

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

/// Maximum length of a name or value, and maximum number of attributes: catalogs have one byte for each.
const LENGTH_MAX: usize = 255;
const VERSION: u8 = 1;

/// Attributes that describe the publisher's machine and not the file.
const MACHINE_NAMES: [&[u8]; 4] = [b"security.selinux", b"security.ima", b"security.evm", b"system.nfs4_acl"];

/// Reads the extended attributes of the entry `name` of a directory, whatever it is.
///
/// There is no call that takes a directory and a name on old kernels, so the way is through the directory's
/// link in `/proc`, of which only the last name is not followed.
pub(crate) fn read_xattrs(directory: &OwnedFd, name: &[u8]) -> Result<Xattrs, Errno> {
    read_xattr_pairs(directory, name).map(pack_xattrs)
}

/// Reads the names and values of the extended attributes, except those of the publisher's machine.
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
        match read_grown(LENGTH_MAX + 1, |room| lgetxattr(&path, &c_name, room)) {
            Ok(value) => found.push((name.to_vec(), value)),
            // Gone meanwhile, or not for us to see.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS | Errno::NOTSUP) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Encodes the extended attributes that catalogs can represent.
pub(crate) fn pack_xattrs(mut found: Vec<Pair>) -> Xattrs {
    let all = found.len();
    // Archives may have names that no file system would take, and readers refuse whole catalogs for one of them.
    let is_name = |name: &[u8]| !name.is_empty() && name.len() <= LENGTH_MAX && !name.contains(&0);
    found.retain(|(name, value)| is_name(name) && value.len() <= LENGTH_MAX);
    found.sort_unstable();
    found.dedup_by(|a, b| a.0 == b.0);
    found.truncate(LENGTH_MAX);
    Xattrs { packed: pack(&found), left_out: (all - found.len()) as u64 }
}

fn pack(found: &[(Vec<u8>, Vec<u8>)]) -> Option<Vec<u8>> {
    let count = u8::try_from(found.len()).ok().filter(|count| *count > 0)?;
    let mut packed = vec![VERSION, count];
    for (name, value) in found {
        packed.push(u8::try_from(name.len()).ok()?);
        packed.push(u8::try_from(value.len()).ok()?);
        packed.extend_from_slice(name);
        packed.extend_from_slice(value);
    }
    Some(packed)
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
