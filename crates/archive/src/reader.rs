//! Reads the entries of an archive, in order.

mod file;

use std::io::{self, Read};

use crate::ArchiveError;
use crate::content::{Content, Stored};
use crate::entry::{Entry, Kind, check_target, normalised};
use crate::error::shown;
use crate::header::{BLOCK, Block, Header, until_zero};
use crate::other_formats::explained;
use crate::pax::{self, Extended, decimal};
use crate::sparse::{Data, SparseMap, real_size};

pub use file::FileInput;

/// Maximum length of a long name or target in bytes. Linux supports at most 4,095 bytes.
const LONG_MAX: u64 = 64 << 10;
/// Maximum length of an extended header in bytes: room for many extended attributes of up to 64 KiB each, and
/// for sparse maps.
const EXTENDED_MAX: u64 = 4 << 20;
/// Maximum length of a sparse map before a file's content, in bytes.
const MAP_MAX: u64 = 32 << 20;

/// Reads the entries of a tar archive, in order.
///
/// Supports the formats V7, ustar, GNU tar, star and pax. Memory use is bounded, whatever headers claim.
pub struct Reader<R> {
    input: R,
    skip: fn(&mut R, u64) -> io::Result<u64>,
    /// Offset of the next byte in the archive.
    position: u64,
    /// A block that was peeked at and not consumed.
    pending: Option<Box<Block>>,
    /// Offset of the next header.
    next: u64,
    /// Properties that pax sets for all following entries.
    global: Extended,
    current: Option<CurrentEntry>,
    ended: bool,
}

/// The entry returned last.
struct CurrentEntry {
    name: Vec<u8>,
    data: Data,
}

/// Headers that precede an entry's own and describe it.
#[derive(Default)]
struct PendingHeaders {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    extended: Option<Vec<u8>>,
}

impl<R> std::fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("position", &self.position).finish_non_exhaustive()
    }
}

impl<R: Read> Reader<R> {
    /// Returns a reader of an uncompressed archive.
    pub fn new(input: R) -> Self {
        Self::with_skip(input, |input, len| io::copy(&mut input.take(len), &mut io::sink()))
    }

    fn with_skip(input: R, skip: fn(&mut R, u64) -> io::Result<u64>) -> Self {
        Self {
            input,
            skip,
            position: 0,
            pending: None,
            next: 0,
            global: Extended::default(),
            current: None,
            ended: false,
        }
    }

    /// Returns the number of bytes of the archive read or skipped.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the input, to read bytes after the archive.
    pub fn get_mut(&mut self) -> &mut R {
        &mut self.input
    }

    /// Returns the next entry; skips content of the entry before that was not read.
    #[expect(clippy::should_implement_trait, reason = "an entry is read from the reader until the next one")]
    pub fn next(&mut self) -> Result<Option<Entry>, ArchiveError> {
        let mut before = PendingHeaders::default();
        while !self.ended {
            self.skip_to(self.next)?;
            self.current = None;
            let at = self.position;
            let Some(block) = self.header_block()? else { break };
            if block.iter().all(|byte| *byte == 0) {
                break;
            }
            let Some(header) = Header::of(&block) else { return Err(self.no_header(at, &block)) };
            self.next = self.position;
            match header.kind() {
                b'L' => {
                    before.name = Some(until_zero(&self.text(at, &header, "a long name", LONG_MAX)?).to_vec())
                }
                b'K' => {
                    before.link =
                        Some(until_zero(&self.text(at, &header, "a long target", LONG_MAX)?).to_vec());
                }
                b'x' | b'X' => {
                    before.extended = Some(self.text(at, &header, "an extended header", EXTENDED_MAX)?);
                }
                b'g' => {
                    let text = self.text(at, &header, "a global extended header", EXTENDED_MAX)?;
                    let mut global = Extended::default();
                    let taken = pax::records(&text, |key, value| global.take_global(key, value));
                    taken.map_err(|reason| ArchiveError::refused(at, "a global extended header", reason))?;
                    // It replaces the earlier global header completely, as in GNU tar.
                    self.global = global;
                }
                // A volume label is not an entry.
                b'V' => before = PendingHeaders::default(),
                _ => return self.entry(at, &header, std::mem::take(&mut before)).map(Some),
            }
        }
        self.ended = true;
        Ok(None)
    }

