//! Finds the start of an image in a file: a plain image, a container of Singularity or Apptainer (SIF), or an
//! AppImage.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::layout::{Fields, LayoutError, Superblock};

const SIF_MAGIC: &[u8] = b"SIF_MAGIC\0";
/// Offset of the SIF magic: the bytes before are a launcher for use of the file as a program.
const SIF_MAGIC_AT: usize = 32;
const SIF_COUNT_AT: u64 = 88;
const SIF_DESCRIPTORS_AT: u64 = 96;
const SIF_DESCRIPTOR_LEN: usize = 585;
const SIF_PARTITION: u32 = 0x4004;
const SIF_SQUASHFS: u32 = 1;
const SIF_MAIN: u32 = 2;
/// Maximum number of descriptors that are searched; a SIF file has 48 by default.
const SIF_COUNT_MAX: u64 = 4096;

const ELF_MAGIC: &[u8] = b"\x7fELF";
const ELF_64: u8 = 2;
const ELF_LITTLE: u8 = 1;

/// Returns the offset of the squashfs image in the file at `path`, if one is found.
pub fn find(path: &Path) -> io::Result<Option<u64>> {
    let file = File::open(path)?;
    let mut start = [0; 64];
    let len = read_at_most(&file, &mut start, 0)?;
    let start = start.get(..len).unwrap_or_default();
    if Superblock::is_here(start) {
        return Ok(Some(0));
    }
    let candidate = if start.get(SIF_MAGIC_AT..).is_some_and(|rest| rest.starts_with(SIF_MAGIC)) {
        in_sif(&file)?
    } else if start.starts_with(ELF_MAGIC) {
        behind_program(start)
    } else {
        None
    };
    let Some(offset) = candidate else { return Ok(None) };
    let mut magic = [0; 4];
    let len = read_at_most(&file, &mut magic, offset)?;
    Ok(Superblock::is_here(magic.get(..len).unwrap_or_default()).then_some(offset))
}

/// Returns the offset of the root partition of a SIF file, or else of the first partition with a squashfs
/// image.
fn in_sif(file: &File) -> io::Result<Option<u64>> {
    let (count, first) = (u64_at(file, SIF_COUNT_AT)?, u64_at(file, SIF_DESCRIPTORS_AT)?);
    let mut found = None;
    for number in 0..count.min(SIF_COUNT_MAX) {
        let Some(at) = number.checked_mul(SIF_DESCRIPTOR_LEN as u64).and_then(|at| at.checked_add(first))
        else {
            break;
        };
        let mut descriptor = [0; SIF_DESCRIPTOR_LEN];
        if read_at_most(file, &mut descriptor, at)? < descriptor.len() {
            break;
        }
        let number = |at: usize| Fields::of("a descriptor", descriptor.get(at..).unwrap_or_default());
        let (Ok(kind), Ok(offset), Ok(format), Ok(part)) =
            (number(0).u32(), number(17).u64(), number(201).u32(), number(205).u32())
        else {
            break;
        };
        let used = descriptor.get(4).is_some_and(|used| *used != 0);
        if used && kind == SIF_PARTITION && format == SIF_SQUASHFS {
            if part == SIF_MAIN {
                return Ok(Some(offset));
            }
            found = found.or(Some(offset));
        }
    }
    Ok(found)
}

/// Returns the end of an ELF program: its section table comes last.
fn behind_program(start: &[u8]) -> Option<u64> {
    let wide = *start.get(4)? == ELF_64;
    if *start.get(5)? != ELF_LITTLE {
        return None;
    }
    let numbers = |at: usize| Fields::of("a program", start.get(at..).unwrap_or_default());
    let read = || -> Result<(u64, u64), LayoutError> {
        let (table, mut sizes) =
            if wide { (numbers(40).u64()?, numbers(58)) } else { (numbers(32).u32()?.into(), numbers(46)) };
        Ok((table, u64::from(sizes.u16()?) * u64::from(sizes.u16()?)))
    };
    let (table, len) = read().ok()?;
    table.checked_add(len)
}

fn u64_at(file: &File, at: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Reads until the buffer is full or the file ends; past the end it reads 0 bytes.
fn read_at_most(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    // The system reports an error for offsets beyond the largest possible file.
    if i64::try_from(offset).is_err() {
        return Ok(0);
    }
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(bytes: &[u8]) -> Option<u64> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        find(file.path()).unwrap()
    }

    fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
        bytes[at..at + what.len()].copy_from_slice(what);
    }

    /// Returns a SIF file with two partitions, the second of which is the root.
    fn sif() -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        put(&mut bytes, 32, SIF_MAGIC);
        put(&mut bytes, 88, &3u64.to_le_bytes());
        put(&mut bytes, 96, &4096u64.to_le_bytes());
        for (number, kind, format, part, offset) in
            [(0, 0x4001, 0, 0, 1u64), (1, SIF_PARTITION, 1, 3, 2000), (2, SIF_PARTITION, 1, 2, 3000)]
        {
            let at = 4096 + number * 585;
            put(&mut bytes, at, &u32::to_le_bytes(kind));
            bytes[at + 4] = 1;
            put(&mut bytes, at + 17, &offset.to_le_bytes());
            put(&mut bytes, at + 201, &u32::to_le_bytes(format));
            put(&mut bytes, at + 205, &u32::to_le_bytes(part));
        }
        put(&mut bytes, 2000, b"hsqs");
        put(&mut bytes, 3000, b"hsqs");
        bytes
    }

    #[test]
    fn images_are_found_in_plain_files_and_containers() {
        assert_eq!(found(b"hsqs and more"), Some(0));
        assert_eq!(found(b""), None);
        assert_eq!(found(&[b'x'; 5000]), None);
        let mut bytes = sif();
        assert_eq!(found(&bytes), Some(3000));
        put(&mut bytes, 4096 + 2 * 585 + 205, &3u32.to_le_bytes());
        assert_eq!(found(&bytes), Some(2000));
        put(&mut bytes, 4096 + 585 + 17, &u64::MAX.to_le_bytes());
        assert_eq!(found(&bytes), None);
        put(&mut bytes, 88, &u64::MAX.to_le_bytes());
        put(&mut bytes, 96, &u64::MAX.to_le_bytes());
        assert_eq!(found(&bytes), None);
    }

    #[test]
    fn an_image_appended_to_an_executable_is_found() {
        for (class, table_at, sizes_at) in [(2, 40, 58), (1, 32, 46)] {
            let mut bytes = vec![0; 1000];
            put(&mut bytes, 0, ELF_MAGIC);
            (bytes[4], bytes[5]) = (class, 1);
            put(&mut bytes, table_at, &500u32.to_le_bytes());
            put(&mut bytes, sizes_at, &64u16.to_le_bytes());
            put(&mut bytes, sizes_at + 2, &3u16.to_le_bytes());
            assert_eq!(found(&bytes), None);
            put(&mut bytes, 692, b"hsqs");
            assert_eq!(found(&bytes), Some(692));
        }
    }
}
