//! Keeps free memory of a virtual machine allocated by its host.
//!
//! Some hosts take back what a guest reports as free ("free page reporting"), in blocks of 2 MiB and more, and return
//! it page by page at the next access. On our machine that costs 4 s a gigabyte, where zeroing takes a tenth: after
//! the page cache was dropped, much of a cold run's time would be the host's. A block with one page in use is not
//! reported.

use std::io;

use crate::sys::Scattered;

/// Smallest block in bytes that a guest reports as free and the host takes back.
const BLOCK: usize = 2 << 20;

/// Memory with scattered used pages, held until this is dropped.
#[derive(Debug)]
pub struct Backing {
    _blocks: Scattered,
}

impl Backing {
    /// Makes the host allocate this much memory, at least 2 MiB, and keeps a page of every 2 MiB of it in use.
    pub fn of(bytes: u64) -> io::Result<Self> {
        let blocks = usize::try_from(bytes).unwrap_or(usize::MAX) / BLOCK;
        Scattered::of(blocks, BLOCK).map(|blocks| Self { _blocks: blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_each_block_stays_in_use() {
        // More than one pipe takes.
        let backing = Backing::of(600 << 20).unwrap();
        assert_eq!(backing._blocks.pages().unwrap(), 300);
    }
}
