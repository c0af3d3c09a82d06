//! A folder as input of an image.
//!
//! It is read relative to open directories, one name at a time. So no path is too long, and no symlink that
//! appears during the build leads out of the folder.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::fs::{File, Metadata};
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use esker_archive::folder::{self, OPEN_DIRECTORY, OPEN_FILE};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, readlinkat, statat,
};
use rustix::io::Errno;

use super::WriteError;
use super::builder::TreeBuilder;
use super::entry::{Device, Head, Input, Kind, Open, Plain, Reading};
use super::error::shown;

/// A folder that becomes an image.
#[derive(Debug)]
pub struct Folder {
    root: Arc<OwnedFd>,
    /// First path of each file that has several names.
    linked: HashMap<(u64, u64), Vec<u8>>,
    /// Files to leave out, by device and inode.
    left_out: Vec<(u64, u64)>,
    xattrs: bool,
}

impl Folder {
    /// Opens a folder; `xattrs` says whether to read extended attributes.
    pub fn open(path: &Path, xattrs: bool) -> io::Result<Self> {
        // The given path itself may be a symlink, which is followed.
        let root = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { root: Arc::new(root), linked: HashMap::new(), left_out: Vec::new(), xattrs })
    }

    /// Omits a file, such as the image itself if it is written into the folder.
    pub fn leave_out(&mut self, file: &Metadata) {
        self.left_out.push((file.dev(), file.ino()));
    }

    fn head(&self, directory: &OwnedFd, name: &CStr, path: &[u8], stat: &Stat) -> Result<Head, WriteError> {
        let xattrs = match self.xattrs {
            true => folder::xattrs(directory, name.to_bytes(), &[])
                .map_err(failed("reading extended attributes of", path))?,
            false => Vec::new(),
        };
        Ok(Head {
            path: path.to_vec(),
            permissions: u16::try_from(stat.st_mode & 0o7777).unwrap_or(0),
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: mtime(stat),
            xattrs,
        })
    }

    /// Passes on one entry; returns true if it is a directory.
    fn entry(
        &mut self,
        directory: &OwnedFd,
        name: &CStr,
        path: &[u8],
        builder: &mut TreeBuilder<'_, '_>,
    ) -> Result<bool, WriteError> {
        let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed("looking at", path))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let numbers = numbers(&stat);
        if self.left_out.contains(&numbers) {
            return Ok(false);
        }
        let is_linked = kind != FileType::Directory && stat.st_nlink > 1;
        if is_linked && let Some(first) = self.linked.get(&numbers) {
            builder.link(path, first)?;
            return Ok(false);
        }
        if is_linked {
            self.linked.insert(numbers, path.to_vec());
        }
        let head = self.head(directory, name, path, &stat)?;
        let device =
            || Device { major: rustix::fs::major(stat.st_rdev), minor: rustix::fs::minor(stat.st_rdev) };
        let kind = match kind {
            FileType::RegularFile => {
                let size = stat.st_size.cast_unsigned();
                let is_sparse = stat.st_blocks.cast_unsigned().saturating_mul(512) < size;
                let content = Content { root: self.root.clone(), path: path.to_vec(), is_sparse };
                builder.file(head, size, Box::new(content))?;
                return Ok(false);
            }
            FileType::Directory => Kind::Directory,
            FileType::Symlink => {
                let target = readlinkat(directory, name, Vec::new());
                Kind::Symlink(target.map_err(failed("reading symlink", path))?.into_bytes())
            }
            FileType::CharacterDevice => Kind::CharDevice(device()),
            FileType::BlockDevice => Kind::BlockDevice(device()),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::Unknown => {
                let reason = "it is of an unknown type".to_owned();
                return Err(WriteError::Refused { path: shown(path), reason });
            }
        };
        let is_directory = kind == Kind::Directory;
        builder.add(head, kind)?;
        Ok(is_directory)
    }
}