    /// Returns the content of the last entry, from its start or from the position of the last read.
    pub fn content(&mut self) -> Content<&mut Self> {
        let data = self.current.as_ref().map(|current| current.data.clone()).unwrap_or_default();
        Content::new(self, data)
    }

    fn entry(&mut self, at: u64, header: &Header<'_>, before: PendingHeaders) -> Result<Entry, ArchiveError> {
        let mut name = before.name.unwrap_or_else(|| header.name());
        let mut extended = self.global.clone();
        let refused = |name: &[u8], reason: String| ArchiveError::refused(at, shown(name), reason);
        if let Some(records) = before.extended {
            let taken = pax::records(&records, |key, value| extended.take(key, value));
            taken.map_err(|reason| refused(&name, reason))?;
        }
        name = extended.take_path().unwrap_or(name);
        if name.is_empty() {
            return Err(ArchiveError::refused(at, "an entry", "it has no name"));
        }
        let link = extended.link.take().or(before.link).unwrap_or_else(|| header.link().to_vec());
        self.current = Some(CurrentEntry { name: name.clone(), data: Data::default() });
        let fail = |reason: String| refused(&name, reason);
        let path = normalised(&name).map_err(fail)?;
        if header.kind() != b'1' {
            // Validated even where it isn't used: a header with one invalid field may have others.
            header.size().map_err(fail)?;
        }
        let is_directory_name = name.len() > 1 && name.ends_with(b"/");
        let mut unknown_type = None;
        let kind = match header.kind() {
            b'1' => {
                self.skip_content_of_link(header, &extended)?;
                let target = normalised(&link).map_err(|reason| fail(format!("its target: {reason}")))?;
                if target.is_empty() {
                    return Err(fail("it is a hard link without a target".to_owned()));
                }
                Kind::Hardlink(target)
            }
            b'2' => {
                check_target(&link).map_err(fail)?;
                Kind::Symlink(link)
            }
            b'3' => Kind::CharDevice(header.device().map_err(fail)?),
            b'4' => Kind::BlockDevice(header.device().map_err(fail)?),
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            b'D' => {
                // The content lists the directory's names at the time of the dump.
                let size = header.size().map_err(fail)?;
                self.set_next(size)?;
                Kind::Directory
            }
            b'M' => {
                let reason = "it is continued from another volume: join the volumes of the archive first";
                return Err(fail(reason.to_owned()));
            }
            0 | b'0' | b'7' if is_directory_name => Kind::Directory,
            kind => {
                unknown_type = Some(kind).filter(|kind| !matches!(kind, 0 | b'0' | b'7' | b'S'));
                Kind::File(self.data(at, &name, header, &extended)?)
            }
        };
        if path.is_empty() && kind != Kind::Directory {
            return Err(fail("it has the name of the folder itself, but is not a directory".to_owned()));
        }
        if let (Some(current), Kind::File(data)) = (&mut self.current, &kind) {
            current.data = data.clone();
        }
        Ok(Entry {
            mode: header.mode().map_err(fail)?,
            uid: of_either(extended.uid, header.uid()).map_err(fail)?,
            gid: of_either(extended.gid, header.gid()).map_err(fail)?,
            mtime: of_either(extended.mtime, header.mtime()).map_err(fail)?,
            xattrs: extended.take_xattrs().map_err(fail)?,
            path,
            kind,
            unknown_type,
            offset: at,
            name,
        })
    }

