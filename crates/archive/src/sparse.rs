//! Sparse files: content with holes, and maps of their data.

use std::sync::Arc;

use crate::header::{BLOCK, Block, Format, Header, size};

/// Maximum length of a sparse file in bytes, which is that of ext4: a longer map costs time and memory, and
/// no disk holds the file.
const SIZE_MAX: u64 = 16 << 40;
/// Maximum number of regions: a file of a terabyte with data in every other megabyte has half as many.
const REGIONS_MAX: usize = 1 << 20;
/// Offset and number of the regions in a header of GNU tar and star, and in the blocks that follow it.
const GNU_REGIONS: (usize, usize) = (386, 4);
const STAR_REGIONS: (usize, usize) = (356, 4);
const MORE_REGIONS: (usize, usize) = (0, 21);
const REGION_LEN: usize = 24;

/// A part of a file that has data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset of the stored bytes from the first byte of the file's content in the archive.
    pub stored: u64,
}

/// Positions of a file's content in an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Data {
    /// Length of the file in bytes, holes included.
    pub size: u64,
    /// Offset of the content in the decompressed archive, in bytes.
    pub start: u64,
    /// Parts with data, between which the file has holes; none if the whole file is data.
    pub regions: Option<Arc<[Region]>>,
}

/// A part of a file: a hole or stored data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// This many zero bytes, which are not stored.
    Hole(u64),
    /// `len` bytes stored at offset `at` of the archive.
    Stored { at: u64, len: u64 },
}

impl Data {
    /// Returns the hole or data at an offset of the file, up to the next change between them; none at the
    /// end.
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

/// A map under construction. Its regions are sorted and do not overlap.
#[derive(Debug, Default)]
pub(crate) struct SparseMap {
    regions: Vec<Region>,
    /// End of the last region, in the file and in the archive.
    end: u64,
    stored: u64,
}

fn blocks(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(BLOCK as u64)
}

impl SparseMap {
    /// Adds a region. Its stored bytes begin at a block boundary, as in GNU tar.
    pub(crate) fn add(&mut self, offset: u64, len: u64) -> Result<(), String> {
        if self.regions.len() >= REGIONS_MAX {
            return Err(format!("its sparse map has more than {REGIONS_MAX} regions"));
        }
        if offset < self.end {
            return Err("the regions of its sparse map are not in order".to_owned());
        }
        let too_large = || format!("its sparse map extends beyond byte {SIZE_MAX}, the maximum");
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
    /// The file ends with its last region, as in GNU tar: an empty region marks a hole at the end.
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

    /// Adds the regions in a header of type `S`; returns true if more follow in the next block.
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

    /// Adds the regions of a block that follows a sparse header; returns true if more blocks follow.
    pub(crate) fn add_of_block(&mut self, block: &Block) -> Result<bool, String> {
        let fields = block.get(..MORE_REGIONS.1 * REGION_LEN).unwrap_or_default();
        let is_complete = self.add_fields(fields)?;
        self.more(is_complete, block.get(504..505).unwrap_or_default())
    }

    fn more(&self, is_complete: bool, flag: &[u8]) -> Result<bool, String> {
        let more = flag != [0];
        if more && !is_complete {
            return Err("its sparse map ends, and continues in another block".to_owned());
        }
        Ok(more)
    }

    /// Adds regions until an empty field; returns true if there was none.
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

/// Returns the file length that a header of type `S` records.
pub(crate) fn real_size(header: &Header<'_>) -> Result<u64, String> {
    let at = if header.format() == Format::Gnu { 483 } else { 452 };
    size("real size", header.field(at, 12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_return_the_hole_or_data_at_each_offset() {
        let mut map = SparseMap::default();
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
    fn invalid_maps_are_rejected() {
        let mut map = SparseMap::default();
        map.add(512, 512).expect("a region");
        assert!(map.add(1000, 1).is_err(), "overlapping");
        assert!(map.add(u64::MAX, 1).is_err() && map.add(1024, u64::MAX >> 1).is_err(), "too large");
        assert!(map.data(0, 513).is_err(), "another length is stored");
    }
}
