//! Trailer of an image file: bytes after the image that belong to it and that squashfs readers ignore.
//!
//! Layout (little-endian): bytes 0 to 7 are `ESKERAPX`, bytes 8 to 15 the length of the content, and the
//! content starts at byte 16.
//!
//! The trailer begins at the first multiple of 4 KiB after the image, because writers of images pad their
//! files up to there.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::image::Image;
use crate::layout::Superblock;

const MAGIC: &[u8; 8] = b"ESKERAPX";
const HEAD_LEN: u64 = size_of::<Head>() as u64;
const ALIGNED_TO: u64 = 4096;
/// Maximum length of a trailer in bytes.
const LEN_MAX: u64 = 16 << 20;
/// Maximum number of zero bytes that pad a file after its image.
const PADDING_MAX: u64 = 1 << 20;

type Head = [u8; 16];

/// Reasons why an image can't have a trailer.
#[derive(Debug, thiserror::Error)]
pub enum TrailerError {
    /// The file can't be read or written.
    #[error(transparent)]
    File(#[from] io::Error),
    /// Other data follows the image.
    #[error("other data follows the image in its file")]
    Occupied,
    /// The content is longer than a trailer may be.
    #[error("{0} bytes are more than the {LEN_MAX} that may follow an image")]
    TooLong(usize),
}

/// Returns the trailer of an image, if it has one.
///
/// The content is not validated: after an image in the middle of a file there may be a trailer of another
/// program.
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

/// Writes, replaces or (with `None`) removes the trailer of the image at byte `offset` of the file at `path`.
///
/// Readers that have the image open are not affected.
pub fn write(
    path: &Path,
    offset: u64,
    superblock: &Superblock,
    bytes: Option<&[u8]>,
) -> Result<(), TrailerError> {
    let len = bytes.map_or(0, <[u8]>::len);
    if len as u64 > LEN_MAX {
        return Err(TrailerError::TooLong(len));
    }
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let in_file = |at: u64| at.checked_add(offset).ok_or(TrailerError::Occupied);
    let place = in_file(place(superblock).ok_or(TrailerError::Occupied)?)?;
    if !is_free(&file, in_file(superblock.bytes_used)?, place)? {
        return Err(TrailerError::Occupied);
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

/// Returns true if only zeros, or a trailer that may be truncated, follow an image that ends at `end`.
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

    /// Returns a file with a superblock of a 5,000-byte image at `offset`, followed by the bytes `behind`.
    fn file(offset: u64, behind: &[u8]) -> (tempfile::NamedTempFile, Superblock) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let superblock = Superblock { bytes_used: 5000, ..Superblock::example() };
        file.as_file().write_all_at(&superblock.encode(), offset).expect("writing");
        file.as_file().write_all_at(behind, offset + 5000).expect("writing");
        (file, superblock)
    }

    #[test]
    fn a_trailer_is_read_replaced_and_removed() {
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
    fn data_of_other_programs_after_an_image_is_kept() {
        let long = vec![0; 2 << 20];
        for behind in [&b"x"[..], &[&[0; 4000][..], b"another partition"].concat(), &long] {
            let (file, superblock) = file(0, behind);
            let before = std::fs::read(file.path()).expect("reading");
            let error = write(file.path(), 0, &superblock, Some(b"mine")).expect_err("it is taken");
            assert!(matches!(error, TrailerError::Occupied));
            assert!(std::fs::read(file.path()).expect("reading") == before);
        }
    }

    #[test]
    fn a_truncated_or_invalid_trailer_is_ignored() {
        let (file, superblock) = file(0, b"");
        write(file.path(), 0, &superblock, Some(b"whole")).expect("writing");
        let whole = std::fs::read(file.path()).expect("reading");
        for len in 5000..whole.len() {
            file.as_file().set_len(len as u64).expect("cutting it");
            assert_eq!(read(&whole[..len].to_vec(), &superblock), None);
        }
        write(file.path(), 0, &superblock, Some(b"again")).expect("a truncated trailer is replaced");
        let mut endless = whole;
        endless[8192 + 8..8192 + 16].fill(0xff);
        assert_eq!(read(&endless, &superblock), None);
        assert_eq!(read(&endless, &Superblock { bytes_used: u64::MAX, ..superblock }), None);
    }
}
