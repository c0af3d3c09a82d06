//! Finds the parts of a library or executable that the dynamic loader reads.
//!
//! The loader reads the tables of symbols and relocations of a library, and writes to the data that these
//! name. Then it calls the functions in an array of addresses, mostly constructors, which may be anywhere in
//! the code. Of the remaining code and constants only the parts that run are read. Unmapped parts, such as
//! names for debuggers, are not read; in large libraries they can be a fifth of the file.
//!
//! Format: System V ABI (`elf(5)`). 32-bit and big-endian libraries are not supported.

use std::ops::Range;

/// Number of bytes at the beginning of a file that contain its headers.
pub const HEAD: usize = 8192;
/// Maximum length of a dynamic section in bytes; usual ones have thirty entries of 16 bytes.
const DYNAMIC_MAX: u64 = 64 << 10;
/// Maximum length of a name, or of a list of folders, in bytes.
const TEXT_MAX: u64 = 4096;
/// Maximum bytes of relocations that are searched for addresses of constructors.
const RELOCATIONS_MAX: u64 = 64 << 20;

const MAGIC: &[u8] = b"\x7fELF\x02\x01";
const PROGRAM_HEADER_LEN: usize = 56;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;
const DT_INIT_ARRAY: u64 = 25;
const DT_INIT_ARRAYSZ: u64 = 27;
/// Length of a relocation in bytes: the address it writes to, its kind, and the value it adds to the load
/// address.
const RELOCATION_LEN: usize = 24;

/// Tags of the dynamic section: a table's address, and its length where there is such a tag. In the order in
/// which a loader reads the tables.
const TABLES: [(u64, Option<u64>); 9] = [
    (DT_RELA, Some(DT_RELASZ)),
    (36, Some(35)),      // DT_RELR, DT_RELRSZ
    (23, Some(2)),       // DT_JMPREL, DT_PLTRELSZ
    (6, None),           // DT_SYMTAB
    (0x6fff_fef5, None), // DT_GNU_HASH
    (4, None),           // DT_HASH
    (DT_STRTAB, Some(DT_STRSZ)),
    (0x6fff_fff0, None), // DT_VERSYM
    (0x6fff_fffe, None), // DT_VERNEED
];

/// A mapped part of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    address: u64,
    file: Range<u64>,
    flags: u32,
}

impl Segment {
    fn meets(&self, part: &Range<u64>) -> bool {
        self.file.start < part.end && part.start < self.file.end
    }
}

/// Positions in a file that the loader reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    segments: Vec<Segment>,
    /// Position of the dynamic section, which names the tables.
    pub dynamic: Option<Range<u64>>,
}

impl Layout {
    /// Parses the headers at the beginning of a file; none if they are incomplete or the file can't be
    /// loaded.
    pub fn of(head: &[u8]) -> Option<Self> {
        if !head.starts_with(MAGIC) || u16_at(head, 54)? as usize != PROGRAM_HEADER_LEN {
            return None;
        }
        let start = usize::try_from(u64_at(head, 32)?).ok()?;
        let len = PROGRAM_HEADER_LEN * usize::from(u16_at(head, 56)?);
        let headers = head.get(start..start.checked_add(len)?)?;
        let mut layout = Self { segments: Vec::new(), dynamic: None };
        for header in headers.chunks_exact(PROGRAM_HEADER_LEN) {
            let (offset, len) = (u64_at(header, 8)?, u64_at(header, 32)?);
            let file = offset..offset.checked_add(len)?;
            match u32_at(header, 0)? {
                PT_LOAD if len > 0 => {
                    let (flags, address) = (u32_at(header, 4)?, u64_at(header, 16)?);
                    layout.segments.push(Segment { address, file, flags });
                }
                PT_DYNAMIC => layout.dynamic = Some(offset..offset.checked_add(len.min(DYNAMIC_MAX))?),
                _ => {}
            }
        }
        (!layout.segments.is_empty()).then_some(layout)
    }

    /// Returns the parts that the program writes to, mostly during loading.
    pub fn written(&self) -> impl Iterator<Item = Range<u64>> {
        self.segments.iter().filter(|segment| segment.flags & PF_W != 0).map(|segment| segment.file.clone())
    }

    /// Returns true if a part of the file is mapped, at least partly.
    pub fn is_mapped(&self, part: &Range<u64>) -> bool {
        self.segments.iter().any(|segment| segment.meets(part))
    }

    /// Returns true if a part of the file contains code.
    pub fn is_code(&self, part: &Range<u64>) -> bool {
        self.segments.iter().any(|segment| segment.flags & PF_X != 0 && segment.meets(part))
    }

