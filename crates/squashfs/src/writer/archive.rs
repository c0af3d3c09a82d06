//! A tar archive as the tree of an image.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use esker_archive::{Packed, unpacked};
use tar::{Archive as Members, EntryType};

use super::WriteError;
use super::entry::{Device, Head, Input, Kind, Open, Plain, Reading};
use super::error::shown;
use super::intake::Intake;

/// A tar archive, plain or compressed with gzip, zstd or xz.
pub struct Archive {
    shown: String,
    stream: Box<dyn Read + Send>,
    /// The file itself, if contents can be read from it at any time.
    file: Option<Arc<File>>,
}

impl std::fmt::Debug for Archive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Archive").field("shown", &self.shown).finish_non_exhaustive()
    }
}

const READ_AHEAD: usize = 256 << 10;
/// A tar archive is a number of these; everything else is none.
const RECORD: usize = 512;

impl Archive {
    /// Opens an archive.
    pub fn open(path: &Path) -> Result<Self, WriteError> {
        let shown = path.display().to_string();
        let failed = |source| WriteError::Input { doing: "reading", path: shown.clone(), source };
        let mut file = File::open(path).map_err(failed)?;
        let mut magic = Vec::new();
        file.by_ref().take(esker_archive::MAGIC_LEN as u64).read_to_end(&mut magic).map_err(failed)?;
        let can_seek = file.seek(SeekFrom::Start(0)).is_ok();
        if !can_seek || Packed::of(&magic).is_some() {
            // A pipe, which has to go on where it is, or something that only a decoder can read.
            let start = if can_seek { Vec::new() } else { magic };
            return Self::of_stream(shown, Box::new(Cursor::new(start).chain(file)));
        }
        let file = Arc::new(file);
        let stream = BufReader::with_capacity(READ_AHEAD, Positioned { file: file.clone(), offset: 0 });
        Self { shown, stream: Box::new(stream), file: Some(file) }.checked()
    }

    /// Reads an archive from a stream.
    pub fn of_stream(shown: String, stream: Box<dyn Read + Send>) -> Result<Self, WriteError> {
        let failed = |source| WriteError::Input { doing: "reading", path: shown.clone(), source };
        let stream = unpacked(BufReader::with_capacity(READ_AHEAD, stream)).map_err(failed)?;
        Self { shown, stream: Box::new(stream), file: None }.checked()
    }

    /// Makes sure that the first record is a header: the reader of archives takes anything for one, up to a point.
    fn checked(mut self) -> Result<Self, WriteError> {
        let mut start = vec![0; RECORD];
        let filled = Plain(&mut self.stream).fill(&mut start);
        let filled = filled.map_err(|source| WriteError::Input {
            doing: "reading",
            path: self.shown.clone(),
            source,
        })?;
        let header = tar::Header::from_byte_slice(start.get(..RECORD).unwrap_or_default());
        let sum = |header: &tar::Header| header.cksum().ok() == Some(own_sum(header));
        let is_end = start.iter().all(|byte| *byte == 0);
        if filled < RECORD || !(is_end || sum(header)) {
            let reason = "it is no tar archive".to_owned();
            return Err(WriteError::Refused { path: self.shown, reason });
        }
        self.stream = Box::new(Cursor::new(start).chain(self.stream));
        Ok(self)
    }
}

/// The sum of a header's bytes, its own field taken as spaces.
fn own_sum(header: &tar::Header) -> u32 {
    let bytes = header.as_bytes();
    (0..).zip(bytes).map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) }).sum()
}

/// A file read from a place of its own.
struct Positioned {
    file: Arc<File>,
    offset: u64,
}

impl Read for Positioned {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(room, self.offset)?;
        self.offset += len as u64;
        Ok(len)
    }
}

/// A member of an archive file.
struct Part {
    file: Arc<File>,
    offset: u64,
    len: u64,
}

impl Open for Part {
    fn open(&self) -> io::Result<Box<dyn Reading + '_>> {
        let from = Positioned { file: self.file.clone(), offset: self.offset };
        Ok(Box::new(Plain(from.take(self.len))))
    }
}

