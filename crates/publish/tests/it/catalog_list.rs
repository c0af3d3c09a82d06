//! Lists of catalogs, as `esker repo catalogs` prints them.

use std::fs;

use esker_format::name::RepositoryName;
use esker_repository::{ListedCatalog, RepositoryError, Revisions};

use crate::workshop::{NAME, Workshop, now};

#[test]
fn catalogs_are_listed_with_sizes_and_entries() {
    let workshop = Workshop::new();
    let at = |name: &str| workshop.source().join(name);
    fs::create_dir_all(at("a/nested/deeper")).unwrap();
    fs::create_dir_all(at("b")).unwrap();
    for name in ["a/nested", "a/nested/deeper", "b"] {
        fs::write(at(name).join(".cvmfscatalog"), b"").unwrap();
        fs::write(at(name).join("file"), b"").unwrap();
    }
    workshop.publish();
    let name = RepositoryName::parse(NAME).unwrap();
    let revisions =
        Revisions::open(&workshop.root(), &name, &workshop.keys().public().unwrap(), now()).unwrap();
    let list = |below: &str| {
        let mut all: Vec<ListedCatalog> = Vec::new();
        let root = revisions.head().unwrap().root;
        let add = &mut |catalog| -> Result<(), RepositoryError> {
            all.push(catalog);
            Ok(())
        };
        revisions.visit_catalogs(root, below.as_bytes(), add).map(|()| all)
    };
    let all = list("/").unwrap();
    let short = |catalog: &ListedCatalog| {
        (catalog.path.clone(), catalog.depth, catalog.entries, catalog.entries_below, catalog.nested)
    };
    let expected = [
        ("/".to_owned(), 0, 4, 10, 2),
        ("/a/nested".to_owned(), 1, 4, 3, 1),
        ("/a/nested/deeper".to_owned(), 2, 3, 0, 0),
        ("/b".to_owned(), 1, 3, 0, 0),
    ];
    assert_eq!(all.iter().map(short).collect::<Vec<_>>(), expected);
    let findings = workshop.check();
    for catalog in &all {
        assert_eq!(
            findings.catalogs[catalog.path.trim_end_matches('/')],
            catalog.entries,
            "{}",
            catalog.path
        );
        assert!(catalog.size > 0 && catalog.hash.len() == 40);
    }
    let paths =
        |below: &str| list(below).unwrap().into_iter().map(|catalog| catalog.path).collect::<Vec<_>>();
    assert_eq!(paths("/a"), ["/a/nested", "/a/nested/deeper"]);
    assert_eq!(paths("/a/nested/deeper/"), ["/a/nested/deeper"]);
    assert_eq!(paths("/a/nested/file"), [""; 0]);
    let absent = list("/a/other").unwrap_err();
    assert!(matches!(&absent, RepositoryError::NoPath(path) if path == "/a/other"), "{absent}");
}
