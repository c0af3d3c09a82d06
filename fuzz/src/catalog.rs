//! What a catalog answers never contradicts itself, whatever its bytes are: an entry is only found under its own
//! key and listed in its own directory, keys ascend, chunks are the whole file, every walk ends, and heap grows
//! with the input only.

use esker_format::catalog::{Catalog, EntryKind, Flags, PathKey, Row};

use super::within;

/// Point lookups a run, since a large catalog would take all the time there is.
const LOOKUPS_MAX: usize = 60;

/// Checks any bytes.
pub fn check(bytes: &[u8]) {
    let Ok(catalog) = within(bytes, 64, || Catalog::open(bytes)) else { return };
    let scanned = within(bytes, 1, || scan(&catalog, bytes.len(), false));
    within(bytes, 64, || lists(&catalog, bytes.len()));
    let in_order = within(bytes, 64, || in_order(&catalog, bytes.len()));
    assert!(scanned <= bytes.len() && in_order <= bytes.len());
}

/// Checks a catalog that SQLite made, where every entry must be found and listed, too.
pub fn check_sound(bytes: &[u8]) {
    check(bytes);
    let catalog = Catalog::open(bytes).expect("a sound catalog");
    let entries = scan(&catalog, bytes.len(), true);
    assert_eq!(catalog.rows().expect("a sound index").filter(Result::is_ok).count(), entries);
    assert_eq!(catalog.statistics().expect("statistics").own.entries(), entries as u64);
}

/// Walks over all rows and looks up each.
fn scan(catalog: &Catalog<&[u8]>, bound: usize, sound: bool) -> usize {
    let mut count = 0;
    for row in catalog.scan().expect("the table was there when the catalog was opened") {
        count += 1;
        assert!(count <= bound, "a walk ends");
        match row {
            Ok(row) if count <= LOOKUPS_MAX => look_up(catalog, &row, sound),
            Ok(_) => {}
            Err(error) => assert!(!sound, "{error}"),
        }
    }
    count
}

fn look_up(catalog: &Catalog<&[u8]>, row: &Row<'_>, sound: bool) {
    assert!(!row.name().contains(&b'/') && !row.name().contains(&0));
    assert!(row.link_count() > 0);
    assert_eq!(EntryKind::from_mode(row.mode()), Some(row.kind()));
    assert!(row.mtime_ns().is_none_or(|nanoseconds| nanoseconds < 1_000_000_000));
    match catalog.find(row.key()) {
        Ok(Some(found)) => {
            assert_eq!(found.key(), row.key());
            assert!(!sound || found.rowid() == row.rowid());
        }
        other => assert!(!sound, "{other:?}"),
    }
    if sound && !row.name().is_empty() && !row.flags().has(Flags::NESTED_ROOT) {
        let mut siblings = catalog.children(row.parent()).expect("a sound index");
        assert!(siblings.any(|sibling| sibling.expect("a sound row").rowid() == row.rowid()));
    }
    let xattrs = row.xattrs();
    assert!(!xattrs.is_empty() || xattrs.to_blob().is_none());
    if row.flags().has(Flags::CHUNKED) && row.kind() == EntryKind::File {
        check_chunks(catalog, row, sound);
    }
}

fn check_chunks(catalog: &Catalog<&[u8]>, row: &Row<'_>, sound: bool) {
    let Ok(chunks) = catalog.chunks(row) else {
        assert!(!sound, "chunks of a sound catalog");
        return;
    };
    let mut end = 0;
    for chunk in chunks {
        assert!(chunk.offset == end && chunk.size > 0);
        end += chunk.size;
    }
    assert_eq!(end, row.size());
}

/// Lists the root, nested catalogs and counters.
fn lists(catalog: &Catalog<&[u8]>, bound: usize) {
    let root = PathKey::of(&catalog.properties().root_prefix);
    if let Ok(children) = catalog.children(root) {
        let mut count = 0;
        for child in children {
            count += 1;
            assert!(count <= bound, "a listing ends");
            if let Ok(child) = child {
                assert_eq!(child.parent(), root);
                assert!(!child.name().is_empty());
            }
        }
    }
    if let Ok(nested) = catalog.nested() {
        assert!(nested.len() <= bound);
        for mounted in nested.iter().take(LOOKUPS_MAX) {
            if let Ok(Some(found)) = catalog.nested_at(&mounted.path) {
                assert_eq!(found.path, mounted.path);
            }
        }
    }
    let _ = catalog.statistics();
}

/// Walks over all rows in the order of their keys.
fn in_order(catalog: &Catalog<&[u8]>, bound: usize) -> usize {
    let mut last = None;
    let mut count = 0;
    let Ok(rows) = catalog.rows() else { return 0 };
    for row in rows {
        count += 1;
        assert!(count <= bound, "a walk ends");
        if let Ok(row) = row {
            assert!(last < Some(row.key()), "keys ascend");
            last = Some(row.key());
        }
    }
    count
}