    /// Returns the tables that the dynamic section names, in the order in which they are read.
    pub fn tables(&self, dynamic: &Dynamic) -> Vec<Range<u64>> {
        let starts: Vec<u64> = TABLES.iter().filter_map(|(tag, _)| dynamic.value(*tag)).collect();
        let table = |(tag, length): &(u64, Option<u64>)| {
            let start = dynamic.value(*tag)?;
            // A table without a length ends where the next one begins.
            let next = || Some(starts.iter().filter(|other| **other > start).min()? - start);
            let len = length.and_then(|tag| dynamic.value(tag)).or_else(next).unwrap_or(1);
            self.in_file(start, len)
        };
        TABLES.iter().filter_map(table).collect()
    }

    /// Returns the positions that identify the functions called at load time.
    pub fn constructors(&self, dynamic: &Dynamic) -> Option<Constructors> {
        let (start, len) = (dynamic.value(DT_INIT_ARRAY)?, dynamic.value(DT_INIT_ARRAYSZ)?);
        let table = || self.in_file(dynamic.value(DT_RELA)?, dynamic.value(DT_RELASZ)?.min(RELOCATIONS_MAX));
        Some(Constructors {
            addresses: start..start.checked_add(len)?,
            array: self.in_file(start, len)?,
            relocations: table(),
        })
    }

    /// Returns the positions of the names of the needed libraries, each with the bytes after it; [`text`]
    /// extracts the name.
    pub fn needed(&self, dynamic: &Dynamic) -> Vec<Range<u64>> {
        self.texts(dynamic, DT_NEEDED)
    }

    /// Returns the positions of the lists of folders that are searched for libraries; colons separate the
    /// folders.
    pub fn searched(&self, dynamic: &Dynamic) -> Vec<Range<u64>> {
        // The older tag is used only without the newer one.
        let newer = self.texts(dynamic, DT_RUNPATH);
        if newer.is_empty() { self.texts(dynamic, DT_RPATH) } else { newer }
    }

    fn texts(&self, dynamic: &Dynamic, tag: u64) -> Vec<Range<u64>> {
        let table = || self.in_file(dynamic.value(DT_STRTAB)?, dynamic.value(DT_STRSZ)?);
        let Some(table) = table() else { return Vec::new() };
        let text = |offset: u64| {
            let start = table.start.checked_add(offset).filter(|start| *start < table.end)?;
            Some(start..start.saturating_add(TEXT_MAX).min(table.end))
        };
        dynamic.values(tag).filter_map(text).collect()
    }

    /// Returns the parts of the file with the functions at these addresses, in this order.
    fn functions(&self, addresses: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
        addresses.filter_map(|address| self.in_file(address, 1)).collect()
    }

    /// Entries of a dynamic section.
    fn in_file(&self, address: u64, len: u64) -> Option<Range<u64>> {
        self.segments.iter().find_map(|segment| {
            let start = segment.file.start.checked_add(address.checked_sub(segment.address)?)?;
            let end = start.saturating_add(len).min(segment.file.end);
            (start < end).then_some(start..end)
        })
    }
}

/// Entries of a dynamic section: tags and values.
#[derive(Debug, Default)]
pub struct Dynamic(Vec<(u64, u64)>);

impl Dynamic {
    /// Parses the section's bytes, up to its end marker.
    pub fn of(section: &[u8]) -> Self {
        let entry = |entry: &[u8]| u64_at(entry, 0).zip(u64_at(entry, 8)).filter(|(tag, _)| *tag != 0);
        Self(section.chunks_exact(16).map_while(entry).collect())
    }

    fn value(&self, tag: u64) -> Option<u64> {
        self.values(tag).next()
    }

    fn values(&self, tag: u64) -> impl Iterator<Item = u64> {
        self.0.iter().filter(move |entry| entry.0 == tag).map(|entry| entry.1)
    }
}

/// Returns the name at the beginning of these bytes; none if its end is missing.
pub fn text(bytes: &[u8]) -> Option<&[u8]> {
    bytes.get(..bytes.iter().position(|byte| *byte == 0)?)
}

/// Positions that identify the functions called when a file is loaded.
#[derive(Clone, Debug)]
pub struct Constructors {
    /// Address range of the array of function addresses.
    addresses: Range<u64>,
    /// Position of this array in the file.
    pub array: Range<u64>,
    /// Position in the file of the relocations that write to the array, among others.
    pub relocations: Option<Range<u64>>,
}

