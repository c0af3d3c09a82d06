//! Compares every revision of every fixture with its listing, entry by entry.

use std::collections::BTreeMap;

use esker_format::catalog::{Catalog, EntryKind, Flags, NestedCatalog, PathKey, Row, symlink};
use esker_format::compress::{Compression, decompress};
use esker_format::hash::ContentHash;
use esker_format::history::History;
use esker_format::manifest::Manifest;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::reflog::Reflog;
use esker_format::time::UnixTime;
use esker_testkit::fixture::{self, Fixture, Repository, TAGS};
use esker_testkit::listing::Entry;
use esker_testkit::object::sha256;

/// Fetches an object of a repository, verifies its hash and decompresses it.
fn fetch(repository: &Repository, name: ObjectName, compression: Compression, size: Option<u64>) -> Vec<u8> {
    let stored = repository.read(&name.path());
    assert_eq!(ContentHash::of(name.hash.algorithm(), &stored), name.hash, "{name}");
    decompress(&stored, compression, size, 1 << 30).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn history(repository: &Repository) -> History {
    let manifest = Manifest::parse(&repository.read(".cvmfspublished")).unwrap();
    let name = ObjectName::new(manifest.history.unwrap(), ObjectKind::History);
    History::parse(&fetch(repository, name, Compression::Zlib, None)).unwrap()
}

/// Reads a revision as a client does: from the root catalog down, directory by directory.
struct Revision<'r> {
    repository: &'r Repository,
    read: BTreeMap<Vec<u8>, Entry>,
}

impl Revision<'_> {
    fn read(repository: &Repository, root: ContentHash, size: Option<u64>) -> BTreeMap<Vec<u8>, Entry> {
        let mut revision = Revision { repository, read: BTreeMap::new() };
        revision.walk_catalog(b"", root, size);
        revision.read
    }

    fn walk_catalog(&mut self, mountpoint: &[u8], hash: ContentHash, size: Option<u64>) {
        let name = ObjectName::new(hash, ObjectKind::Catalog);
        let catalog = Catalog::open(fetch(self.repository, name, Compression::Zlib, size)).unwrap();
        assert_eq!(catalog.properties().root_prefix, mountpoint);
        let top = catalog.find(PathKey::of(mountpoint)).unwrap().expect("a catalog has its own directory");
        assert_eq!(top.flags().has(Flags::NESTED_ROOT), !mountpoint.is_empty());
        if mountpoint.is_empty() {
            assert_eq!(top.parent(), PathKey::NONE);
            self.add(&catalog, mountpoint, &top);
        }
        check_counters(&catalog);
        let nested = catalog.nested().unwrap();
        self.walk_directory(&catalog, &nested, mountpoint);
    }

    fn walk_directory(&mut self, catalog: &Catalog<Vec<u8>>, nested: &[NestedCatalog], directory: &[u8]) {
        for row in catalog.children(PathKey::of(directory)).unwrap() {
            let row = row.unwrap();
            let path = [directory, b"/", row.name()].concat();
            assert_eq!(row.key(), PathKey::of(&path));
            assert_eq!(row.key(), PathKey::child(directory, row.name()));
            assert_eq!(row.parent(), PathKey::of(directory));
            let found = catalog.find(row.key()).unwrap().expect("a listed entry is found");
            assert_eq!(found.rowid(), row.rowid());
            self.add(catalog, &path, &row);
            if row.kind() != EntryKind::Directory {
                continue;
            }
            let mounted = catalog.nested_at(&path).unwrap();
            assert_eq!(mounted.as_ref(), nested.iter().find(|nested| nested.path == path));
            assert_eq!(mounted.is_some(), row.flags().has(Flags::NESTED_MOUNTPOINT));
            match mounted {
                Some(nested) => self.walk_catalog(&path, nested.hash.unwrap(), nested.size),
                None => self.walk_directory(catalog, nested, &path),
            }
        }
    }

    fn add(&mut self, catalog: &Catalog<Vec<u8>>, path: &[u8], row: &Row<'_>) {
        let path = if path.is_empty() { b"/".to_vec() } else { path.to_vec() };
        let is_dir = row.kind() == EntryKind::Directory;
        let target =
            (row.kind() == EntryKind::Symlink).then(|| symlink::expand(row.symlink(), |_| None).into_owned());
        let content = (row.kind() == EntryKind::File).then(|| self.content(catalog, row));
        let entry = Entry {
            path: path.clone(),
            mode: row.mode(),
            mtime_ns: row.mtime() * 1_000_000_000 + i64::from(row.mtime_ns().unwrap_or(0)),
            uid: row.uid().unwrap(),
            gid: row.gid().unwrap(),
            size: (!is_dir).then(|| target.as_ref().map_or(row.size(), |target| target.len() as u64)),
            nlink: (!is_dir).then(|| u64::from(row.link_count())),
            rdev: row.device(),
            target,
            sha256: content.map(|content| sha256(&content)),
            xattrs: row.xattrs().iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect(),
        };
        assert!(self.read.insert(path, entry).is_none(), "an entry is listed once");
    }

    fn content(&self, catalog: &Catalog<Vec<u8>>, row: &Row<'_>) -> Vec<u8> {
        let compression = row.compression().unwrap();
        if !row.flags().has(Flags::CHUNKED) {
            let name = ObjectName::new(row.hash().unwrap(), ObjectKind::File);
            return fetch(self.repository, name, compression, Some(row.size()));
        }
        let chunks = catalog.chunks(row).unwrap();
        assert!(chunks.len() > 1);
        let pieces = chunks.iter().map(|chunk| {
            let name = ObjectName::new(chunk.hash, ObjectKind::Chunk);
            fetch(self.repository, name, compression, Some(chunk.size))
        });
        pieces.collect::<Vec<_>>().concat()
    }
}

