//! Reads the tables of a catalog with SQLite.

use std::collections::BTreeMap;

use rusqlite::Connection;

/// Row of an entry.
pub(in crate::check) struct Row {
    pub(in crate::check) rowid: i64,
    pub(in crate::check) key: [i64; 2],
    pub(in crate::check) parent: [i64; 2],
    pub(in crate::check) hardlinks: u64,
    pub(in crate::check) hash: Option<Vec<u8>>,
    pub(in crate::check) size: i64,
    pub(in crate::check) mode: u32,
    pub(in crate::check) mtime: i64,
    pub(in crate::check) mtime_ns: Option<i64>,
    pub(in crate::check) flags: u64,
    pub(in crate::check) name: Vec<u8>,
    pub(in crate::check) symlink: Vec<u8>,
    pub(in crate::check) uid: u32,
    pub(in crate::check) gid: u32,
    pub(in crate::check) xattr: Option<Vec<u8>>,
}

pub(super) fn read_rows(database: &Connection) -> Vec<Row> {
    let mut statement = database
        .prepare(
            "SELECT rowid, md5path_1, md5path_2, parent_1, parent_2, hardlinks, hash, size, mode, mtime, mtimens, flags, \
             CAST(name AS BLOB), CAST(symlink AS BLOB), uid, gid, xattr FROM catalog",
        )
        .expect("a catalog");
    let rows = statement.query_map([], |row| {
        Ok(Row {
            rowid: row.get(0)?,
            key: [row.get(1)?, row.get(2)?],
            parent: [row.get(3)?, row.get(4)?],
            hardlinks: row.get::<_, i64>(5)?.cast_unsigned(),
            hash: row.get(6)?,
            size: row.get(7)?,
            mode: row.get(8)?,
            mtime: row.get(9)?,
            mtime_ns: row.get(10)?,
            flags: row.get(11)?,
            name: row.get(12)?,
            symlink: row.get(13)?,
            uid: row.get(14)?,
            gid: row.get(15)?,
            xattr: row.get(16)?,
        })
    });
    rows.expect("rows").map(|row| row.expect("a row")).collect()
}

pub(super) fn nested(database: &Connection) -> BTreeMap<Vec<u8>, (String, u64)> {
    let mut statement =
        database.prepare("SELECT CAST(path AS BLOB), sha1, size FROM nested_catalogs").expect("a catalog");
    let rows = statement.query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))));
    rows.expect("nested catalogs").map(|row| row.expect("a nested catalog")).collect()
}

pub(super) fn statistics(database: &Connection) -> BTreeMap<String, u64> {
    let mut statement = database.prepare("SELECT counter, value FROM statistics").expect("a catalog");
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
    rows.expect("statistics").map(|row| row.expect("a counter")).collect()
}

pub(super) fn chunks(database: &Connection, key: [i64; 2]) -> Vec<(u64, u64, Vec<u8>)> {
    let sql = "SELECT offset, size, hash FROM chunks WHERE md5path_1 = ?1 AND md5path_2 = ?2 ORDER BY offset";
    let mut statement = database.prepare_cached(sql).expect("a catalog");
    let rows = statement.query_map(key, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    rows.expect("chunks").map(|row| row.expect("a chunk")).collect()
}

pub(super) fn parse_xattrs(blob: &[u8]) -> Option<BTreeMap<Vec<u8>, Vec<u8>>> {
    let (&[version @ 1..=2, count], mut rest) = blob.split_first_chunk::<2>()? else { return None };
    let mut found = BTreeMap::new();
    let mut last: Option<Vec<u8>> = None;
    for _ in 0..count {
        let (name_len, value_len, tail) = match version {
            1 => {
                let (&[name, value], tail) = rest.split_first_chunk::<2>()?;
                (name, u16::from(value), tail)
            }
            _ => {
                let (&[name, low, high], tail) = rest.split_first_chunk::<3>()?;
                (name, u16::from_le_bytes([low, high]), tail)
            }
        };
        let (name, tail) = tail.split_at_checked(name_len.into())?;
        let (value, tail) = tail.split_at_checked(value_len.into())?;
        // Sorted by name, none twice.
        if name.is_empty() || last.as_deref().is_some_and(|last| last >= name) {
            return None;
        }
        last = Some(name.to_vec());
        found.insert(name.to_vec(), value.to_vec());
        rest = tail;
    }
    // Version 2 costs older clients all attributes of the entry, so it is for long values only.
    let is_needed = found.values().any(|value: &Vec<u8>| value.len() > 255) == (version == 2);
    (rest.is_empty() && !found.is_empty() && is_needed).then_some(found)
}
