//! Archives, read member by member.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use esker_format::write::catalog::Entry;
use tar::EntryType;

use crate::error::AdminError;
use crate::path;
use crate::pipeline::Feed;
use crate::source::{Xattrs, pack_xattrs};

use super::Member;
use super::collect::Collector;

/// An archive that is being read.
pub(super) struct Archive {
    shown: PathBuf,
    stream: Box<dyn Read + Send>,
}

const READ_AHEAD: usize = 256 << 10;

impl Archive {
    pub(super) fn open(path: &Path) -> Result<Self, AdminError> {
        let failed = |source| AdminError::Source { doing: "reading", path: path.to_owned(), source };
        let input: Box<dyn Read + Send> = if path.as_os_str() == "-" {
            Box::new(io::stdin())
        } else {
            Box::new(File::open(path).map_err(failed)?)
        };
        let stream = esker_archive::unpacked(BufReader::with_capacity(READ_AHEAD, input)).map_err(failed)?;
        if stream.is_empty() {
            // What made it has failed, and nobody wants its nothing.
            return Err(AdminError::Refused { path: path.to_owned(), reason: "it is empty".into() });
        }
        Ok(Self { shown: path.to_owned(), stream: Box::new(stream) })
    }

    /// Hands all members to the collector, and their content to the pipeline.
    pub(super) fn read(&mut self, collector: &mut Collector<'_>, feed: &Feed<'_>) -> Result<(), AdminError> {
        let shown = self.shown.clone();
        let failed = |source| AdminError::Source { doing: "reading", path: shown.clone(), source };
        let mut archive = tar::Archive::new(&mut self.stream);
        for (number, member) in archive.entries().map_err(failed)?.enumerate() {
            let mut member = member.map_err(|error| match error.kind() {
                // That is how `tar` says it, with the text that it took for a header.
                io::ErrorKind::Other if number == 0 && error.raw_os_error().is_none() => {
                    AdminError::Refused { path: shown.clone(), reason: "it is no tar archive".into() }
                }
                _ => failed(error),
            })?;
            if feed.is_over() {
                break;
            }
            let kind = member.header().entry_type();
            if matches!(kind, EntryType::XGlobalHeader) {
                continue;
            }
            let about = describe(&mut member, collector, &shown)?;
            match kind {
                EntryType::Link => {
                    let target = member.link_name_bytes();
                    let target =
                        target.ok_or_else(|| refused(&shown, &about.path, "it is a link to nothing"))?;
                    collector.link(about.path, &collector.place(&target)?)?;
                }
                EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                    let size = member.size();
                    let job = collector.file(about, size)?;
                    let fill = &mut |room: &mut [u8]| fill(&mut member, room).map_err(failed);
                    if !feed.store(job, size, fill)? {
                        return Err(failed(io::ErrorKind::UnexpectedEof.into()));
                    }
                }
                _ => collector.other(about)?,
            }
        }
        self.drain(feed).map_err(failed)
    }

    /// Reads what follows the last member: only at its end does compression tell whether all bytes were right.
    fn drain(&mut self, feed: &Feed<'_>) -> io::Result<()> {
        let mut room = vec![0; READ_AHEAD];
        while !feed.is_over() && fill(&mut self.stream, &mut room)? > 0 {}
        Ok(())
    }
}