    /// Returns the positions of a regular file's content; reads its sparse map if there is one.
    fn data(
        &mut self,
        at: u64,
        name: &[u8],
        header: &Header<'_>,
        extended: &Extended,
    ) -> Result<Data, ArchiveError> {
        let fail = |reason: String| ArchiveError::refused(at, shown(name), reason);
        let size = of_either(extended.size, header.size()).map_err(fail)?;
        let sparse = &extended.sparse;
        let data = if let Some(version) = sparse.version {
            if version != 1 {
                return Err(fail(format!("it is sparse in the form {version}, which isn't known")));
            }
            let (map, len) = self.map_before_content(at, name, size)?;
            map.data(self.position, size.saturating_sub(len)).map_err(fail)?
        } else if let Some(map) = sparse.map().map_err(fail)? {
            map.data(self.position, size).map_err(fail)?
        } else if header.kind() == b'S' {
            let mut map = SparseMap::default();
            let mut more = map.add_of_header(header).map_err(fail)?;
            while more {
                let block = self.block()?.ok_or_else(|| self.cut())?;
                more = map.add_of_block(&block).map_err(fail)?;
            }
            let real = real_size(header).map_err(fail)?;
            if map.end() > real {
                return Err(fail(format!("its sparse map extends beyond its end at byte {real}")));
            }
            map.data(self.position, size).map_err(fail)?
        } else if sparse.real_size.is_some() {
            return Err(fail("it is sparse, and has no sparse map".to_owned()));
        } else {
            Data { size, start: self.position, regions: None }
        };
        let stored = match &data.regions {
            Some(regions) => regions.last().map_or(0, |region| region.stored + region.len),
            None => size,
        };
        self.set_next(stored)?;
        Ok(data)
    }

    /// Reads the map before a file's content: lines of decimal numbers, padded to a block. Returns its
    /// length, too.
    fn map_before_content(
        &mut self,
        at: u64,
        name: &[u8],
        size: u64,
    ) -> Result<(SparseMap, u64), ArchiveError> {
        let fail = |reason: &str| ArchiveError::refused(at, shown(name), reason);
        let (mut map, mut line, mut len) = (SparseMap::default(), Vec::new(), 0);
        let (mut left, mut offset) = (None, None);
        while left != Some(0) {
            if len >= size.min(MAP_MAX) {
                return Err(fail("its sparse map is longer than it can be"));
            }
            let block = self.block()?.ok_or_else(|| self.cut())?;
            len += BLOCK as u64;
            for byte in block.iter() {
                if *byte != b'\n' {
                    line.push(*byte);
                    if line.len() > 20 {
                        return Err(fail("its sparse map is damaged"));
                    }
                    continue;
                }
                let number = decimal(&line).ok_or_else(|| fail("its sparse map is damaged"))?;
                line.clear();
                match (left, offset.take()) {
                    (None, _) => left = Some(number),
                    (Some(_), None) => offset = Some(number),
                    (Some(count), Some(offset)) => {
                        map.add(offset, number).map_err(|reason| fail(&reason))?;
                        left = Some(count - 1);
                    }
                }
                if left == Some(0) {
                    break;
                }
            }
        }
        Ok((map, len))
    }

    /// Skips the content that pax allows for hard links. Older formats record a size there without any
    /// content.
    fn skip_content_of_link(&mut self, header: &Header<'_>, extended: &Extended) -> Result<(), ArchiveError> {
        let size = extended.size.or(header.size().ok()).unwrap_or(0);
        if size == 0 {
            return Ok(());
        }
        let Some(block) = self.block()? else { return Ok(()) };
        let is_header = Header::of(&block).is_some() || block.iter().all(|byte| *byte == 0);
        self.position -= BLOCK as u64;
        self.pending = Some(block);
        if !is_header {
            self.set_next(size)?;
        }
        Ok(())
    }

