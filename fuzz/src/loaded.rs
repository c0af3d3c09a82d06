//! Modules and libraries of any origin: what they tell of themselves is of their own bytes, and telling it takes
//! little memory however they refer to themselves.

use std::ops::Range;

use esker_format::elf::{Dynamic, Layout};
use esker_format::pyc;

use super::within;

/// Checks any bytes.
pub fn check(bytes: &[u8]) {
    // A value takes 24 bytes where the file needs one for it, is kept twice, and vectors grow by doubling.
    if let Some(imports) = within(bytes, 192, || pyc::imports(bytes)).filter(|imports| !imports.is_empty()) {
        let inside = bytes.as_ptr_range();
        for import in &imports {
            assert!(import.names.len() <= bytes.len());
            for name in import.names.iter().chain([&import.module]).filter(|name| !name.is_empty()) {
                let name = name.as_ptr_range();
                assert!(inside.start <= name.start && name.end <= inside.end);
            }
        }
    }
    within(bytes, 32, || library(bytes));
}

/// A file whose dynamic section, tables and array lie where its headers say, as far as they do.
fn library(bytes: &[u8]) {
    let Some(layout) = Layout::of(bytes) else { return };
    let part = |part: &Range<u64>| {
        let range = usize::try_from(part.start).ok()?..usize::try_from(part.end).ok()?;
        bytes.get(range.start.min(bytes.len())..range.end.min(bytes.len()))
    };
    let section = layout.dynamic.as_ref().and_then(part).unwrap_or_default();
    let dynamic = Dynamic::of(section);
    let in_file = |parts: &[Range<u64>]| {
        assert!(parts.iter().all(|part| part.start < part.end && layout.is_mapped(part)));
    };
    in_file(&layout.tables(&dynamic));
    in_file(&layout.needed(&dynamic));
    in_file(&layout.searched(&dynamic));
    let Some(constructors) = layout.constructors(&dynamic) else { return };
    in_file(std::slice::from_ref(&constructors.array));
    in_file(&constructors.in_place(&layout, part(&constructors.array).unwrap_or_default()));
    let Some(table) = &constructors.relocations else { return };
    in_file(std::slice::from_ref(table));
    for skipped in [0, 1, 25] {
        let rest = part(table).unwrap_or_default().get(skipped..).unwrap_or_default();
        in_file(&constructors.relocated(&layout, rest, skipped as u64));
    }
}
