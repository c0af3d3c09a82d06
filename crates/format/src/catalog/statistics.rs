//! The counters of a catalog.

use crate::sqlite::{Database, SqliteError, Value};

/// Counters of entries, kept separately for a catalog itself and for everything nested below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Regular files, chunked and external ones included.
    pub regular: u64,
    /// Symlinks.
    pub symlink: u64,
    /// Pipes, sockets and devices.
    pub special: u64,
    /// Directories.
    pub dir: u64,
    /// Nested catalogs.
    pub nested: u64,
    /// Chunked files.
    pub chunked: u64,
    /// Chunks.
    pub chunks: u64,
    /// Bytes of regular files.
    pub file_size: u64,
    /// Bytes of chunked files.
    pub chunked_size: u64,
    /// Entries with extended attributes.
    pub xattr: u64,
    /// Files whose content is external data.
    pub external: u64,
    /// Bytes of these external files.
    pub external_file_size: u64,
}

impl Counters {
    fn counter(&mut self, name: &str) -> Option<&mut u64> {
        Some(match name {
            "regular" => &mut self.regular,
            "symlink" => &mut self.symlink,
            "special" => &mut self.special,
            "dir" => &mut self.dir,
            "nested" => &mut self.nested,
            "chunked" => &mut self.chunked,
            "chunks" => &mut self.chunks,
            "file_size" => &mut self.file_size,
            "chunked_size" => &mut self.chunked_size,
            "xattr" => &mut self.xattr,
            "external" => &mut self.external,
            "external_file_size" => &mut self.external_file_size,
            _ => return None,
        })
    }

    /// Returns the number of entries; a directory that is a mountpoint counts in both catalogs.
    pub const fn entries(&self) -> u64 {
        self.regular.saturating_add(self.symlink).saturating_add(self.special).saturating_add(self.dir)
    }
}

/// Counters of a catalog; those that an old catalog lacks are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Counters of the catalog itself.
    pub own: Counters,
    /// Counters of all catalogs nested below it.
    pub subtree: Counters,
    /// True if a stored value was no count, such as a negative one. That counter is zero here.
    pub faulty: bool,
}

impl Statistics {
    pub(super) fn read<B: AsRef<[u8]>>(database: &Database<B>) -> Result<Self, SqliteError> {
        let mut statistics = Self::default();
        for_each(database, |name, value| {
            if let Some(target) = statistics.counter(name) {
                match count(value) {
                    Some(value) => *target = value,
                    None => statistics.faulty = true,
                }
            }
        })?;
        Ok(statistics)
    }

    fn counter(&mut self, name: &str) -> Option<&mut u64> {
        match name.split_once('_')? {
            ("self", name) => self.own.counter(name),
            ("subtree", name) => self.subtree.counter(name),
            _ => None,
        }
    }
}

/// Returns true for the name of a counter.
pub(super) fn is_counter(name: &str) -> bool {
    Statistics::default().counter(name).is_some()
}

/// Returns the counters whose values are no counts, with these values.
pub(super) fn faulty<B: AsRef<[u8]>>(database: &Database<B>) -> Result<Vec<(String, String)>, SqliteError> {
    let mut faulty = Vec::new();
    for_each(database, |name, value| {
        if is_counter(name) && count(value).is_none() {
            faulty.push((name.to_owned(), value.text().unwrap_or_else(|| "NULL".to_owned())));
        }
    })?;
    Ok(faulty)
}

fn count(value: Value<'_>) -> Option<u64> {
    value.integer().and_then(|value| u64::try_from(value).ok())
}

/// Passes each row of the table to a function; catalogs before 2.1 have no table.
fn for_each<B: AsRef<[u8]>>(
    database: &Database<B>,
    mut row_of: impl FnMut(&str, Value<'_>),
) -> Result<(), SqliteError> {
    let Some(table) = database.find_table("statistics")? else { return Ok(()) };
    let column = |column| table.column(column).ok_or(SqliteError::NoColumn { table: "statistics", column });
    let (counter, value) = (column("counter")?, column("value")?);
    for row in table.rows() {
        let row = row?;
        row_of(&row.get(counter).text().unwrap_or_default(), row.get(value));
    }
    Ok(())
}
