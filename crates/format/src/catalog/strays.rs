//! Finds rows that no walk from the root of a catalog meets, and that its next version would lack.
//!
//! Clients never show them, but another publisher may have its reasons, and a damaged index hides entries too.

use std::collections::{HashMap, HashSet};

use crate::sqlite::{Database, Value};

use super::{Catalog, CatalogError, EntryKind, Flags, PathKey};

/// Maximum number of rows that are named.
const NAMED_MAX: usize = 8;

/// Descriptions of the first rows, and the number of all.
#[derive(Default)]
struct Strays {
    named: Vec<String>,
    count: usize,
}

impl Strays {
    fn add(&mut self, text: impl FnOnce() -> String) {
        self.count += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push(text());
        }
    }

    fn into_texts(mut self) -> Vec<String> {
        if let Some(more) = self.count.checked_sub(self.named.len()).filter(|more| *more > 0) {
            self.named.push(format!("{more} more such rows"));
        }
        self.named
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).escape_debug().collect()
}

/// Describes entries outside of the tree, nested catalogs without a mountpoint and chunks without a file.
pub(super) fn find<B: AsRef<[u8]>>(
    catalog: &Catalog<B>,
    database: &Database<B>,
) -> Result<Vec<String>, CatalogError> {
    let mut strays = Strays::default();
    let (mut reached, mut chunked, mut mountpoints) = (HashSet::new(), HashSet::new(), HashMap::new());
    let root = &catalog.properties().root_prefix;
    reached.extend(catalog.find(PathKey::of(root))?.map(|row| row.rowid()));
    let mut waiting = vec![root.clone()];
    while let Some(directory) = waiting.pop() {
        let mut names = HashSet::new();
        for row in catalog.children(PathKey::of(&directory))? {
            let row = row?;
            reached.insert(row.rowid());
            let path = [&directory, &b"/"[..], row.name()].concat();
            if !names.insert(row.name().to_vec()) {
                strays.add(|| format!("a second entry {}", shown(&path)));
            }
            if row.flags().has(Flags::CHUNKED) {
                chunked.insert(row.key());
            }
            if row.kind() == EntryKind::Directory {
                let bind = row.flags().has(Flags::BIND_MOUNTPOINT);
                if bind || row.flags().has(Flags::NESTED_MOUNTPOINT) {
                    mountpoints.insert(path, bind);
                } else {
                    waiting.push(path);
                }
            }
        }
    }
    for row in catalog.scan()? {
        let row = row?;
        if !reached.contains(&row.rowid()) {
            strays.add(|| {
                format!("the entry `{}` outside of the tree (row {})", shown(row.name()), row.rowid())
            });
        }
    }
    for nested in catalog.nested()? {
        if mountpoints.remove(&nested.path) != Some(nested.bind) {
            strays.add(|| format!("the catalog listed for {}, which is no mountpoint", shown(&nested.path)));
        }
    }
    chunks(database, &chunked, &mut strays)?;
    Ok(strays.into_texts())
}

fn chunks<B: AsRef<[u8]>>(
    database: &Database<B>,
    files: &HashSet<PathKey>,
    strays: &mut Strays,
) -> Result<(), CatalogError> {
    let Some(table) = database.find_table("chunks")? else { return Ok(()) };
    let [Some(first), Some(second)] = ["md5path_1", "md5path_2"].map(|name| table.column(name)) else {
        return Ok(());
    };
    for row in table.rows() {
        let row = row?;
        let is_of_file = match (row.get(first), row.get(second)) {
            (Value::Integer(first), Value::Integer(second)) => {
                files.contains(&PathKey::from_columns(first, second))
            }
            _ => false,
        };
        if !is_of_file {
            strays.add(|| format!("chunk {} of no file", row.rowid()));
        }
    }
    Ok(())
}