impl Constructors {
    /// Returns the functions in the bytes of the array, if all are present. With relocations most linkers
    /// leave zeros there.
    pub fn in_place(&self, layout: &Layout, array: &[u8]) -> Vec<Range<u64>> {
        if array.len() as u64 != self.array.end - self.array.start {
            return Vec::new();
        }
        let addresses = array.chunks_exact(8).filter_map(|entry| u64_at(entry, 0));
        layout.functions(addresses.filter(|address| *address != 0))
    }

    /// Returns the functions that relocations name, given bytes of their table from offset `into`. Incomplete
    /// entries are ignored.
    pub fn relocated(&self, layout: &Layout, bytes: &[u8], into: u64) -> Vec<Range<u64>> {
        let begun = usize::try_from(into % RELOCATION_LEN as u64).unwrap_or(0);
        let whole = bytes.get((RELOCATION_LEN - begun) % RELOCATION_LEN..).unwrap_or_default();
        let writes_there = |entry: &[u8]| {
            let place = u64_at(entry, 0).filter(|place| self.addresses.contains(place));
            place.and_then(|_| u64_at(entry, 16))
        };
        layout.functions(whole.chunks_exact(RELOCATION_LEN).filter_map(writes_there))
    }
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes_at(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes_at(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes_at(bytes, at).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a file with these program headers: kind, flags, file offset, address, length.
    fn head(headers: &[(u32, u32, u64, u64, u64)]) -> Vec<u8> {
        let mut head = MAGIC.to_vec();
        head.resize(64, 0);
        head[32..40].copy_from_slice(&64_u64.to_le_bytes());
        head[54..56].copy_from_slice(&56_u16.to_le_bytes());
        head[56..58].copy_from_slice(&(headers.len() as u16).to_le_bytes());
        for (kind, flags, offset, address, len) in headers {
            head.extend([kind.to_le_bytes(), flags.to_le_bytes()].concat());
            head.extend([*offset, *address, 0, *len, *len, 0].map(u64::to_le_bytes).concat());
        }
        head
    }

    /// Returns a dynamic section with these tags and values.
    fn section(entries: &[(u64, u64)]) -> Vec<u8> {
        entries.iter().flat_map(|(tag, value)| [tag.to_le_bytes(), value.to_le_bytes()].concat()).collect()
    }

    fn library() -> Layout {
        Layout::of(&head(&[
            (PT_LOAD, 4, 0, 0, 1000),
            (PT_LOAD, 5, 1000, 5000, 500),
            (PT_LOAD, 6, 1500, 9000, 300),
            (PT_DYNAMIC, 6, 1600, 9100, 96),
        ]))
        .unwrap()
    }

    #[test]
    fn headers_identify_mapped_and_writable_parts() {
        let layout = library();
        assert!(layout.written().eq(std::iter::once(1500..1800)));
        assert_eq!(layout.dynamic, Some(1600..1696));
        for (part, mapped) in [
            (0..10, true),
            (999..1001, true),
            (1799..3000, true),
            (1800..3000, false),
            (u64::MAX - 1..u64::MAX, false),
        ] {
            assert_eq!(layout.is_mapped(&part), mapped, "{part:?}");
        }
        assert!(layout.is_code(&(1499..1501)) && !layout.is_code(&(1500..1501)));
    }

    #[test]
    fn the_dynamic_section_identifies_tables() {
        let entries =
            [(6, 100), (5, 400), (10, 50), (7, 500), (8, 24), (0x6fff_fef5, 300), (0, 0), (23, 1), (2, 1)];
        // Relocations, symbols up to the hashes, hashes up to the names, names; nothing after the end marker.
        assert_eq!(
            library().tables(&Dynamic::of(&section(&entries))),
            [500..524, 100..300, 300..400, 400..450]
        );
    }

    #[test]
    fn tables_outside_of_the_file_are_ignored() {
        let layout = library();
        let tables =
            |address: u64, len: u64| layout.tables(&Dynamic::of(&section(&[(7, address), (8, len)])));
        assert!(
            tables(9299, u64::MAX).into_iter().eq(std::iter::once(1799..1800)),
            "cut where the segment ends"
        );
        for address in [1000, 4999, 9300, u64::MAX] {
            assert!(tables(address, 8).is_empty(), "{address}");
        }
    }

    /// Returns an array of three functions, at the end of the writable part.
    fn constructors(layout: &Layout, relocated: bool) -> Constructors {
        let table: &[_] = if relocated { &[(7, 200), (8, 96)] } else { &[] };
        let entries = [&[(25, 9276), (27, 24)], table].concat();
        layout.constructors(&Dynamic::of(&section(&entries))).unwrap()
    }

    #[test]
    fn constructors_are_found_in_the_array_or_in_its_relocations() {
        let layout = library();
        let in_place = constructors(&layout, false);
        assert_eq!((in_place.array.clone(), &in_place.relocations), (1776..1800, &None));
        let array: Vec<u8> = [5007_u64, 0, 5400].iter().flat_map(|it| it.to_le_bytes()).collect();
        assert_eq!(in_place.in_place(&layout, &array), [1007..1008, 1400..1401]);
        assert!(in_place.in_place(&layout, &array[8..]).is_empty(), "not all of it is there");
        assert!(in_place.in_place(&layout, &[0; 24]).is_empty());

        let relocated = constructors(&layout, true);
        assert_eq!(relocated.relocations, Some(200..296));
        // The second entry writes elsewhere; the last names an address that isn't in the file.
        let entries = [(9276, 5001), (9000, 5002), (9292, 5003), (9284, 9999)];
        let words = entries.iter().flat_map(|(place, to)| [*place, 8, *to]);
        let table: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        assert_eq!(relocated.relocated(&layout, &table, 0), [1001..1002, 1003..1004]);
        for into in 1..table.len() {
            let found = relocated.relocated(&layout, &table[into..], into as u64);
            let rest = (into <= 48).then_some(1003..1004);
            assert!(found.into_iter().eq(rest), "what begins before {into} isn't whole");
        }
        assert!(relocated.relocated(&layout, &table[..23], 0).is_empty());
    }

    #[test]
    fn needed_libraries_and_their_folders_are_found() {
        let layout = library();
        let found = |entries: &[(u64, u64)]| {
            let dynamic = Dynamic::of(&section(&[&[(5, 100), (10, 50)], entries].concat()));
            (layout.needed(&dynamic), layout.searched(&dynamic))
        };
        let old = [(1, 1), (15, 20), (1, 49), (1, 50), (1, u64::MAX)];
        let folders = |start: u64| Vec::from_iter(std::iter::once(start..150));
        assert_eq!(found(&old), (vec![101..150, 149..150], folders(120)), "none beyond the table");
        assert_eq!(found(&[(15, 20), (29, 30)]).1, folders(130));
        assert_eq!(found(&[]), (Vec::new(), Vec::new()));
        assert_eq!(text(b"libm.so.6\0libc"), Some(&b"libm.so.6"[..]));
        assert_eq!((text(b"\0"), text(b"libc"), text(b"")), (Some(&b""[..]), None, None));
    }

    #[test]
    fn a_file_that_is_no_library_has_no_layout() {
        assert_eq!(Layout::of(b"#!/bin/sh\n"), None);
        assert_eq!(Layout::of(&head(&[])), None, "nothing is mapped");
        let whole = head(&[(PT_LOAD, 4, 0, 0, 1000)]);
        assert!((0..whole.len()).all(|len| Layout::of(&whole[..len]).is_none()));
        assert_eq!(Layout::of(&head(&[(PT_LOAD, 4, u64::MAX, 0, 1)])), None);
    }

    /// The running test program is a valid example.
    #[test]
    fn a_real_program_is_parsed() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let layout = Layout::of(&bytes[..HEAD.min(bytes.len())]).unwrap();
        let dynamic = layout.dynamic.clone().unwrap();
        assert!(layout.written().any(|part| part.start <= dynamic.start && dynamic.end <= part.end));
        let tables = layout.tables(&Dynamic::of(&bytes[dynamic.start as usize..dynamic.end as usize]));
        assert!(tables.len() >= 4 && tables.iter().all(|table| layout.is_mapped(table)), "{tables:?}");
        // The first entry of a symbol table is empty, and so is the first name.
        assert!(tables.iter().any(|table| bytes[table.start as usize..][..24] == [0; 24]));
        assert!(tables.iter().all(|table| table.end <= bytes.len() as u64));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_parsed_or_rejected(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), dynamic in proptest::collection::vec(any::<u8>(), 0..200)) {
            bytes.splice(..bytes.len().min(MAGIC.len()), MAGIC.iter().copied());
            if bytes.len() > 58 {
                bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
                let headers = bytes[56] % 8;
                bytes[54..58].copy_from_slice(&[56, 0, headers, 0]);
            }
            if let Some(layout) = Layout::of(&bytes) {
                for table in layout.tables(&Dynamic::of(&dynamic)) {
                    prop_assert!(table.start < table.end);
                }
            }
        }
    }
}