    /// Reads the content of a header as text.
    fn text(&mut self, at: u64, header: &Header<'_>, what: &str, max: u64) -> Result<Vec<u8>, ArchiveError> {
        let size = header.size().map_err(|reason| ArchiveError::refused(at, what, reason))?;
        if size > max {
            let reason = format!("it has {size} bytes, more than the {max} that are read of such a header");
            return Err(ArchiveError::refused(at, what, reason));
        }
        self.set_next(size)?;
        let mut text = Vec::new();
        let read = self.input.by_ref().take(size).read_to_end(&mut text);
        self.position += text.len() as u64;
        read.map_err(|source| self.failed(source))?;
        if (text.len() as u64) < size {
            return Err(ArchiveError::Cut { offset: self.position, within: what.to_owned() });
        }
        Ok(text)
    }

    fn set_next(&mut self, size: u64) -> Result<(), ArchiveError> {
        let end = size.checked_next_multiple_of(BLOCK as u64).and_then(|len| self.position.checked_add(len));
        self.next = end.ok_or_else(|| {
            let name = self.current.as_ref().map(|current| shown(&current.name)).unwrap_or_default();
            ArchiveError::refused(self.position, name, "it is larger than any file")
        })?;
        Ok(())
    }

    /// Reads a block that must be a header; the first one decides whether the input is an archive.
    fn header_block(&mut self) -> Result<Option<Box<Block>>, ArchiveError> {
        let at = self.position;
        match self.block() {
            Err(ArchiveError::Cut { offset, .. }) if at == 0 => {
                Err(ArchiveError::NoArchive { what: format!(": it has only {offset} bytes") })
            }
            read => read,
        }
    }

    /// Reads a block; none if the archive ends before it.
    fn block(&mut self) -> Result<Option<Box<Block>>, ArchiveError> {
        if let Some(block) = self.pending.take() {
            self.position += BLOCK as u64;
            return Ok(Some(block));
        }
        let mut block = Box::new([0; BLOCK]);
        let mut filled = 0;
        while let Some(room) = block.get_mut(filled..).filter(|room| !room.is_empty()) {
            match self.read_some(room)? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(self.cut()),
                len => filled += len,
            }
        }
        Ok(Some(block))
    }

    fn read_some(&mut self, room: &mut [u8]) -> Result<usize, ArchiveError> {
        loop {
            match self.input.read(room) {
                Ok(len) => {
                    self.position += len as u64;
                    return Ok(len);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    fn skip_to(&mut self, place: u64) -> Result<(), ArchiveError> {
        let mut len = place.saturating_sub(self.position);
        if len > 0 && self.pending.take().is_some() {
            self.position += BLOCK as u64;
            len -= BLOCK as u64;
        }
        if len == 0 {
            return Ok(());
        }
        let passed = (self.skip)(&mut self.input, len).map_err(|source| self.failed(source))?;
        self.position += passed;
        if passed < len { Err(self.cut()) } else { Ok(()) }
    }

    fn failed(&self, source: io::Error) -> ArchiveError {
        ArchiveError::Io { offset: self.position, source }
    }

    fn cut(&self) -> ArchiveError {
        let within =
            self.current.as_ref().map_or_else(|| "a header".to_owned(), |current| shown(&current.name));
        ArchiveError::Cut { offset: self.position, within }
    }

    fn no_header(&self, at: u64, block: &Block) -> ArchiveError {
        if at == 0 {
            return ArchiveError::NoArchive { what: explained(block) };
        }
        ArchiveError::refused(at, "a header", "its checksum is wrong, or it is no header")
    }
}

/// Returns the value of an extended header, or that of the entry's own header if there is none.
fn of_either<T>(extended: Option<T>, own: Result<T, String>) -> Result<T, String> {
    // An invalid field is an error even if it isn't used, since other fields may be wrong without notice.
    own.map(|own| extended.unwrap_or(own))
}

impl<R: Read> Stored for &mut Reader<R> {
    fn read_stored(&mut self, room: &mut [u8], at: u64) -> io::Result<usize> {
        self.skip_to(at).map_err(ArchiveError::into_io)?;
        match self.read_some(room).map_err(ArchiveError::into_io)? {
            0 if !room.is_empty() => Err(self.cut().into_io()),
            len => Ok(len),
        }
    }
}

#[cfg(test)]
mod tests;
