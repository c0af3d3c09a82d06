//! Mapping files into memory: the one thing here that the compiler can't check.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use memmap2::{Mmap, MmapOptions};

/// Maps the first `len` bytes of a file that is never changed or shortened.
///
/// The caller guarantees that: cache files get their name only once they are complete, are never written to or
/// truncated afterwards (only unlinked, which leaves a mapping whole), and are in a folder that only this user can
/// write to; memory files are sealed against both.
pub(crate) fn map(file: &File, len: usize) -> io::Result<Mmap> {
    // SAFETY: the file does not change while it is mapped, for the reason above.
    unsafe { MmapOptions::new().len(len).map(file) }
}
