//! Machine type of libraries.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Class, byte order and machine of an ELF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    class: u8,
    order: u8,
    number: [u8; 2],
}

impl Machine {
    /// Returns the kind of an ELF file; `None` for any other file.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let mut head = [0; 20];
        File::open(path).ok()?.read_exact(&mut head).ok()?;
        let [0x7f, b'E', b'L', b'F', class, order, .., low, high] = head else { return None };
        Some(Self { class, order, number: [low, high] })
    }

    /// Returns the ELF class and machine of the running program.
    pub(super) fn own() -> Option<Self> {
        Self::of(Path::new("/proc/self/exe"))
    }
}
