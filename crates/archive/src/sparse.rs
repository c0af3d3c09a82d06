//! Content of files with holes, and the maps that tell where their data is.

use std::sync::Arc;

use crate::header::{BLOCK, Block, Format, Header, size};

/// Longest file with holes, that of ext4: a map that leads further takes time and memory, and no disk has the file.
const SIZE_MAX: u64 = 16 << 40;
/// Most regions of a file: a file of a terabyte with data in every other megabyte has half as many.
const REGIONS_MAX: usize = 1 << 20;
/// Places of the regions in a header of GNU tar and star, and in the blocks behind it.
const GNU_REGIONS: (usize, usize) = (386, 4);
const STAR_REGIONS: (usize, usize) = (356, 4);
const MORE_REGIONS: (usize, usize) = (0, 21);
const REGION_LEN: usize = 24;

/// A part of a file that has data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Where it is in the file.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Where its bytes are, counted from the first byte of the file's content in the archive.
    pub stored: u64,
}

/// Places of a file's content in an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Data {
    /// Length of the file, with its holes.
    pub size: u64,
    /// Where the content begins, in the archive without its compression.
    pub start: u64,
    /// The parts that have data; none if all of the file has. What lies between them reads as zeros.
    pub regions: Option<Arc<[Region]>>,
}

/// A part of a file as the archive has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// So many zeros that are not stored.
    Hole(u64),
    /// Bytes at this place of the archive.
    Stored { at: u64, len: u64 },
}

impl Data {
    /// Returns what is at an offset of the file, up to the next change between data and hole; none at the end.
    pub(crate) fn at(&self, offset: u64) -> Option<Span> {
        let left = self.size.checked_sub(offset).filter(|left| *left > 0)?;
        let Some(regions) = &self.regions else {
            return Some(Span::Stored { at: self.start + offset, len: left });
        };
        let index = regions.partition_point(|region| region.offset + region.len <= offset);
        Some(match regions.get(index) {
            Some(region) if region.offset <= offset => {
                let passed = offset - region.offset;
                Span::Stored { at: self.start + region.stored + passed, len: region.len - passed }
            }
            Some(region) => Span::Hole(region.offset - offset),
            None => Span::Hole(left),
        })
    }
}

/// A map that is being read. Its regions are in order and don't overlap.
#[derive(Debug, Default)]
pub(crate) struct Map {
    regions: Vec<Region>,
    /// End of the last region, in the file and in the archive.
    end: u64,
    stored: u64,
}

fn blocks(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(BLOCK as u64)
}

impl Map {
    /// Adds a region. Its bytes begin with a block of their own, as GNU tar has it.
    pub(crate) fn add(&mut self, offset: u64, len: u64) -> Result<(), String> {
        if self.regions.len() >= REGIONS_MAX {
            return Err(format!("its sparse map has more than {REGIONS_MAX} regions"));
        }
        if offset < self.end {
            return Err("the regions of its sparse map are not in order".to_owned());
        }
        let too_large = || format!("its sparse map leads behind byte {SIZE_MAX}, which no file has");
        let end = offset.checked_add(len).filter(|end| *end <= SIZE_MAX).ok_or_else(too_large)?;
        let stored = blocks(len).and_then(|len| self.stored.checked_add(len)).ok_or_else(too_large)?;
        if len > 0 {
            self.regions.push(Region { offset, len, stored: self.stored });
        }
        (self.end, self.stored) = (end, stored);
        Ok(())
    }

    /// Returns the content, of which `stored` bytes follow in the archive from `start` on.
    ///
    /// The file ends with its last region, as GNU tar has it: a hole at the end is told by an empty region.
    pub(crate) fn data(self, start: u64, stored: u64) -> Result<Data, String> {
        if blocks(stored) != Some(self.stored) {
            let wanted = self.regions.iter().map(|region| region.len).sum::<u64>();
            return Err(format!("its sparse map has {wanted} bytes of data, but {stored} are stored"));
        }
        Ok(Data { size: self.end, start, regions: Some(self.regions.into()) })
    }

    /// Returns the end of the last region.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Adds the regions in a header of type `S`; true if more follow in a block behind it.
    pub(crate) fn add_of_header(&mut self, header: &Header<'_>) -> Result<bool, String> {
        let (place, more) = match header.format() {
            Format::Gnu => (GNU_REGIONS, 482),
            Format::Star => (STAR_REGIONS, 355),
            Format::V7 | Format::Ustar => {
                return Err("it is of type S, which its format doesn't have".to_owned());
            }
        };
        let is_complete = self.add_fields(header.field(place.0, place.1 * REGION_LEN))?;
        self.more(is_complete, header.field(more, 1))
    }

    /// Adds the regions in a block behind such a header; true if more follow.
    pub(crate) fn add_of_block(&mut self, block: &Block) -> Result<bool, String> {
        let fields = block.get(..MORE_REGIONS.1 * REGION_LEN).unwrap_or_default();
        let is_complete = self.add_fields(fields)?;
        self.more(is_complete, block.get(504..505).unwrap_or_default())
    }

    fn more(&self, is_complete: bool, flag: &[u8]) -> Result<bool, String> {
        let more = flag != [0];
        if more && !is_complete {
            return Err("its sparse map ends, and goes on in another block".to_owned());
        }
        Ok(more)
    }

    /// Adds regions until an empty field; true if there was none.
    fn add_fields(&mut self, fields: &[u8]) -> Result<bool, String> {
        for field in fields.chunks_exact(REGION_LEN) {
            let (offset, len) = field.split_at(REGION_LEN / 2);
            if len.first() == Some(&0) {
                return Ok(false);
            }
            self.add(size("sparse map's offset", offset)?, size("sparse map's length", len)?)?;
        }
        Ok(true)
    }
}

/// Returns the length of the file that a header of type `S` tells.
pub(crate) fn real_size(header: &Header<'_>) -> Result<u64, String> {
    let at = if header.format() == Format::Gnu { 483 } else { 452 };
    size("real size", header.field(at, 12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_tell_what_is_where() {
        let mut map = Map::default();
        for (offset, len) in [(512, 100), (2000, 512), (5000, 0)] {
            map.add(offset, len).expect("a region");
        }
        let data = map.data(10_000, 1024).expect("content");
        assert_eq!(data.size, 5000);
        assert_eq!(data.at(0), Some(Span::Hole(512)));
        assert_eq!(data.at(600), Some(Span::Stored { at: 10_088, len: 12 }));
        assert_eq!(data.at(612), Some(Span::Hole(1388)));
        assert_eq!(data.at(2001), Some(Span::Stored { at: 10_513, len: 511 }));
        assert_eq!(data.at(2512), Some(Span::Hole(2488)));
        assert_eq!(data.at(5000), None);
        let plain = Data { size: 3, start: 7, regions: None };
        assert_eq!((plain.at(1), plain.at(3)), (Some(Span::Stored { at: 8, len: 2 }), None));
    }

    #[test]
    fn maps_without_sense_are_refused() {
        let mut map = Map::default();
        map.add(512, 512).expect("a region");
        assert!(map.add(1000, 1).is_err(), "overlapping");
        assert!(map.add(u64::MAX, 1).is_err() && map.add(1024, u64::MAX >> 1).is_err(), "too large");
        assert!(map.data(0, 513).is_err(), "another length is stored");
    }
}
