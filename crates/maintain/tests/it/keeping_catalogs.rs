//! Nested catalogs stay as they are unless markers or rules say otherwise, and rules count for whatever arrives.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use esker_format::catalog::Catalog;
use esker_publish::{CopyTree, Ingest, Owner, Publish, PublishError};
use tar::{Builder, EntryType, Header};

use crate::corpus::World;
use crate::upper::publish_upper;
use crate::upper_attributes::transaction;
use crate::workshop::{Workshop, now, options};

/// Unpacks an archive of these files, and makes its target a nested catalog if wanted.
fn ingest(
    workshop: &Workshop,
    target: &str,
    nested: bool,
    files: &[(&str, &str)],
) -> Result<(), PublishError> {
    let mut archive = Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_mtime(1_600_000_000);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, path, content.as_bytes()).unwrap();
    }
    let path = workshop.folder.path().join("archive.tar");
    fs::write(&path, archive.into_inner().unwrap()).unwrap();
    let mut progress = |_| ();
    let mut ingest = Ingest {
        archive: path,
        target: target.as_bytes().to_vec(),
        delete: Vec::new(),
        owner: Owner::default(),
        nested,
        options: options(&mut progress),
    };
    ingest.run(&workshop.open(), now()).map(drop)
}

fn catalogs(workshop: &Workshop) -> BTreeSet<String> {
    let findings = workshop.check();
    let mountpoints = findings.assert_clean().catalogs.keys().cloned();
    mountpoints.filter(|mountpoint| !matches!(mountpoint.as_str(), "" | "/")).collect()
}

fn set(paths: &[&str]) -> BTreeSet<String> {
    paths.iter().map(|path| (*path).to_owned()).collect()
}

/// > K7: A nested catalog stays as it is until its marker is removed, or until a new rule of `.cvmfsdirtab` forbids it; the balance joins only those that it split off.
#[test]
fn catalogs_of_ingested_trees_stay() {
    let workshop = Workshop::with(|new| new.settings.balance = None);
    workshop.publish();
    ingest(&workshop, "/sw", true, &[("a/one", "1"), ("a/two", "2")]).unwrap();
    ingest(&workshop, "/sw/a/deep", true, &[("x/three", "3")]).unwrap();
    let both = set(&["/sw", "/sw/a/deep"]);
    assert_eq!(catalogs(&workshop), both);
    publish_upper(&workshop, |upper| {
        fs::create_dir_all(upper.join("sw/a/deep/x")).unwrap();
        fs::write(upper.join("sw/a/deep/x/three"), "changed").unwrap();
    })
    .unwrap();
    assert_eq!(catalogs(&workshop), both, "a transaction inside");
    let mut progress = |_| ();
    let (from, to) = (b"/sw".to_vec(), b"/copy".to_vec());
    CopyTree { from, to, options: options(&mut progress) }.run(&workshop.open(), now()).unwrap();
    publish_upper(&workshop, |upper| {
        fs::create_dir_all(upper.join("copy/a/deep/x")).unwrap();
        fs::write(upper.join("copy/a/deep/x/four"), "4").unwrap();
    })
    .unwrap();
    let all = set(&["/copy", "/copy/a/deep", "/sw", "/sw/a/deep"]);
    assert_eq!(catalogs(&workshop), all, "a copy, and a transaction in it");
    let source = crate::workshop::folder(&[("deep/x/three", "again"), ("one", "1")]);
    workshop.try_publish(source.path(), "/sw/a").unwrap();
    assert_eq!(catalogs(&workshop), all, "a folder without markers");
    // A rule that goes leaves its catalogs, and one that forbids them doesn't.
    let rules = |text: &str| {
        publish_upper(&workshop, |upper| fs::write(upper.join(".cvmfsdirtab"), text).unwrap()).unwrap();
        catalogs(&workshop)
    };
    let more = set(&["/copy", "/copy/a", "/copy/a/deep", "/sw", "/sw/a", "/sw/a/deep"]);
    assert_eq!(rules("/*/a\n"), more);
    assert_eq!(rules("# none\n"), more);
    assert_eq!(rules("!*/a\n"), all);
    assert_eq!(rules("!*/a\n!/copy/none\n"), all);
    // The marker of a user's own goes as the user wants.
    publish_upper(&workshop, |upper| {
        fs::create_dir_all(upper.join("sw")).unwrap();
        whiteout(&upper.join("sw/.cvmfscatalog"));
    })
    .unwrap();
    assert_eq!(catalogs(&workshop), set(&["/copy", "/copy/a/deep", "/sw/a/deep"]));
}

fn whiteout(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
}

