//! A database file: its header, its pages and its list of tables.

use super::btree::Pages;
use super::ddl;
use super::table::{IndexInfo, Table, TableInfo};
use super::{Result, SqliteError};

const MAGIC: &[u8; 16] = b"SQLite format 3\0";
const HEADER_LEN: usize = 100;

/// Maximum number of tables and indexes, more than any database of a repository has.
const SCHEMA_ENTRIES_MAX: usize = 1000;

/// An SQLite database over immutable bytes.
pub struct Database<B> {
    bytes: B,
    layout: Layout,
    tables: Vec<TableInfo>,
    others: Vec<OtherPart>,
}

/// Kind and name of a view, trigger or virtual table.
type OtherPart = (String, String);

/// Sizes that the header states.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Length of a page in bytes, a power of two from 512 to 65536.
    pub(super) page_size: usize,
    /// Bytes of a page that SQLite uses, at least 480.
    pub(super) usable: usize,
    /// Number of pages in the file.
    pub(super) page_count: u32,
}

impl<B: AsRef<[u8]>> Database<B> {
    /// Reads the header and the list of tables.
    pub fn open(bytes: B) -> Result<Self> {
        let layout = Layout::parse(bytes.as_ref())?;
        let (tables, others) = read_schema(Pages::new(bytes.as_ref(), layout))?;
        Ok(Self { bytes, layout, tables, others })
    }

    /// Returns the table with this name.
    pub fn table(&self, name: &'static str) -> Result<Table<'_>> {
        self.find_table(name)?.ok_or(SqliteError::NoTable(name))
    }

    /// The table with this name, if there is one.
    pub fn find_table(&self, name: &str) -> Result<Option<Table<'_>>> {
        let info = self.tables.iter().find(|table| table.name.eq_ignore_ascii_case(name));
        info.map(|info| Table::new(self.pages(), info)).transpose()
    }

    /// Iterates over the names of all tables.
    pub fn table_names(&self) -> impl Iterator<Item = &str> {
        self.tables.iter().map(|table| table.name.as_str())
    }

    /// Iterates over views, triggers and virtual tables: their kinds and names.
    pub fn others(&self) -> impl Iterator<Item = (&str, &str)> {
        self.others.iter().map(|(kind, name)| (kind.as_str(), name.as_str()))
    }

    /// Returns the bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    #[inline]
    pub(super) fn pages(&self) -> Pages<'_> {
        Pages::new(self.bytes.as_ref(), self.layout)
    }
}

impl<B> std::fmt::Debug for Database<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl Layout {
    fn parse(bytes: &[u8]) -> Result<Self> {
        let Some(header) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(SqliteError::NotADatabase("it is shorter than a header"));
        };
        if !header.starts_with(MAGIC) {
            return Err(SqliteError::NotADatabase("it does not start with the SQLite signature"));
        }
        let number = |at: usize| {
            header.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b))
        };
        let page_size = match usize::from(u16::from_be_bytes([header[16], header[17]])) {
            1 => 65_536,
            size if size >= 512 && size.is_power_of_two() => size,
            _ => {
                return Err(SqliteError::NotADatabase(
                    "its page size is not a power of two from 512 to 65536",
                ));
            }
        };
        // Version 2 marks a database last written in write-ahead log mode. A published file comes without its
        // log, so the content of the file is valid.
        if !matches!(header[19], 1 | 2) {
            return Err(SqliteError::Unsupported("a read version that is not known"));
        }
        let usable = page_size - usize::from(header[20]);
        if usable < 480 {
            return Err(SqliteError::NotADatabase("it reserves too much of each page"));
        }
        if header[21..24] != [64, 32, 32] {
            return Err(SqliteError::NotADatabase("its payload fractions are not 64, 32, 32"));
        }
        // Zero marks a database without any table.
        if number(44) > 4 {
            return Err(SqliteError::Unsupported("a schema format that is not known"));
        }
        if number(56) > 1 {
            return Err(SqliteError::Unsupported("UTF-16 text"));
        }
        let present = u32::try_from(bytes.len() / page_size).unwrap_or(u32::MAX);
        // The page count is valid only if its change counter is current.
        let stated = if number(24) == number(92) { number(28) } else { 0 };
        if present == 0 || stated > present {
            return Err(SqliteError::Truncated { present, stated: stated.max(1) });
        }
        Ok(Self { page_size, usable, page_count: if stated > 0 { stated } else { present } })
    }
}

/// Reads `sqlite_schema (type, name, tbl_name, rootpage, sql)`, whose root is page 1. Returns the tables, and kinds and
/// names of views, triggers and virtual tables.
fn read_schema(pages: Pages<'_>) -> Result<(Vec<TableInfo>, Vec<OtherPart>)> {
    let mut tables = Vec::new();
    let mut others = Vec::new();
    let mut indexes = Vec::new();
    let mut cursor = pages.table_cursor(1);
    let mut entries = 0;
    while let Some((_, record)) = cursor.next_record()? {
        entries += 1;
        if entries > SCHEMA_ENTRIES_MAX {
            return Err(SqliteError::Unsupported("more than a thousand tables and indexes"));
        }
        let column = |index| record.get(index).and_then(|value| value.text()).unwrap_or_default();
        let (kind, name, owner, sql) = (column(0), column(1), column(2), column(4));
        let root = record.get(3).and_then(|value| value.integer()).and_then(|root| u32::try_from(root).ok());
        match (kind.as_str(), root) {
            ("table", Some(root)) if root > 0 => tables.push((name, root, sql)),
            ("index", Some(root)) if root > 0 => indexes.push((name, owner, root, sql)),
            _ => others.push((kind, name)),
        }
    }
    let describe = |(name, root, sql): (String, u32, String)| {
        let definition = ddl::parse_table(&sql);
        let own = indexes.iter().filter(|(_, owner, _, _)| owner.eq_ignore_ascii_case(&name));
        let indexes = definition.as_ref().map_or_else(
            |_| Vec::new(),
            |table| own.filter_map(|(name, _, root, sql)| IndexInfo::new(name, *root, sql, table)).collect(),
        );
        TableInfo { name, root, definition, indexes }
    };
    Ok((tables.into_iter().map(describe).collect(), others))
}
