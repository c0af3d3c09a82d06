//! Chunks of a file.

use crate::hash::{ContentHash, DIGEST_LEN, HashAlgorithm};
use crate::sqlite::{Database, SqliteError, Table, TableRow, Value};

use super::{CatalogError, PathKey, Row};

/// A part of a file that is stored as a separate object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Offset of the chunk in the file, in bytes.
    pub offset: u64,
    /// Length of the chunk in bytes.
    pub size: u64,
    /// Hash of the chunk's object, which has kind `Chunk`.
    pub hash: ContentHash,
}

/// Reads the chunks of a file and checks that they cover it without gap or overlap.
pub(super) fn read<B: AsRef<[u8]>>(
    database: &Database<B>,
    row: &Row<'_>,
) -> Result<Vec<Chunk>, CatalogError> {
    let fault = |what| CatalogError::Row { rowid: row.rowid(), what };
    let algorithm = row.flags().hash_algorithm().ok_or(fault("its hash algorithm is unknown"))?;
    let columns = Columns::of(database.table("chunks")?)?;
    let mut chunks = columns.collect(row.key(), algorithm)?;
    chunks.sort_by_key(|chunk| chunk.offset);
    let mut end = 0u64;
    for chunk in &chunks {
        if chunk.offset != end || chunk.size == 0 {
            return Err(fault("its chunks leave a gap or overlap"));
        }
        end = end.checked_add(chunk.size).ok_or(fault("its chunks are too long"))?;
    }
    if end != row.size() {
        return Err(fault("its chunks are not as long as the file"));
    }
    Ok(chunks)
}

struct Columns<'a> {
    table: Table<'a>,
    key: [usize; 2],
    offset: usize,
    size: usize,
    hash: usize,
}

impl<'a> Columns<'a> {
    fn of(table: Table<'a>) -> Result<Self, SqliteError> {
        let column = |column| table.column(column).ok_or(SqliteError::NoColumn { table: "chunks", column });
        Ok(Self {
            key: [column("md5path_1")?, column("md5path_2")?],
            offset: column("offset")?,
            size: column("size")?,
            hash: column("hash")?,
            table,
        })
    }

    fn collect(&self, key: PathKey, algorithm: HashAlgorithm) -> Result<Vec<Chunk>, CatalogError> {
        let mut chunks = Vec::new();
        match self.table.index(&self.key) {
            Some(index) => {
                let (first, second) = key.columns();
                let mut finder = self.table.finder();
                for rowid in index.rowids_of(&[first, second])? {
                    let rowid = rowid?;
                    let row = finder.row(rowid)?.filter(|row| self.is_of(row, key));
                    let fault = CatalogError::Chunk { rowid, what: "the index refers to another row" };
                    chunks.push(self.read(&row.ok_or(fault)?, algorithm)?);
                }
            }
            None => {
                for row in self.table.rows() {
                    let row = row?;
                    if self.is_of(&row, key) {
                        chunks.push(self.read(&row, algorithm)?);
                    }
                }
            }
        }
        Ok(chunks)
    }

    fn is_of(&self, row: &TableRow<'_>, key: PathKey) -> bool {
        let (first, second) = key.columns();
        let [first_column, second_column] = self.key;
        row.get(first_column) == Value::Integer(first) && row.get(second_column) == Value::Integer(second)
    }

    fn read(&self, row: &TableRow<'_>, algorithm: HashAlgorithm) -> Result<Chunk, CatalogError> {
        let fault = |what| CatalogError::Chunk { rowid: row.rowid(), what };
        let length = |column, what| {
            let value = row.get(column).integer().and_then(|value| u64::try_from(value).ok());
            value.ok_or(fault(what))
        };
        let digest: [u8; DIGEST_LEN] = row
            .get(self.hash)
            .bytes()
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or(fault("its hash does not have 20 bytes"))?;
        Ok(Chunk {
            offset: length(self.offset, "its offset is not a positive number")?,
            size: length(self.size, "its size is not a positive number")?,
            hash: ContentHash::new(algorithm, digest),
        })
    }
}
