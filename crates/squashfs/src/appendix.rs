//! What may follow an image in its file: bytes that belong to it and that no reader of squashfs looks at.
//!
//! ```text
//!  0  "ESKERAPX"
//!  8  length of what comes (8, little endian)
//! 16  …
//! ```
//!
//! It begins at the first multiple of 4 KiB after the image, which is as far as writers of images fill their files up.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::image::Image;
use crate::layout::Superblock;

const MAGIC: &[u8; 8] = b"ESKERAPX";
const HEAD_LEN: u64 = size_of::<Head>() as u64;
const ALIGNED_TO: u64 = 4096;
/// Longest appendix.
const LEN_MAX: u64 = 16 << 20;
/// How far files are filled up with zeros behind an image, at most.
const PADDING_MAX: u64 = 1 << 20;

type Head = [u8; 16];

/// Why an image can't have an appendix.
#[derive(Debug, thiserror::Error)]
pub enum AppendixError {
    /// The file can't be read or written.
    #[error(transparent)]
    File(#[from] io::Error),
    /// There is no room behind the image.
    #[error("something else follows the image in its file")]
    Taken,
    /// There is more than may be written.
    #[error("{0} bytes are more than the {LEN_MAX} that may follow an image")]
    TooLong(usize),
}

/// The appendix of an image, whatever it is; none if there is none. Of an image in the middle of a file it may be
/// somebody else's, so it must be made sure that it is what it should be.
pub fn read(image: &dyn Image, superblock: &Superblock) -> Option<Vec<u8>> {
    let place = place(superblock)?;
    let mut head = Head::default();
    if image.len().checked_sub(place)? < HEAD_LEN {
        return None;
    }
    image.read_at(place, &mut head).ok()?;
    let len = length(&head).filter(|len| *len <= image.len() - place - HEAD_LEN)?;
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    image.read_at(place + HEAD_LEN, &mut bytes).ok()?;
    Some(bytes)
}

/// Writes the appendix of the image that begins at byte `offset` of the file at `path`, in place of the one that is
/// there; or takes it away. Whoever has the image open notices nothing.
pub fn write(
    path: &Path,
    offset: u64,
    superblock: &Superblock,
    bytes: Option<&[u8]>,
) -> Result<(), AppendixError> {
    let len = bytes.map_or(0, <[u8]>::len);
    if len as u64 > LEN_MAX {
        return Err(AppendixError::TooLong(len));
    }
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let in_file = |at: u64| at.checked_add(offset).ok_or(AppendixError::Taken);
    let place = in_file(place(superblock).ok_or(AppendixError::Taken)?)?;
    if !is_free(&file, in_file(superblock.bytes_used)?, place)? {
        return Err(AppendixError::Taken);
    }
    file.set_len(place)?;
    if let Some(bytes) = bytes {
        file.write_all_at(&[&MAGIC[..], &(len as u64).to_le_bytes(), bytes].concat(), place)?;
    }
    Ok(file.sync_all()?)
}

fn place(superblock: &Superblock) -> Option<u64> {
    superblock.bytes_used.checked_next_multiple_of(ALIGNED_TO)
}

fn length(head: &Head) -> Option<u64> {
    let len = head.strip_prefix(MAGIC)?.try_into().ok().map(u64::from_le_bytes)?;
    (len <= LEN_MAX).then_some(len)
}

/// Whether behind an image that ends there is nothing but zeros, or an appendix to the end of the file, of which some
/// may be missing.
fn is_free(file: &File, end: u64, place: u64) -> io::Result<bool> {
    let whole = file.metadata()?.len();
    let mut head = Head::default();
    if whole.checked_sub(place).is_some_and(|behind| behind >= HEAD_LEN) {
        file.read_exact_at(&mut head, place)?;
        if length(&head).is_some_and(|len| whole <= place + HEAD_LEN + len) {
            return Ok(true);
        }
    }
    let mut rest = vec![0; usize::try_from(whole.saturating_sub(end).min(PADDING_MAX + 1)).unwrap_or(0)];
    file.read_exact_at(&mut rest, end)?;
    Ok(rest.len() as u64 <= PADDING_MAX && rest.iter().all(|byte| *byte == 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileImage;
    use crate::layout::SUPERBLOCK_LEN;

    /// A file with something that says it is an image of 5,000 bytes, at `offset`, and what is behind.
    fn file(offset: u64, behind: &[u8]) -> (tempfile::NamedTempFile, Superblock) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let superblock = Superblock { bytes_used: 5000, ..Superblock::example() };
        file.as_file().write_all_at(&superblock.encode(), offset).expect("writing");
        file.as_file().write_all_at(behind, offset + 5000).expect("writing");
        (file, superblock)
    }

    #[test]
    fn what_was_written_is_read_replaced_and_taken_away() {
        for offset in [0, 777] {
            for padding in [0, 3192, 60_000] {
                let (file, superblock) = file(offset, &vec![0; padding]);
                let image = || FileImage::open(file.path(), offset).expect("opening");
                assert_eq!(read(&image(), &superblock), None);
                for bytes in [&b"first"[..], b"", b"a longer one"] {
                    write(file.path(), offset, &superblock, Some(bytes)).expect("writing");
                    assert_eq!(read(&image(), &superblock).as_deref(), Some(bytes));
                }
                write(file.path(), offset, &superblock, None).expect("taking it away");
                assert_eq!(read(&image(), &superblock), None);
                assert_eq!(file.as_file().metadata().expect("looking").len(), offset + 8192);
                let mut head = [0; SUPERBLOCK_LEN];
                image().read_at(0, &mut head).expect("reading");
                assert_eq!(head[..], superblock.encode());
            }
        }
    }

    #[test]
    fn what_belongs_to_somebody_else_stays() {
        let long = vec![0; 2 << 20];
        for behind in [&b"x"[..], &[&[0; 4000][..], b"another partition"].concat(), &long] {
            let (file, superblock) = file(0, behind);
            let before = std::fs::read(file.path()).expect("reading");
            let error = write(file.path(), 0, &superblock, Some(b"mine")).expect_err("it is taken");
            assert!(matches!(error, AppendixError::Taken));
            assert!(std::fs::read(file.path()).expect("reading") == before);
        }
    }

    #[test]
    fn what_is_cut_off_or_says_nonsense_is_none() {
        let (file, superblock) = file(0, b"");
        write(file.path(), 0, &superblock, Some(b"whole")).expect("writing");
        let whole = std::fs::read(file.path()).expect("reading");
        for len in 5000..whole.len() {
            file.as_file().set_len(len as u64).expect("cutting it");
            assert_eq!(read(&whole[..len].to_vec(), &superblock), None);
        }
        write(file.path(), 0, &superblock, Some(b"again")).expect("half of one is in nobody's way");
        let mut endless = whole;
        endless[8192 + 8..8192 + 16].fill(0xff);
        assert_eq!(read(&endless, &superblock), None);
        assert_eq!(read(&endless, &Superblock { bytes_used: u64::MAX, ..superblock }), None);
    }
}
