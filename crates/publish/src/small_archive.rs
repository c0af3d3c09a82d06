//! Reads a few files of a small, untrusted archive into memory. Nothing is unpacked to a disk.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Component, Path};

use esker_archive::{ArchiveError, Kind, Reader, decompressed};

/// Bounds for reading an archive.
#[derive(Clone, Copy, Debug)]
pub struct ArchiveLimits {
    /// Maximum decompressed size of the archive in bytes.
    pub plain: u64,
    /// Maximum number of members.
    pub members: usize,
    /// Maximum size in bytes of one extracted file.
    pub file: u64,
    /// Maximum total size in bytes of all extracted files.
    pub taken: u64,
}

/// Reasons for the refusal of an archive.
#[derive(Debug, thiserror::Error)]
pub enum SmallArchiveError {
    /// The archive is damaged, or the file is no archive.
    #[error("it can't be read as a tar archive")]
    Damaged(#[source] ArchiveError),
    /// The archive exceeds the size limit.
    #[error("it has more than {0}")]
    TooLarge(String),
    /// A member is compressed again, or is not a regular file where one is needed.
    #[error("it has a member `{name}`, which {why}")]
    Member {
        /// The name of the member.
        name: String,
        /// Reason for the refusal.
        why: &'static str,
    },
}

/// Returns the `wanted` files of a tar archive, plain or compressed.
///
/// An archive with a member outside of its folder is refused as a whole, and so is one in which a wanted file is a
/// link.
pub fn files_of_archive(
    bytes: &[u8],
    limits: ArchiveLimits,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Vec<u8>>, SmallArchiveError> {
    let failed = |source| SmallArchiveError::Damaged(ArchiveError::Io { offset: 0, source });
    let plain = decompressed(bytes).map_err(failed)?;
    if plain.is_empty() {
        let what = ": it is empty".to_owned();
        return Err(SmallArchiveError::Damaged(ArchiveError::NoArchive { what }));
    }
    let mut bounded = Bounded { inner: plain, left: limits.plain, over: false };
    let outcome = take(&mut bounded, limits, wanted);
    match outcome {
        Err(SmallArchiveError::Damaged(_)) if bounded.over => {
            Err(SmallArchiveError::TooLarge(format!("{} bytes", limits.plain)))
        }
        outcome => outcome,
    }
}

fn take(
    plain: &mut impl Read,
    limits: ArchiveLimits,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Vec<u8>>, SmallArchiveError> {
    let mut files = BTreeMap::new();
    let mut reader = Reader::new(plain);
    let (mut taken, mut number) = (0, 0);
    while let Some(entry) = reader.next().map_err(SmallArchiveError::Damaged)? {
        if number >= limits.members {
            return Err(SmallArchiveError::TooLarge(format!("{} members", limits.members)));
        }
        number += 1;
        let name = inside(&entry.name)?;
        if entry.kind == Kind::Directory || !wanted(&name) {
            continue;
        }
        if !matches!(entry.kind, Kind::File(_)) {
            return Err(SmallArchiveError::Member { name, why: "is not a file but a link or a device" });
        }
        let mut bytes = Vec::new();
        let read = reader.content().take(limits.file + 1).read_to_end(&mut bytes);
        let offset = reader.position();
        read.map_err(|source| SmallArchiveError::Damaged(ArchiveError::Io { offset, source }))?;
        if bytes.len() as u64 > limits.file {
            return Err(SmallArchiveError::Member { name, why: "is too large" });
        }
        taken += bytes.len() as u64;
        if taken > limits.taken {
            return Err(SmallArchiveError::TooLarge(format!("{} bytes that count", limits.taken)));
        }
        files.insert(name, bytes);
    }
    Ok(files)
}

/// Returns the name of a member below the extraction folder.
fn inside(name: &[u8]) -> Result<String, SmallArchiveError> {
    let refused = |why| {
        let name = String::from_utf8_lossy(name).escape_debug().to_string();
        Err(SmallArchiveError::Member { name, why })
    };
    let Ok(text) = std::str::from_utf8(name) else { return refused("is not named in UTF-8") };
    let mut parts = Vec::new();
    for part in Path::new(text).components() {
        match part {
            Component::Normal(part) => parts.extend(part.to_str()),
            Component::CurDir => {}
            _ => return refused("would lie outside of the folder"),
        }
    }
    Ok(parts.join("/"))
}

/// A stream that fails beyond a length limit.
struct Bounded<R> {
    inner: R,
    left: u64,
    over: bool,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !room.is_empty() {
            self.over = true;
            return Err(io::Error::other("it is too large"));
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(room.len());
        let len = self.inner.read(&mut room[..most])?;
        self.left -= len as u64;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tar::EntryType;

    use super::*;

    const LIMITS: ArchiveLimits = ArchiveLimits { plain: 1 << 20, members: 20, file: 1000, taken: 3000 };

    fn member(builder: &mut tar::Builder<Vec<u8>>, name: &[u8], kind: EntryType, bytes: &[u8]) {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_size(bytes.len() as u64);
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        if matches!(kind, EntryType::Symlink | EntryType::Link) {
            header.as_old_mut().linkname[0] = b'x';
        }
        header.set_cksum();
        builder.append(&header, bytes).expect("appending");
    }

    fn archive(members: &[(&[u8], EntryType, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        members.iter().for_each(|(name, kind, bytes)| member(&mut builder, name, *kind, bytes));
        builder.into_inner().expect("an archive")
    }

    fn files(bytes: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, String> {
        let files = files_of_archive(bytes, LIMITS, |name| name.ends_with(".conf"));
        files.map_err(|error| {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            format!("{error}: {}", source.unwrap_or_default())
        })
    }

    #[test]
    fn wanted_files_are_taken_however_it_is_compressed() {
        let plain = archive(&[
            (b"./top/", EntryType::Directory, b""),
            (b"./top/a.conf", EntryType::Regular, b"A"),
            (b"top/b.conf", EntryType::Regular, b"B"),
            (b"top/else", EntryType::Regular, &[0; 5000]),
            (b"top/link", EntryType::Symlink, b""),
        ]);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).expect("compressing");
        let zstd = zstd::encode_all(&plain[..], 1).expect("compressing");
        for bytes in [plain, gzip.finish().expect("compressing"), zstd] {
            let found = files(&bytes).expect("files");
            let expected = [("top/a.conf".to_owned(), b"A".to_vec()), ("top/b.conf".into(), b"B".to_vec())];
            assert_eq!(found, BTreeMap::from(expected));
        }
    }

    #[test]
    fn hostile_archives_are_refused() {
        let regular = EntryType::Regular;
        let many: Vec<(&[u8], EntryType, &[u8])> = vec![(b"x", regular, b""); 21];
        let cases: [(Vec<u8>, &str); 11] = [
            (archive(&[(b"../a.conf", regular, b"")]), "`..` is not allowed"),
            (archive(&[(b"a/../../b", regular, b"")]), "`..` is not allowed"),
            (archive(&[(b"/etc/a.conf", regular, b"")]), "outside"),
            (archive(&[(b"\xff.conf", regular, b"")]), "UTF-8"),
            (archive(&[(b"a.conf", EntryType::Symlink, b"")]), "a link"),
            (archive(&[(b"a.conf", EntryType::Link, b"")]), "a link"),
            (archive(&[(b"a.conf", EntryType::Fifo, b"")]), "a device"),
            (archive(&[(b"a.conf", regular, &[0; 1001])]), "too large"),
            (archive(&[(b"a", regular, &[0; 2 << 20])]), "1048576 bytes"),
            (archive(&many), "20 members"),
            (b"no archive at all, but a text that is longer than a header".repeat(20), "tar archive"),
        ];
        for (bytes, told) in cases {
            let error = files(&bytes).expect_err(told);
            assert!(error.contains(told), "{told}: {error}");
        }
        assert!(files(b"").is_err());
    }

    /// An archive that expands a thousandfold is refused.
    #[test]
    fn decompression_bombs_are_refused() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        let zeros = vec![0; 1 << 20];
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_size(64 << 20);
        header.as_old_mut().name[0] = b'a';
        header.set_cksum();
        gzip.write_all(header.as_bytes()).expect("compressing");
        (0..64).for_each(|_| gzip.write_all(&zeros).expect("compressing"));
        let bomb = gzip.finish().expect("compressing");
        assert!(bomb.len() < 100_000, "{}", bomb.len());
        assert!(files(&bomb).expect_err("a bomb").contains("1048576 bytes"));
    }

    /// Damaged archives give errors and never panic.
    #[test]
    fn damaged_archives_end_in_errors() {
        let good = archive(&[(b"a.conf", EntryType::Regular, b"A"), (b"b.conf", EntryType::Regular, b"B")]);
        for at in 0..1536 {
            let mut bad = good.clone();
            bad[at] ^= 0xff;
            let _ = files(&bad);
            let _ = files(&good[..at]);
        }
    }
}
