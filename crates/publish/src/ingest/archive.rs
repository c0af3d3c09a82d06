//! Reads archives entry by entry.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use esker_archive::{ArchiveError, Entry as ArchiveEntry, Kind, Reader};
use esker_format::write::catalog::Entry;
use esker_repository::path;

use crate::build_folder::HEAD_MAX;
use crate::error::PublishError;
use crate::graft::{MARKER_MAX, grafted_by};
use crate::pipeline::Feed;
use crate::source::pack_xattrs;

use super::Member;
use super::collect::Collector;

/// An archive and the position of its reader.
pub(super) struct Archive {
    shown: PathBuf,
    stream: Box<dyn Read + Send>,
}

const READ_AHEAD: usize = 256 << 10;

impl Archive {
    pub(super) fn open(path: &Path) -> Result<Self, PublishError> {
        let failed = |source| PublishError::Source { doing: "reading", path: path.to_owned(), source };
        let input: Box<dyn Read + Send> = if path.as_os_str() == "-" {
            Box::new(io::stdin())
        } else {
            Box::new(File::open(path).map_err(failed)?)
        };
        let stream =
            esker_archive::decompressed(BufReader::with_capacity(READ_AHEAD, input)).map_err(failed)?;
        if stream.is_empty() {
            // The program that wrote the archive has probably failed, so an empty one is refused.
            return Err(PublishError::Refused { path: path.to_owned(), reason: "it is empty".into() });
        }
        Ok(Self { shown: path.to_owned(), stream: Box::new(stream) })
    }

    /// Hands all entries to the collector, and their content to the pipeline.
    pub(super) fn read(
        &mut self,
        collector: &mut Collector<'_>,
        feed: &Feed<'_>,
    ) -> Result<(), PublishError> {
        let shown = self.shown.clone();
        let failed = |source| PublishError::Source { doing: "reading", path: shown.clone(), source };
        let mut reader = Reader::new(&mut self.stream);
        while let Some(entry) = reader.next().map_err(|error| refused(&shown, error))? {
            if feed.is_over() {
                break;
            }
            if collector.ignores(&entry.path, matches!(entry.kind, Kind::Directory)) {
                continue;
            }
            if entry.unknown_type.is_some() {
                collector.note_unknown_type();
            }
            let place = collector.place(&entry.path)?;
            let name = path::split(&place).map(|(_, name)| name.to_vec()).unwrap_or_default();
            if grafted_by(&name).is_some() {
                let text = marker(&entry, &mut reader.content()).map_err(failed)?;
                collector.graft(&place, text.as_deref())?;
                continue;
            }
            match &entry.kind {
                Kind::Hardlink(target) => {
                    let target = collector.place(target)?;
                    collector.link(place, &target)?;
                }
                Kind::File(_) if collector.is_grafted(&place) => {
                    collector.other(member(place, entry, collector)?)?;
                }
                Kind::File(data) => {
                    let size = data.size;
                    let is_in_bin = path::split(&place).is_some_and(|(above, _)| above.ends_with(b"/bin"));
                    let script = is_in_bin.then(|| place.clone());
                    let job = collector.file(member(place, entry, collector)?, size)?;
                    let (content, mut head) = (&mut reader.content(), Vec::new());
                    let fill = &mut |room: &mut [u8]| {
                        let len = fill(content, room).map_err(failed)?;
                        if script.is_some() && head.is_empty() {
                            head.extend_from_slice(&room[..len.min(HEAD_MAX)]);
                        }
                        Ok(len)
                    };
                    if !feed.store(job, &name, size, fill, None)? {
                        return Err(failed(io::ErrorKind::UnexpectedEof.into()));
                    }
                    script.into_iter().for_each(|script| collector.note_script(script, &head));
                }
                _ => collector.other(member(place, entry, collector)?)?,
            }
        }
        drain(reader.get_mut(), feed).map_err(failed)
    }
}

/// Reads the marker of a graft; none if it is no file, or too large.
fn marker(entry: &ArchiveEntry, content: &mut dyn Read) -> io::Result<Option<Vec<u8>>> {
    let Kind::File(data) = &entry.kind else { return Ok(None) };
    if data.size > MARKER_MAX {
        return Ok(None);
    }
    let mut text = Vec::new();
    content.take(MARKER_MAX).read_to_end(&mut text)?;
    Ok(Some(text))
}

/// Reads the rest of the archive: the checksum of a compressed stream stands at its end.
fn drain(stream: &mut impl Read, feed: &Feed<'_>) -> io::Result<()> {
    let mut room = vec![0; READ_AHEAD];
    while !feed.is_over() && fill(stream, &mut room)? > 0 {}
    Ok(())
}

fn fill(content: &mut impl Read, mut room: &mut [u8]) -> io::Result<usize> {
    let wanted = room.len();
    while !room.is_empty() {
        match content.read(room) {
            Ok(0) => break,
            Ok(len) => room = &mut room[len..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(wanted - room.len())
}

fn refused(archive: &Path, error: ArchiveError) -> PublishError {
    let path = archive.to_owned();
    if error.is_of_reading() {
        return PublishError::Source { doing: "reading", path, source: error.into_io() };
    }
    PublishError::Refused { path, reason: error.to_string() }
}

/// Converts an archive entry to a catalog entry.
fn member(place: Vec<u8>, from: ArchiveEntry, collector: &Collector<'_>) -> Result<Member, PublishError> {
    let type_bits = match &from.kind {
        Kind::File(_) | Kind::Hardlink(_) => 0o100_000,
        Kind::Directory => 0o040_000,
        Kind::Symlink(_) => 0o120_000,
        Kind::Fifo => 0o010_000,
        Kind::CharDevice(_) => 0o020_000,
        Kind::BlockDevice(_) => 0o060_000,
    };
    let size = match &from.kind {
        Kind::CharDevice(device) | Kind::BlockDevice(device) => {
            rustix::fs::makedev(device.major, device.minor)
        }
        _ => 0,
    };
    let settings = collector.settings();
    let xattrs = pack_xattrs(from.xattrs, &place, settings)?;
    let mut entry = Entry {
        name: path::split(&place).map(|(_, name)| name.to_vec()).unwrap_or_default(),
        size,
        mtime: from.mtime.seconds,
        mtime_ns: settings.nanoseconds.then_some(from.mtime.nanoseconds),
        uid: from.uid,
        gid: from.gid,
        symlink: if let Kind::Symlink(target) = from.kind { target } else { Vec::new() },
        xattrs: xattrs.packed,
        ..Entry::of_mode(from.mode | type_bits)
    };
    collector.filter().own(&mut entry);
    Ok(Member { path: place, entry, xattrs_left_out: xattrs.left_out })
}