/// Compares the counters of a catalog with the sums of its rows.
fn check_counters(catalog: &Catalog<Vec<u8>>) {
    let own = catalog.statistics().unwrap().own;
    let rows: Vec<_> = catalog.scan().unwrap().map(Result::unwrap).collect();
    let count = |kind| rows.iter().filter(|row| row.kind() == kind).count() as u64;
    let files = || rows.iter().filter(|row| row.kind() == EntryKind::File);
    assert_eq!(own.regular, count(EntryKind::File));
    assert_eq!(own.dir, count(EntryKind::Directory));
    assert_eq!(own.symlink, count(EntryKind::Symlink));
    assert_eq!(own.entries(), rows.len() as u64);
    assert_eq!(own.file_size, files().map(Row::size).sum::<u64>());
    assert_eq!(own.xattr, rows.iter().filter(|row| row.has_xattrs()).count() as u64);
    let chunked: Vec<_> = files().filter(|row| row.flags().has(Flags::CHUNKED)).collect();
    assert_eq!(own.chunked, chunked.len() as u64);
    assert_eq!(own.chunks, chunked.iter().map(|row| catalog.chunks(row).unwrap().len() as u64).sum::<u64>());
    assert_eq!(own.nested, catalog.nested().unwrap().len() as u64);
    let in_order: Vec<_> = catalog.rows().unwrap().map(|row| row.unwrap().key()).collect();
    assert!(in_order.is_sorted() && in_order.len() == rows.len());
}

fn check_every_revision(fixture: Fixture) {
    let repository = fixture.unpack();
    let history = history(&repository);
    check_history(&repository, &history);
    check_reflog(&repository);
    for tag in TAGS {
        let known = history.find(tag).unwrap();
        let read = Revision::read(&repository, known.root_catalog, known.size);
        let expected = fixture.listing(tag);
        assert!(expected.len() > 100, "the listing of {tag} is not empty");
        for entry in &expected {
            assert_eq!(read.get(&entry.path), Some(entry), "{} of {tag}", entry.path.escape_ascii());
        }
        let hidden = read.keys().filter(|path| !expected.iter().any(|entry| entry.path == **path));
        assert_eq!(hidden.count(), 0, "nothing else is in {tag}");
    }
}

#[test]
fn the_sha1_fixture_equals_its_listing() {
    check_every_revision(fixture::FULL);
}

#[test]
fn the_ripemd_fixture_equals_its_listing() {
    check_every_revision(fixture::RMD);
}

#[test]
fn the_shake_fixture_equals_its_listing() {
    check_every_revision(fixture::SHAKE);
}

/// Compares the newest tags with the manifest, and every tag with SQLite's result.
fn check_history(repository: &Repository, history: &History) {
    let manifest = Manifest::parse(&repository.read(".cvmfspublished")).unwrap();
    assert_eq!(history.name().as_str(), repository.fixture().name());
    let newest = history.at(manifest.timestamp).unwrap();
    assert_eq!(newest.root_catalog, manifest.root_catalog);
    assert_eq!(newest.revision, manifest.revision);
    assert_eq!(newest.size, Some(manifest.root_catalog_size));
    assert_eq!(history.branch_head("").map(|tag| tag.root_catalog), Some(manifest.root_catalog));
    assert!(history.at(UnixTime(0)).is_none());
    assert_eq!(history.schema_revision(), 3);
    assert_eq!(history.branches().len(), 1);
    assert!(history.tags().is_sorted_by_key(|tag| std::cmp::Reverse(tag.timestamp)));
    for tag in TAGS {
        let (known, ours) = (repository.tag(tag), history.find(tag).unwrap());
        assert_eq!(ours.root_catalog.to_string(), known.root);
        assert_eq!((ours.revision, ours.timestamp.0), (known.revision, known.timestamp as i64));
    }
}

fn check_reflog(repository: &Repository) {
    let manifest = Manifest::parse(&repository.read(".cvmfspublished")).unwrap();
    let reflog = Reflog::parse(&repository.read(".cvmfsreflog")).unwrap();
    assert_eq!(reflog.name().as_str(), repository.fixture().name());
    for (hash, kind) in [
        (Some(manifest.root_catalog), ObjectKind::Catalog),
        (manifest.certificate, ObjectKind::Certificate),
        (manifest.history, ObjectKind::History),
    ] {
        let object = ObjectName::new(hash.unwrap(), kind);
        assert!(reflog.references().iter().any(|reference| reference.object == object), "{object}");
    }
    let newest = reflog.references()[0].timestamp;
    assert!(reflog.before(newest).count() < reflog.references().len());
}
