//! Writes reflogs.

use std::collections::HashSet;

use crate::hash::ContentHash;
use crate::name::RepositoryName;
use crate::object::{ObjectKind, ObjectName};
use crate::reflog::{Reference, Reflog};
use crate::time::UnixTime;

use super::catalog::PROPERTIES;
use super::sqlite::{DatabaseBuilder, Value};

/// Builder of a reflog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReflogDraft {
    name: RepositoryName,
    references: Vec<Reference>,
}

impl ReflogDraft {
    /// Creates a reflog without references.
    pub fn new(name: RepositoryName) -> Self {
        Self { name, references: Vec::new() }
    }

    /// Continues a reflog.
    pub fn continuing(reflog: &Reflog) -> Self {
        Self { name: reflog.name().clone(), references: reflog.references().to_vec() }
    }

    /// Adds a root object, or updates its time.
    pub fn add(&mut self, object: ObjectName, timestamp: UnixTime) {
        self.references.retain(|known| known.object.hash != object.hash);
        self.references.push(Reference { object, timestamp });
    }

    /// Returns whether a root object is listed.
    pub fn lists(&self, hash: &ContentHash) -> bool {
        self.references.iter().any(|known| known.object.hash == *hash)
    }

    /// Removes root objects.
    pub fn remove(&mut self, hashes: &HashSet<ContentHash>) {
        self.references.retain(|known| !hashes.contains(&known.object.hash));
    }

    /// Returns the bytes of the database; objects that reflogs don't list, such as files, are left out.
    pub fn finish(mut self) -> Vec<u8> {
        self.references.sort_by_key(|reference| (reference.timestamp, reference.object));
        let rows: Vec<_> = self.references.iter().filter_map(reference_row).collect();
        let mut database = DatabaseBuilder::new();
        database.keyed_table("refs", REFS, "sqlite_autoindex_refs_1", &rows);
        let name = self.name.as_str();
        let pairs = [("schema", "1.0"), ("schema_revision", "0"), ("fqrn", name)];
        let rows: Vec<_> =
            pairs.map(|(key, value)| vec![Value::text(key.as_bytes()), Value::text(value.as_bytes())]).into();
        database.keyed_table("properties", PROPERTIES, "sqlite_autoindex_properties_1", &rows);
        database.finish()
    }
}

const REFS: &str =
    "CREATE TABLE refs (hash TEXT, type INTEGER, timestamp INTEGER, CONSTRAINT pk_refs PRIMARY KEY (hash))";

fn reference_row(reference: &Reference) -> Option<Vec<Value<'static>>> {
    let kind = match reference.object.kind {
        ObjectKind::Catalog => 0,
        ObjectKind::Certificate => 1,
        ObjectKind::History => 2,
        ObjectKind::Metainfo => 3,
        ObjectKind::File | ObjectKind::Chunk | ObjectKind::Micro => return None,
    };
    let hash = reference.object.hash.to_string().into_bytes();
    Some(vec![Value::text(hash), Value::Integer(kind), Value::Integer(reference.timestamp.0)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashAlgorithm;

    #[test]
    fn references_are_read_back() {
        let name = RepositoryName::parse("a.test").unwrap();
        let object =
            |text: &str, kind| ObjectName::new(ContentHash::of(HashAlgorithm::Rmd160, text.as_bytes()), kind);
        let mut draft = ReflogDraft::new(name.clone());
        draft.add(object("c", ObjectKind::Catalog), UnixTime(10));
        draft.add(object("x", ObjectKind::Certificate), UnixTime(11));
        draft.add(object("f", ObjectKind::File), UnixTime(11));
        draft.add(object("c", ObjectKind::Catalog), UnixTime(12));
        let reflog = Reflog::parse(&draft.finish()).unwrap();
        assert_eq!(reflog.name(), &name);
        let mut again = ReflogDraft::continuing(&reflog);
        again.add(object("h", ObjectKind::History), UnixTime(13));
        again.add(object("m", ObjectKind::Metainfo), UnixTime(14));
        let bytes = again.finish();
        let times: Vec<_> =
            Reflog::parse(&bytes).unwrap().references().iter().map(|r| r.timestamp.0).collect();
        assert_eq!(times, [14, 13, 12, 11]);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        let database = rusqlite::Connection::open(file.path()).unwrap();
        let verdict: String = database.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(verdict, "ok");
    }
}