/// > K8: The rules of `.cvmfsdirtab` count for the whole tree at each publish, ingest, copy and transaction: for directories that one brings, for those that an earlier version left without a catalog, and for all when the rules change, also when an archive brings them.
#[test]
fn rules_count_for_whatever_arrives() {
    let workshop = Workshop::with(|new| new.settings.balance = None);
    fs::write(workshop.source().join(".cvmfsdirtab"), "/sw/*\n!*/skip\n").unwrap();
    workshop.publish();
    ingest(&workshop, "/sw", false, &[("a/one", "1"), ("b/x/two", "2"), ("skip/three", "3")]).unwrap();
    assert_eq!(catalogs(&workshop), set(&["/sw/a", "/sw/b"]));
    let mut progress = |_| ();
    let (from, to) = (b"/sw/b/x".to_vec(), b"/sw/copy".to_vec());
    CopyTree { from, to, options: options(&mut progress) }.run(&workshop.open(), now()).unwrap();
    assert_eq!(catalogs(&workshop), set(&["/sw/a", "/sw/b", "/sw/copy"]));
    // The rules of the archive count for what was there, too.
    ingest(&workshop, "/", false, &[(".cvmfsdirtab", "/sw/*/x\n/sw/a\n"), ("sw/c/x/four", "4")]).unwrap();
    assert_eq!(catalogs(&workshop), set(&["/sw/a", "/sw/b", "/sw/b/x", "/sw/c/x", "/sw/copy"]));
    let error = ingest(&workshop, "/", false, &[(".cvmfsdirtab", "relative\n")]).unwrap_err();
    assert!(matches!(error, PublishError::Dirtab { line: 1, .. }), "{error}");
}

/// > K8: The rules of `.cvmfsdirtab` count for the whole tree at each publish, ingest, copy and transaction: for directories that one brings, for those that an earlier version left without a catalog, and for all when the rules change, also when an archive brings them.
#[test]
fn the_next_publish_makes_catalogs_that_an_earlier_version_left_out() {
    let forgotten = || {
        let world = World::new("rules that an earlier version didn't follow");
        transaction(&world, |upper| {
            let rules = "/dir/s*\n/other\n/absent/*\n/file\n!/dir/skip\n";
            fs::write(upper.join(".cvmfsdirtab"), "#".repeat(rules.len())).unwrap();
            fs::write(upper.join("rules"), rules).unwrap();
        })
        .unwrap();
        world.change_catalog(
            "",
            "UPDATE catalog SET (hash, size) = (SELECT hash, size FROM catalog WHERE name = 'rules')
             WHERE name = '.cvmfsdirtab'",
        );
        assert_eq!(nested(&world), ["/nested", "/nested/deep"], "they are missing");
        world
    };
    let all = ["/dir/sub", "/nested", "/nested/deep", "/other"];
    let world = forgotten();
    transaction(&world, |upper| fs::write(upper.join("unrelated"), "new").unwrap()).unwrap();
    assert_eq!(nested(&world), all, "a transaction");
    assert_eq!(findings(&world), [""; 0]);
    let world = forgotten();
    let mut progress = |_| ();
    let (from, to) = (b"/nested/deep".to_vec(), b"/copy".to_vec());
    CopyTree { from, to, options: options(&mut progress) }.run(&world.open().unwrap(), now()).unwrap();
    assert_eq!(nested(&world), [&["/copy"], &all[..]].concat(), "a copy");
    let world = forgotten();
    let source = crate::workshop::folder(&[("one", "1")]);
    let mut progress = |_| ();
    let mut publish = Publish {
        source: source.path().to_owned(),
        target: b"/elsewhere".to_vec(),
        options: options(&mut progress),
    };
    publish.run(&world.open().unwrap(), now()).unwrap();
    assert_eq!(nested(&world), all, "a publish of another directory");
    assert_eq!(findings(&world), [""; 0]);
}

/// Returns the mountpoints of all nested catalogs.
fn nested(world: &World) -> Vec<String> {
    let (mut all, mut waiting) = (Vec::new(), vec![String::new()]);
    while let Some(mountpoint) = waiting.pop() {
        let catalog = Catalog::open(world.plain(&world.catalog(&mountpoint))).unwrap();
        let paths =
            catalog.nested().unwrap().into_iter().map(|nested| String::from_utf8(nested.path).unwrap());
        waiting.extend(paths);
        all.push(mountpoint);
    }
    all.retain(|mountpoint| !mountpoint.is_empty());
    all.sort();
    all
}

fn findings(world: &World) -> Vec<String> {
    world.check().findings.iter().map(|finding| format!("{finding:?}")).collect()
}
