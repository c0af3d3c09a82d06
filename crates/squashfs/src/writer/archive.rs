//! A tar archive as input of an image.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use esker_archive::{
    ArchiveError, Compression, ContainerImage, ContainerImageNames, Data, Entry, FileContent, FileInput,
    Kind as EntryKind, Reader, decompressed,
};

use super::WriteError;
use super::builder::TreeBuilder;
use super::entry::{Device, Head, Input, Kind, Open, Reading, WithHoles};

/// A tar archive, uncompressed or compressed.
pub struct Archive {
    shown: String,
    entries: Entries,
    /// First entry, which was read to check that the file is an archive.
    first: Option<Entry>,
    names: Option<ContainerImageNames>,
}

/// Iterator over the entries of an archive.
enum Entries {
    /// Entries of an archive in a file: their contents can be read at any time.
    File(Reader<FileInput>, Arc<File>),
    Stream(Reader<Box<dyn Read + Send>>),
}

impl std::fmt::Debug for Archive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Archive").field("shown", &self.shown).finish_non_exhaustive()
    }
}

const READ_AHEAD: usize = 256 << 10;

impl Archive {
    /// Opens an archive.
    pub fn open(path: &Path) -> Result<Self, WriteError> {
        let shown = path.display().to_string();
        let failed = |source| WriteError::Input { doing: "reading", path: shown.clone(), source };
        let mut file = File::open(path).map_err(failed)?;
        let is_file = file.metadata().map_err(failed)?.is_file();
        let mut magic = Vec::new();
        file.by_ref().take(esker_archive::MAGIC_LEN as u64).read_to_end(&mut magic).map_err(failed)?;
        let can_seek = is_file && file.seek(SeekFrom::Start(0)).is_ok();
        if !can_seek || Compression::of(&magic).is_some() {
            // The input is a pipe, which can't seek back, or needs a decoder.
            let start = if can_seek { Vec::new() } else { magic };
            return Self::of_stream(shown, Box::new(Cursor::new(start).chain(file)));
        }
        let file = Arc::new(file);
        let reader = Reader::of_file(file.clone()).map_err(failed)?;
        Self::of_entries(shown, Entries::File(reader, file))
    }

    /// Reads an archive from a stream.
    pub fn of_stream(shown: String, stream: Box<dyn Read + Send>) -> Result<Self, WriteError> {
        let failed = |source| WriteError::Input { doing: "reading", path: shown.clone(), source };
        let stream = decompressed(BufReader::with_capacity(READ_AHEAD, stream)).map_err(failed)?;
        Self::of_entries(shown, Entries::Stream(Reader::new(Box::new(stream))))
    }

    fn of_entries(shown: String, entries: Entries) -> Result<Self, WriteError> {
        let mut archive = Self { shown, entries, first: None, names: None };
        archive.first = archive.next()?;
        if archive.entries.position() == 0 {
            let reason = "it is no tar archive: it is empty".to_owned();
            return Err(WriteError::Refused { path: archive.shown, reason });
        }
        Ok(archive)
    }

    /// Rejects the archive of a container image, whose layers would become files of the image in place of its
    /// content.
    pub fn refuse_container_images(&mut self) {
        self.names = Some(ContainerImageNames::default());
    }

    fn next(&mut self) -> Result<Option<Entry>, WriteError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        let next = match &mut self.entries {
            Entries::File(reader, _) => reader.next(),
            Entries::Stream(reader) => reader.next(),
        };
        next.map_err(|error| refused(&self.shown, error))
    }

    /// Returns an error if the archive is a container image, which is known once all names are.
    fn container_image(&self) -> Result<(), WriteError> {
        let form = match self.names.as_ref().and_then(ContainerImageNames::image) {
            None => return Ok(()),
            Some(ContainerImage::Docker) => "docker-archive",
            Some(ContainerImage::Oci) => "oci-archive",
        };
        let shown = &self.shown;
        let reason = if Path::new(shown).is_file() {
            format!(
                "it is a container image: name it {form}:{shown} for an image of its content, or tar:{shown} for one of its parts"
            )
        } else {
            format!("it is a container image: write it to a file, and name that {form}:FILE")
        };
        Err(WriteError::Refused { path: shown.clone(), reason })
    }

    fn feed_entry(&mut self, entry: Entry, builder: &mut TreeBuilder<'_, '_>) -> Result<(), WriteError> {
        if let Some(names) = &mut self.names {
            names.note(&entry.path);
        }
        builder.note_unknown_types(entry.unknown_type.is_some().into());
        let head = Head {
            path: entry.path,
            permissions: u16::try_from(entry.mode & 0o7777).unwrap_or(0),
            uid: entry.uid,
            gid: entry.gid,
            mtime: entry.mtime.seconds,
            xattrs: entry.xattrs,
        };
        let device = |device: esker_archive::Device| Device { major: device.major, minor: device.minor };
        let kind = match entry.kind {
            EntryKind::Hardlink(of) => return builder.link(&head.path, &of),
            EntryKind::File(data) => {
                let size = data.size;
                return match &mut self.entries {
                    Entries::File(_, file) => {
                        builder.file(head, size, Box::new(Part { file: file.clone(), data }))
                    }
                    Entries::Stream(reader) => builder.file_now(head, size, &mut WithHoles(reader.content())),
                };
            }
            EntryKind::Directory => Kind::Directory,
            EntryKind::Symlink(target) => Kind::Symlink(target),
            EntryKind::Fifo => Kind::Fifo,
            EntryKind::CharDevice(number) => Kind::CharDevice(device(number)),
            EntryKind::BlockDevice(number) => Kind::BlockDevice(device(number)),
        };
        builder.add(head, kind)
    }
}

impl Entries {
    fn position(&self) -> u64 {
        match self {
            Self::File(reader, _) => reader.position(),
            Self::Stream(reader) => reader.position(),
        }
    }
}

fn refused(archive: &str, error: ArchiveError) -> WriteError {
    if error.is_of_reading() {
        return WriteError::Input { doing: "reading", path: archive.to_owned(), source: error.into_io() };
    }
    WriteError::Refused { path: archive.to_owned(), reason: error.to_string() }
}

/// Content of a file in an uncompressed archive file.
struct Part {
    file: Arc<File>,
    data: Data,
}

impl Open for Part {
    fn open(&self) -> io::Result<Box<dyn Reading + '_>> {
        Ok(Box::new(WithHoles(FileContent::new(self.file.clone(), self.data.clone()))))
    }
}

impl Input for Archive {
    fn feed(&mut self, builder: &mut TreeBuilder<'_, '_>) -> Result<(), WriteError> {
        while let Some(entry) = self.next()? {
            self.feed_entry(entry, builder)?;
        }
        if let Entries::Stream(reader) = &mut self.entries {
            // The checksum of the compressed stream follows the last member.
            let failed = |source| WriteError::Input { doing: "reading", path: self.shown.clone(), source };
            io::copy(reader.get_mut(), &mut io::sink()).map_err(failed)?;
        }
        self.container_image()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_archive_is_rejected() {
        for bytes in [&b""[..], b"hello", &[7; 2000]] {
            let opened = Archive::of_stream("it".to_owned(), Box::new(Cursor::new(bytes.to_vec())));
            let error = opened.expect_err("no archive").to_string();
            assert!(error.contains("no tar archive"), "{error}");
        }
    }
}