impl Input for Folder {
    fn feed(&mut self, builder: &mut TreeBuilder<'_, '_>) -> Result<(), WriteError> {
        let root = self.root.clone();
        let stat = fstat(&*root).map_err(failed("looking at", b""))?;
        let head = self.head(&root, c".", b"", &stat)?;
        builder.add(head, Kind::Directory)?;
        // Stack of open directories, with their remaining names, last name first.
        let top = openat(&*root, c".", OPEN_DIRECTORY, Mode::empty()).map_err(failed("opening", b""))?;
        let left = names(&top, b"")?;
        let mut way: Vec<(OwnedFd, Vec<u8>, Vec<CString>)> = vec![(top, Vec::new(), left)];
        while let Some((directory, above, left)) = way.last_mut() {
            let Some(name) = left.pop() else {
                way.pop();
                continue;
            };
            let mut path = above.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.to_bytes());
            if !builder.wants(&path) || !self.entry(directory, &name, &path, builder)? {
                continue;
            }
            let below = openat(&*directory, &name, OPEN_DIRECTORY, Mode::empty());
            let below = below.map_err(failed("opening directory", &path))?;
            let left = names(&below, &path)?;
            way.push((below, path, left));
        }
        Ok(())
    }
}

#[expect(clippy::unnecessary_cast, reason = "the fields have other types on other architectures")]
fn numbers(stat: &Stat) -> (u64, u64) {
    (stat.st_dev as u64, stat.st_ino as u64)
}

#[expect(clippy::unnecessary_cast, reason = "the field has other types on other architectures")]
fn mtime(stat: &Stat) -> i64 {
    stat.st_mtime as i64
}

fn failed(doing: &'static str, path: &[u8]) -> impl FnOnce(Errno) -> WriteError {
    let path = shown(path);
    move |error| WriteError::Input { doing, path, source: error.into() }
}

/// Returns the names in a directory, the last one first.
fn names(directory: &OwnedFd, path: &[u8]) -> Result<Vec<CString>, WriteError> {
    let mut names = folder::names(directory).map_err(failed("reading directory", path))?;
    names.reverse();
    Ok(names)
}

/// Content of a file of the folder.
struct Content {
    root: Arc<OwnedFd>,
    path: Vec<u8>,
    is_sparse: bool,
}

impl Content {
    fn open_file(&self) -> rustix::io::Result<OwnedFd> {
        let path = OsStr::from_bytes(&self.path);
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match openat2(&*self.root, path, OPEN_FILE, Mode::empty(), within) {
            // Old kernel, system call filter, or a path too long for one call.
            Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN | Errno::NAMETOOLONG) => self.open_by_names(),
            opened => opened,
        }
    }

    fn open_by_names(&self) -> rustix::io::Result<OwnedFd> {
        let mut names = self.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let last = names.next_back().ok_or(Errno::ISDIR)?;
        let mut above: Option<OwnedFd> = None;
        for name in names {
            let at = above.as_ref().unwrap_or(&self.root);
            above = Some(openat(at, OsStr::from_bytes(name), OPEN_DIRECTORY, Mode::empty())?);
        }
        openat(above.as_ref().unwrap_or(&self.root), OsStr::from_bytes(last), OPEN_FILE, Mode::empty())
    }
}

impl Open for Content {
    fn open(&self) -> io::Result<Box<dyn Reading + '_>> {
        let file = self.open_file()?;
        if FileType::from_raw_mode(fstat(file.as_fd())?.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is no regular file any longer"));
        }
        let file = File::from(file);
        match self.is_sparse {
            true => Ok(Box::new(Sparse { file, offset: 0, data: 0 })),
            false => Ok(Box::new(Plain(file))),
        }
    }
}

/// A file with holes.
struct Sparse {
    file: File,
    offset: u64,
    /// Offset of the next known data.
    data: u64,
}

impl Reading for Sparse {
    fn fill(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.file.seek(SeekFrom::Start(self.offset))?;
        let filled = Plain(&self.file).fill(room)?;
        self.offset += filled as u64;
        Ok(filled)
    }

    fn skip_hole(&mut self, len: u64) -> io::Result<bool> {
        if self.data <= self.offset {
            self.data = match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(self.offset)) {
                Ok(data) => data,
                // Only a hole remains up to the end of the file.
                Err(Errno::NXIO) => u64::MAX,
                // The file system doesn't report holes.
                Err(_) => self.offset,
            };
        }
        let is_hole = self.data >= self.offset + len;
        if is_hole {
            self.offset += len;
        }
        Ok(is_hole)
    }
}
