//! What publishers leave out, and the owners that they publish with.

use std::fs;
use std::path::Path;

use esker_publish::{Filter, Ingest, Owner, OwnerMap, Publish, Report};

use crate::workshop::{NAME, Workshop, now, options};

fn publish(workshop: &Workshop, filter: &Filter) -> Report {
    let mut progress = |_| ();
    let mut options = options(&mut progress);
    options.filter.clone_from(filter);
    let mut publish = Publish { source: workshop.source(), target: Vec::new(), options };
    let report = publish.run(&workshop.open(), now()).unwrap();
    workshop.check().assert_clean();
    report
}

fn paths(workshop: &Workshop) -> Vec<String> {
    let findings = workshop.check();
    findings.tree.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
}

fn ignoring(rules: &str) -> Filter {
    let mut filter = Filter::default();
    filter.ignore(rules.as_bytes(), Path::new("rules")).unwrap();
    filter
}

#[test]
fn ignored_paths_stay_as_they_are_published() {
    let workshop = Workshop::new();
    let at = |name: &str| workshop.source().join(name);
    fs::create_dir(at("d")).unwrap();
    for name in ["d/a.o", "d/a.c", "b.o"] {
        fs::write(at(name), name).unwrap();
    }
    publish(&workshop, &Filter::default());
    fs::write(at("d/a.o"), "changed").unwrap();
    fs::write(at("d/c.o"), "new").unwrap();
    fs::remove_file(at("b.o")).unwrap();
    fs::write(at("d/a.c"), "changed, too").unwrap();
    let report = publish(&workshop, &ignoring("*.o"));
    assert_eq!((report.differences.changed.files, report.differences.removed.total()), (1, 0));
    assert_eq!(report.files_read, 1);
    assert_eq!(paths(&workshop), ["/", "/b.o", "/d", "/d/a.c", "/d/a.o"]);
    // The rules in the source count as well.
    fs::write(at(".eskerignore"), "/d/\n").unwrap();
    fs::remove_file(at("d/a.c")).unwrap();
    publish(&workshop, &Filter::default());
    assert_eq!(paths(&workshop), ["/", "/.eskerignore", "/d", "/d/a.c", "/d/a.o"]);
}

#[test]
fn archives_are_filtered_with_all_below_an_ignored_directory() {
    let workshop = Workshop::new();
    let mut archive = tar::Builder::new(Vec::new());
    for path in ["./build/x/y", "src/a", "src/b.o"] {
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        header.set_mode(0o644);
        header.set_uid(5);
        header.set_gid(6);
        archive.append_data(&mut header, path, &[][..]).unwrap();
    }
    let path = workshop.folder.path().join("a.tar");
    fs::write(&path, archive.into_inner().unwrap()).unwrap();
    let mut progress = |_| ();
    let mut options = options(&mut progress);
    options.filter = ignoring("build/\n*.o\n");
    options.filter.uids = OwnerMap::parse(b"5 50\n", Path::new("users")).unwrap();
    let target = b"/in".to_vec();
    let (delete, owner) = (Vec::new(), Owner::default());
    let mut ingest = Ingest { archive: path, target, delete, owner, nested: false, options };
    ingest.run(&workshop.open(), now()).unwrap();
    assert_eq!(paths(&workshop), ["/", "/in", "/in/src", "/in/src/a"]);
    let entry = &workshop.check().tree[&b"/in/src/a"[..]];
    assert_eq!((entry.uid, entry.gid), (50, 6));
}

#[test]
fn owners_are_published_as_the_map_says() {
    let workshop = Workshop::new();
    fs::write(workshop.source().join("f"), "").unwrap();
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut filter = Filter::default();
    filter.uids = OwnerMap::parse(format!("{uid} 1234\n").as_bytes(), Path::new("users")).unwrap();
    publish(&workshop, &filter);
    let findings = workshop.check();
    for path in ["/", "/f"] {
        let entry = &findings.tree[path.as_bytes()];
        assert_eq!((entry.uid, entry.gid), (1234, gid), "{path}");
    }
    assert!(!publish(&workshop, &filter).published);
}

/// > U2: A source folder that contains a private key from the folder of the keys, or the repository's storage or state, is refused by name, and nothing is published; what `--ignore` leaves out may be there.
#[test]
fn private_keys_and_the_storage_are_not_published() {
    let workshop = Workshop::new();
    let at = |name: &str| workshop.source().join(name);
    fs::create_dir(at("d")).unwrap();
    let refused = |source: &Path| workshop.try_publish(source, "").unwrap_err().to_string();
    // Whatever the name is: the file is the same.
    for (key, name) in [("masterkey", "d/notes.txt"), ("key", "d/other")] {
        fs::hard_link(workshop.keys().folder().join(format!("{NAME}.{key}")), at(name)).unwrap();
        let said = refused(&workshop.source());
        assert!(said.contains(name) && said.contains("is a private key"), "{said}");
        fs::remove_file(at(name)).unwrap();
    }
    fs::write(at("d/public"), fs::read(workshop.keys().public_key_file()).unwrap()).unwrap();
    let said = refused(workshop.folder.path());
    assert!(said.contains(NAME) && said.contains("is the storage"), "{said}");
    for inside in ["", "data", "data/00"] {
        let said = refused(&workshop.root().join(inside));
        assert!(said.contains(inside) && said.contains("is the storage"), "{said}");
    }
    assert_eq!(paths(&workshop), ["/"]);
    // What is left out isn't published, so it may be there.
    let mut progress = |_| ();
    let mut options = options(&mut progress);
    options.filter = ignoring(&format!("/{NAME}/\n"));
    let source = workshop.folder.path().to_owned();
    Publish { source, target: Vec::new(), options }.run(&workshop.open(), now()).unwrap();
    assert_eq!(paths(&workshop), ["/", "/source", "/source/d", "/source/d/public"]);
}