fn fill(member: &mut impl Read, mut room: &mut [u8]) -> io::Result<usize> {
    let wanted = room.len();
    while !room.is_empty() {
        match member.read(room) {
            Ok(0) => break,
            Ok(len) => room = &mut room[len..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(wanted - room.len())
}

fn refused(archive: &Path, path: &[u8], reason: &str) -> AdminError {
    let reason = format!("{} of the archive: {reason}", path::shown(path));
    AdminError::Refused { path: archive.to_owned(), reason }
}

/// What the headers of a member say.
fn describe<R: Read>(
    member: &mut tar::Entry<'_, R>,
    collector: &Collector<'_>,
    archive: &Path,
) -> Result<Member, AdminError> {
    let place = collector.place(&member.path_bytes())?;
    let header = member.header();
    let bad = |error: io::Error| refused(archive, &place, &error.to_string());
    let type_bits = match header.entry_type() {
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse | EntryType::Link => 0o100_000,
        EntryType::Directory => 0o040_000,
        EntryType::Symlink => 0o120_000,
        EntryType::Fifo => 0o010_000,
        EntryType::Char => 0o020_000,
        EntryType::Block => 0o060_000,
        _ => return Err(refused(archive, &place, "it is of an unknown type")),
    };
    let device = |number: io::Result<Option<u32>>| number.ok().flatten().unwrap_or(0);
    let special = rustix::fs::makedev(device(header.device_major()), device(header.device_minor()));
    let is_device = matches!(type_bits, 0o020_000 | 0o060_000);
    let mut entry = Entry {
        name: path::split(&place).map(|(_, name)| name.to_vec()).unwrap_or_default(),
        size: if is_device { special } else { 0 },
        mtime: i64::try_from(header.mtime().map_err(bad)?).unwrap_or(i64::MAX),
        uid: u32::try_from(header.uid().map_err(bad)?).unwrap_or(u32::MAX),
        gid: u32::try_from(header.gid().map_err(bad)?).unwrap_or(u32::MAX),
        ..Entry::of_mode(header.mode().map_err(bad)? & 0o7777 | type_bits)
    };
    if type_bits == 0o120_000 {
        entry.symlink = member.link_name_bytes().map(|target| target.into_owned()).unwrap_or_default();
        if entry.symlink.contains(&0) {
            return Err(refused(archive, &place, "its target has a zero byte in it"));
        }
    }
    let extended = extend(member, &mut entry).map_err(bad)?;
    let settings = collector.settings();
    entry.mtime_ns = settings.nanoseconds.then_some(extended.nanoseconds);
    let xattrs = if settings.xattrs { pack_xattrs(extended.xattrs) } else { Xattrs::default() };
    entry.xattrs = xattrs.packed;
    Ok(Member { path: place, entry, xattrs_left_out: xattrs.left_out })
}

/// What tells of holes in archives of the form `pax`. The reader of archives would take their list for content.
const SPARSE_PREFIX: &str = "GNU.sparse.";
const XATTR_PREFIX: &str = "SCHILY.xattr.";

/// What extended headers say that entries have no place for as it is.
#[derive(Default)]
struct Extended {
    nanoseconds: u32,
    /// Names and values.
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Takes over what the extended headers say: times with fractions, large numbers, extended attributes.
fn extend<R: Read>(member: &mut tar::Entry<'_, R>, entry: &mut Entry) -> io::Result<Extended> {
    let mut extended = Extended::default();
    let Some(extensions) = member.pax_extensions()? else { return Ok(extended) };
    for extension in extensions {
        let extension = extension?;
        let (Ok(key), value) = (extension.key(), extension.value_bytes()) else { continue };
        let text = std::str::from_utf8(value).unwrap_or_default();
        match key {
            "mtime" => {
                if let Some((seconds, fraction)) = parse_time(text) {
                    (entry.mtime, extended.nanoseconds) = (seconds, fraction);
                }
            }
            "uid" => entry.uid = text.parse().unwrap_or(entry.uid),
            "gid" => entry.gid = text.parse().unwrap_or(entry.gid),
            _ if key.starts_with(SPARSE_PREFIX) => {
                let reason = "it is sparse in a form that isn't known; archive it without --sparse";
                return Err(io::Error::other(reason));
            }
            _ => {
                let name = key.strip_prefix(XATTR_PREFIX).map(str::as_bytes);
                extended.xattrs.extend(name.map(|name| (name.to_vec(), value.to_vec())));
            }
        }
    }
    Ok(extended)
}

/// Reads `seconds.fraction`, which may be negative.
fn parse_time(text: &str) -> Option<(i64, u32)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds: u32 = digits.parse().ok()?;
    if whole.starts_with('-') && nanoseconds > 0 {
        // Before the epoch the fraction counts backwards.
        return Some((seconds.checked_sub(1)?, 1_000_000_000 - nanoseconds));
    }
    Some((seconds, nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, expected) in [
            ("12", Some((12, 0))),
            ("12.5", Some((12, 500_000_000))),
            ("12.0000000019", Some((12, 1))),
            ("-1.25", Some((-2, 750_000_000))),
            ("-3", Some((-3, 0))),
            ("x", None),
            ("1.x", None),
        ] {
            assert_eq!(parse_time(text), expected, "{text}");
        }
    }
}