impl Input for Archive {
    fn feed(&mut self, intake: &mut Intake<'_, '_>) -> Result<(), WriteError> {
        let shown = self.shown.clone();
        let failed = |source| WriteError::Input { doing: "reading", path: shown.clone(), source };
        let mut members = Members::new(&mut self.stream);
        for member in members.entries().map_err(failed)? {
            let mut member = member.map_err(failed)?;
            let kind = member.header().entry_type();
            if matches!(kind, EntryType::XGlobalHeader) {
                continue;
            }
            let head = head(&mut member, &shown)?;
            match kind {
                EntryType::Link => {
                    let of = member.link_name_bytes();
                    let of = of.ok_or_else(|| refused(&head.path, "it is another name of nothing"))?;
                    intake.link(&head.path, &of)?;
                }
                EntryType::Regular | EntryType::Continuous => {
                    let (size, offset) = (member.size(), member.raw_file_position());
                    match &self.file {
                        Some(file) => {
                            let part = Part { file: file.clone(), offset, len: size };
                            intake.file(head, size, Box::new(part))?;
                        }
                        None => intake.file_now(head, size, &mut Plain(&mut member))?,
                    }
                }
                // Its holes are told by the archive, and made up by the reader of archives.
                EntryType::GNUSparse => {
                    let size = member.size();
                    intake.file_now(head, size, &mut Plain(&mut member))?;
                }
                _ => {
                    let kind = other(&member, &head.path)?;
                    intake.add(head, kind)?;
                }
            }
        }
        if self.file.is_none() {
            // The checksum of what is compressed stands behind the last member.
            io::copy(&mut self.stream, &mut io::sink()).map_err(failed)?;
        }
        Ok(())
    }
}

fn refused(path: &[u8], reason: &str) -> WriteError {
    WriteError::Refused { path: shown(path), reason: reason.to_owned() }
}

/// What a member without content is.
fn other<R: Read>(member: &tar::Entry<'_, R>, path: &[u8]) -> Result<Kind, WriteError> {
    let header = member.header();
    let number = |number: io::Result<Option<u32>>| number.ok().flatten().unwrap_or(0);
    let device = || Device { major: number(header.device_major()), minor: number(header.device_minor()) };
    Ok(match header.entry_type() {
        EntryType::Directory => Kind::Directory,
        EntryType::Symlink => {
            let target = member.link_name_bytes().ok_or_else(|| refused(path, "it is a link to nothing"))?;
            Kind::Symlink(target.into_owned())
        }
        EntryType::Fifo => Kind::Fifo,
        EntryType::Char => Kind::CharDevice(device()),
        EntryType::Block => Kind::BlockDevice(device()),
        _ => return Err(refused(path, "it is of an unknown type")),
    })
}

/// What tells of holes in archives of the form `pax`. The reader of archives would take the list of holes for content.
const SPARSE_PREFIX: &str = "GNU.sparse.";
const XATTR_PREFIX: &str = "SCHILY.xattr.";

/// What the headers of a member say.
fn head<R: Read>(member: &mut tar::Entry<'_, R>, archive: &str) -> Result<Head, WriteError> {
    let path = member.path_bytes().into_owned();
    let bad = |error: io::Error| refused(&path, &format!("its header in {archive} is damaged: {error}"));
    let header = member.header();
    let mut head = Head {
        path: path.clone(),
        permissions: u16::try_from(header.mode().map_err(bad)? & 0o7777).unwrap_or(0),
        uid: u32::try_from(header.uid().map_err(bad)?).unwrap_or(u32::MAX),
        gid: u32::try_from(header.gid().map_err(bad)?).unwrap_or(u32::MAX),
        mtime: i64::try_from(header.mtime().map_err(bad)?).unwrap_or(i64::MAX),
        xattrs: Vec::new(),
    };
    let Some(extensions) = member.pax_extensions().map_err(bad)? else { return Ok(head) };
    for extension in extensions {
        let extension = extension.map_err(bad)?;
        let (Ok(key), value) = (extension.key(), extension.value_bytes()) else { continue };
        let text = std::str::from_utf8(value).unwrap_or_default();
        match key {
            "mtime" => head.mtime = whole_seconds(text).unwrap_or(head.mtime),
            "uid" => head.uid = text.parse().unwrap_or(head.uid),
            "gid" => head.gid = text.parse().unwrap_or(head.gid),
            _ if key.starts_with(SPARSE_PREFIX) => {
                return Err(refused(
                    &path,
                    "it is sparse in a form that isn't known; archive it without --sparse",
                ));
            }
            _ => {
                let name = key.strip_prefix(XATTR_PREFIX);
                head.xattrs.extend(name.map(|name| (name.as_bytes().to_vec(), value.to_vec())));
            }
        }
    }
    Ok(head)
}

/// The whole seconds of `seconds.fraction`, rounded towards the past.
fn whole_seconds(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let is_between = whole.starts_with('-') && fraction.bytes().any(|digit| digit != b'0');
    seconds.checked_sub(is_between.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_seconds() {
        let expected = [("12", 12), ("12.9", 12), ("-1.25", -2), ("-3", -3), ("-3.000", -3)];
        for (text, seconds) in expected {
            assert_eq!(whole_seconds(text), Some(seconds), "{text}");
        }
        assert_eq!(whole_seconds("x.1"), None);
    }

    #[test]
    fn what_is_no_archive_is_refused() {
        for bytes in [&b""[..], b"hello", &[7; 2000]] {
            let opened = Archive::of_stream("it".to_owned(), Box::new(Cursor::new(bytes.to_vec())));
            let error = opened.expect_err("no archive").to_string();
            assert!(error.contains("no tar archive"), "{error}");
        }
    }
}
