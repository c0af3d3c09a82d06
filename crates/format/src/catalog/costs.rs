//! Pages that an operation reads in small and large catalogs.

use crate::catalog::{Catalog, Chunk, Counters, NestedCatalog, PathKey};
use crate::hash::{ContentHash, HashAlgorithm};
use crate::sqlite::pages_read;
use crate::write::catalog::{CatalogHeader, CatalogWriter, Entry};

/// Entries of each directory.
const FOLDER: u64 = 100;

fn hash(number: u64) -> ContentHash {
    ContentHash::of(HashAlgorithm::Sha1, &number.to_le_bytes())
}

/// Writes a catalog with this many files in folders of a hundred, a nested catalog for each hundredth folder, and chunks for each
/// tenth file.
fn written(files: u64) -> Catalog<Vec<u8>> {
    let mut writer = CatalogWriter::new();
    let parent = PathKey::of(b"");
    writer.push(PathKey::of(b""), PathKey::from_digest([0; 16]), Entry::of_mode(0o040_755));
    for folder in 0..files / FOLDER {
        let path = format!("/{folder}");
        let key = PathKey::of(path.as_bytes());
        writer.push(key, parent, Entry { name: path.as_bytes()[1..].to_vec(), ..Entry::of_mode(0o040_755) });
        for file in 0..FOLDER {
            let name = file.to_string().into_bytes();
            let number = folder * FOLDER + file;
            let chunk = |offset| Chunk { hash: hash(number + offset), offset, size: 10 };
            let chunks = if file % 10 == 0 { (0..4).map(|at| chunk(at * 10)).collect() } else { Vec::new() };
            let entry = Entry {
                name: name.clone(),
                size: 40,
                hash: Some(hash(number)),
                chunks,
                ..Entry::of_mode(0o100_644)
            };
            writer.push(PathKey::child(path.as_bytes(), &name), key, entry);
        }
        if folder % 100 == 0 {
            writer.push_nested(NestedCatalog {
                path: path.into_bytes(),
                hash: Some(hash(folder)),
                size: Some(1000),
                bind: false,
            });
        }
    }
    Catalog::open(writer.finish(&CatalogHeader::default(), Counters::default()).bytes).unwrap()
}

/// A page has dozens to hundreds of entries, so a thousand times as many cost one or two pages more in each tree that a search goes
/// through: a listing searches for each of its entries.
///
/// > P18: The pages of a catalog that finding an entry, listing a directory, or reading chunks, attributes and counters takes grow with the depth of its trees: by at most two for each search from a thousand to a million entries.
#[test]
fn page_reads_depend_on_tree_depth_alone() {
    let (small, large) = (written(1_000), written(1_000_000));
    type Operation = (&'static str, fn(&Catalog<Vec<u8>>), u64);
    let operations: [Operation; 8] = [
        ("open", |catalog| drop(Catalog::open(catalog.database.bytes().to_vec()).unwrap()), 0),
        ("find", |catalog| assert!(catalog.find(PathKey::of(b"/7/50")).unwrap().is_some()), 6),
        ("find nothing", |catalog| assert!(catalog.find(PathKey::of(b"/7/absent")).unwrap().is_none()), 3),
        (
            "attributes",
            |catalog| assert_eq!(catalog.find(PathKey::of(b"/7/50")).unwrap().unwrap().xattrs().len(), 0),
            6,
        ),
        (
            "list",
            |catalog| assert_eq!(catalog.children(PathKey::of(b"/7")).unwrap().count() as u64, FOLDER),
            FOLDER + 16,
        ),
        (
            "chunks",
            |catalog| {
                let file = catalog.find(PathKey::of(b"/7/50")).unwrap().unwrap();
                assert_eq!(catalog.chunks(&file).unwrap().len(), 4);
            },
            18,
        ),
        ("nested catalog", |catalog| assert!(catalog.nested_at(b"/0").unwrap().is_some()), 6),
        ("counters", |catalog| assert_eq!(catalog.statistics().unwrap().own.chunks % 40, 0), 0),
    ];
    for (name, run, more) in operations {
        let pages = [&small, &large].map(|catalog| pages_read::by(|| run(catalog)));
        assert!(
            pages[0] > 0 && pages[1] <= pages[0] + more,
            "{name}: {pages:?} pages, at most {more} more allowed"
        );
    }
    // The count itself: a scan reads all pages.
    let pages =
        [&small, &large].map(|catalog| pages_read::by(|| assert!(catalog.scan().unwrap().count() > 1000)));
    assert!(pages[1] > 500 * pages[0], "{pages:?}");
}
