//! What a catalog holds and this version doesn't understand survives each commit, or the commit is refused.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use esker_format::catalog::{Catalog, EntryKind, PathKey};
use esker_format::hash::ContentHash;
use esker_format::name::RepositoryName;
use esker_format::object::{ObjectKind, ObjectName};
use esker_maintain::{FindingKind, Replicate};
use esker_publish::{CopyTree, Ingest, Owner, Publish, PublishError, Rollback, TagRequest};
use esker_repository::{BranchRequest, RepositoryError};

use crate::corpus::World;
use crate::upper::publish_upper_to;
use crate::workshop::{NAME, now, options, shared_keys};

/// Lists that no version of the reference's reader decodes, and two that it does, in a form that no Esker writes.
const LISTS: [(&str, &str, &[u8]); 6] = [
    ("", "file", b"\x09unknown"),
    ("", "dir", b"\x03\x01\x02\x03"),
    ("", "new", b"\x01\x00\x01\x01ax"),
    ("", "link", b"\x02\x01\x06\x01\x00user.axjunk"),
    ("/nested", "inner", b"\x09"),
    ("/nested/deep", "f", b"\x02\x00\x00\x00\x06\x00\x01\x00\x00\x00user.bx\x06\x00\x01\x00\x00\x00user.ax"),
];
/// A flag that no publisher knows.
const FLAG: u64 = 1 << 40;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A repository whose catalogs have lists, flags, properties and counters of another publisher.
fn world(name: &str) -> World {
    let world = World::new(name);
    for (mountpoint, name, list) in LISTS {
        let list = hex(list);
        let sql =
            format!("UPDATE catalog SET xattr = x'{list}', flags = flags | {FLAG} WHERE name = '{name}'");
        world.change_catalog(mountpoint, &sql);
    }
    for mountpoint in ["", "/nested", "/nested/deep"] {
        world.change_catalog(
            mountpoint,
            "UPDATE statistics SET value = (SELECT COUNT(*) FROM catalog WHERE xattr IS NOT NULL) WHERE counter = \
             'self_xattr'",
        );
    }
    world.change_catalog("/nested", "UPDATE statistics SET value = 1 WHERE counter = 'subtree_xattr'");
    world.change_catalog(
        "",
        "UPDATE statistics SET value = 2 WHERE counter = 'subtree_xattr';
         INSERT INTO properties VALUES ('colour', 'red'), ('blob', x'00ff'), ('TTL_of_another', 7);
         INSERT INTO statistics VALUES ('self_colours', 12), ('odd', -3)",
    );
    world.change_catalog(
        "/nested",
        "INSERT INTO properties VALUES ('depth', 'one'); INSERT INTO statistics VALUES ('self_colours', 5)",
    );
    world
}

type Lists = BTreeMap<String, (Vec<u8>, bool)>;

/// The stored lists of all entries, and whether they have the unknown flag.
fn lists(world: &World) -> Lists {
    lists_of(world, world.head().root_catalog)
}

fn lists_of(world: &World, root: ContentHash) -> Lists {
    let mut found = BTreeMap::new();
    let mut catalogs = vec![(String::new(), root)];
    while let Some((mountpoint, hash)) = catalogs.pop() {
        let catalog = Catalog::open(world.plain(&ObjectName::new(hash, ObjectKind::Catalog))).unwrap();
        for nested in catalog.nested().unwrap() {
            catalogs.push((String::from_utf8(nested.path).unwrap(), nested.hash.unwrap()));
        }
        let mut waiting = vec![mountpoint];
        while let Some(directory) = waiting.pop() {
            for row in catalog.children(PathKey::of(directory.as_bytes())).unwrap() {
                let row = row.unwrap();
                let path = format!("{directory}/{}", String::from_utf8_lossy(row.name()));
                if let Some(list) = row.stored_xattrs() {
                    found.insert(path.clone(), (list.to_vec(), row.flags().has(FLAG)));
                }
                if row.kind() == EntryKind::Directory {
                    waiting.push(path);
                }
            }
        }
    }
    found
}

fn expected() -> Lists {
    let of = |(mountpoint, name, list): &(&str, &str, &[u8])| {
        (format!("{mountpoint}/{name}"), (list.to_vec(), true))
    };
    LISTS.iter().map(of).collect()
}

/// The unknown properties and counters of a catalog.
fn pairs(world: &World, mountpoint: &str) -> Vec<String> {
    let catalog = Catalog::open(world.plain(&world.catalog(mountpoint))).unwrap();
    let unknown = catalog.unknown_parts().unwrap();
    let mut pairs: Vec<String> = unknown.pairs_of_its_own().collect();
    pairs.sort();
    pairs
}

const ROOT_PAIRS: [&str; 5] = [
    "the counter `odd`",
    "the counter `self_colours`",
    "the property `TTL_of_another`",
    "the property `blob`",
    "the property `colour`",
];
const NESTED_PAIRS: [&str; 2] = ["the counter `self_colours`", "the property `depth`"];

fn assert_kept(world: &World, what: &str) {
    let (found, expected) = (lists(world), expected());
    for (path, list) in &expected {
        assert_eq!(found.get(path), Some(list), "{path} after {what}");
    }
    assert_eq!(pairs(world, ""), ROOT_PAIRS, "after {what}");
    let report = world.check();
    assert!(report.findings.is_empty(), "after {what}: {:#?}", report.findings);
}

fn publish(world: &World, source: &Path, target: &str, branch: Option<&str>) -> Result<(), PublishError> {
    let mut progress = |_| ();
    let mut options = options(&mut progress);
    if let Some(branch) = branch {
        options.tag = TagRequest {
            name: Some(format!("of-{branch}")),
            branch: Some(BranchRequest { name: branch.to_owned(), from: Some("v2".to_owned()) }),
            ..TagRequest::default()
        };
    }
    let mut publish = Publish { source: source.to_owned(), target: target.as_bytes().to_vec(), options };
    publish.run(&world.open().unwrap(), now()).map(drop)
}

fn small_source() -> tempfile::TempDir {
    crate::workshop::folder(&[("one", "1"), ("two/three", "3")])
}

fn copy(world: &World, from: &str, to: &str) -> Result<(), PublishError> {
    let mut progress = |_| ();
    let (from, to) = (from.as_bytes().to_vec(), to.as_bytes().to_vec());
    CopyTree { from, to, options: options(&mut progress) }.run(&world.open().unwrap(), now()).map(drop)
}

/// Publishes an upper folder that `change` fills.
fn transaction(world: &World, change: impl FnOnce(&Path)) -> Result<(), PublishError> {
    publish_upper_to(&world.root(), &world.open().unwrap(), change).map(drop)
}

/// > K1: What a catalog holds that this version doesn't know (lists of extended attributes in another form, flags, properties, counters) is the same, byte for byte, after each publish that writes the catalog again; only an entry that gets other attributes loses such a list, and only a file that gets other content loses such flags.
#[test]
fn lists_flags_properties_and_counters_survive_every_commit() {
    let world = world("kept");
    let report = world.check();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    let told = |part: &str| report.notes.iter().any(|note| note.contains(part));
    assert!(told("4 lists of extended attributes, the first of /"), "{:#?}", report.notes);
    assert!(told("the property `colour`") && told("the counter `self_colours`"), "{:#?}", report.notes);
    assert_kept(&world, "nothing");
    let source = small_source();
    publish(&world, source.path(), "/beside", None).unwrap();
    assert_kept(&world, "a publish beside");
    // The time of the directory changes, so its own entry does.
    publish(&world, source.path(), "/dir/sub/below", None).unwrap();
    publish(&world, source.path(), "/nested/into", None).unwrap();
    assert_kept(&world, "publishes below and into");
    assert_eq!(pairs(&world, "/nested"), NESTED_PAIRS);
    publish(&world, source.path(), "/branched", Some("other")).unwrap();
    assert_kept(&world, "a publish on a branch");
    copy(&world, "/nested", "/copied").unwrap();
    assert_kept(&world, "a copy");
    let found = lists(&world);
    assert_eq!(found["/copied/inner"].0, LISTS[4].2);
    assert_eq!(found["/copied/deep/f"].0, LISTS[5].2);
    let mut progress = |_| ();
    let mut delete = Ingest {
        archive: Path::new("/dev/null").to_owned(),
        target: Vec::new(),
        delete: vec![b"/copied".to_vec()],
        nested: false,
        owner: Owner::default(),
        options: options(&mut progress),
    };
    delete.archive = empty_archive(&source);
    delete.run(&world.open().unwrap(), now()).unwrap();
    assert_kept(&world, "a deletion");
    Rollback { target: None }.run(&world.open().unwrap(), now(), &AtomicBool::new(false)).unwrap();
    assert_kept(&world, "a rollback");
    transaction(&world, |upper| {
        fs::create_dir(upper.join("dir")).unwrap();
        fs::write(upper.join("dir/added"), "added").unwrap();
    })
    .unwrap();
    assert_kept(&world, "a transaction in the directory");
    transaction(&world, |upper| {
        // As after `chmod 600 file`: copied up whole, without attributes, since the mount showed none.
        fs::write(upper.join("file"), "one").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(upper.join("file"), mode).unwrap();
    })
    .unwrap();
    assert_kept(&world, "a transaction that touches the file");
}

/// Replicas have the objects of their source, so also what no version of Esker understands in them.
#[test]
fn a_replica_has_all_lists_of_its_source() {
    let world = world("replicated");
    let mirror = esker_testkit::mirror::Mirror::serve(world.root().parent().unwrap());
    let engine = crate::replicating::engine();
    let source = crate::replicating::source(&engine, &[mirror.url(NAME)]);
    let keys = fs::read(shared_keys().join(format!("keys/{NAME}.pub"))).unwrap();
    let name = RepositoryName::parse(NAME).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join(NAME);
    let replicate = Replicate::new(name, source.describe(), source, keys, &|_| ());
    Replicate { reserve: Some(0), ..replicate }.run(&root, now()).unwrap();
    for mountpoint in ["", "/nested", "/nested/deep"] {
        let path = world.catalog(mountpoint).path();
        let copy = fs::read(root.join(&path)).unwrap();
        assert!(copy == fs::read(world.root().join(&path)).unwrap(), "the catalog of {mountpoint}");
    }
    assert_eq!(crate::replicating::head(&root).root_catalog, world.head().root_catalog);
    assert!(expected().iter().all(|(path, list)| lists(&world).get(path) == Some(list)));
}

fn empty_archive(folder: &tempfile::TempDir) -> std::path::PathBuf {
    let path = folder.path().join("empty.tar");
    fs::write(&path, [0; 1024]).unwrap();
    path
}

/// A publish of the whole tree leaves what it shows as it is, and what it changes gets the source's attributes.
#[test]
fn a_whole_publish_replaces_only_what_it_shows_differently() {
    let world = world("whole");
    let before = lists(&world);
    let source = World::source_of_template();
    let copied = tempfile::tempdir().unwrap();
    let copy = std::process::Command::new("cp").arg("-a").arg(&source).arg(copied.path()).status();
    assert!(copy.unwrap().success());
    let source = copied.path().join(source.file_name().unwrap());
    fs::write(source.join("added"), "added").unwrap();
    publish(&world, &source, "", None).unwrap();
    let after = lists(&world);
    for path in ["/file", "/dir", "/new", "/nested/inner"] {
        assert_eq!(after.get(path), before.get(path), "{path} shows no attributes in both");
    }
    // Its attributes could be read, and the source has none.
    assert_eq!((after.get("/link"), after.get("/nested/deep/f")), (None, None));
    assert_eq!(pairs(&world, ""), ROOT_PAIRS);
    assert!(world.check().findings.is_empty());
}

fn refused(outcome: Result<(), PublishError>, parts: &[&str]) {
    match outcome {
        Err(PublishError::Repository(RepositoryError::UnknownParts { parts: found, .. })) => {
            assert!(parts.iter().all(|part| found.iter().any(|found| found.contains(part))), "{found:?}");
        }
        other => panic!("not refused: {other:?}"),
    }
}

/// > K3: A publish that would lose an unknown part of a catalog (a table, a column, the properties of a catalog that would dissolve) is refused, names the parts, and changes nothing.
#[test]
fn a_commit_that_would_lose_a_part_of_a_catalog_is_refused_by_name() {
    for (sql, part) in [
        ("CREATE TABLE colours (name TEXT)", "the table `colours`"),
        ("ALTER TABLE catalog ADD COLUMN colour INTEGER", "the column `colour` of table `catalog`"),
        ("ALTER TABLE chunks ADD COLUMN colour INTEGER", "the column `colour` of table `chunks`"),
        ("ALTER TABLE nested_catalogs ADD COLUMN colour", "the column `colour` of table `nested_catalogs`"),
        ("CREATE VIEW shown AS SELECT name FROM catalog", "the view `shown`"),
        ("UPDATE properties SET value = '8' WHERE key = 'schema_revision'", "revision 8 of its schema"),
    ] {
        let world = World::new("refused");
        world.change_catalog("/nested", sql);
        let head = world.head();
        let source = small_source();
        refused(publish(&world, source.path(), "/nested/into", None), &[part]);
        refused(publish(&world, source.path(), "/nested/deep/into", None), &[part]);
        assert_eq!(world.head(), head, "nothing is published");
        // The catalog itself stays as it is.
        let before = world.catalog("/nested");
        publish(&world, source.path(), "/beside", None).unwrap();
        assert_eq!(world.catalog("/nested"), before);
        // What goes as a whole may go.
        transaction(&world, |upper| whiteout(&upper.join("nested"))).unwrap();
    }
    let world = World::new("refused hash");
    let future = format!("UPDATE nested_catalogs SET sha1 = '{}-blake9'", "ab".repeat(20));
    world.change_catalog("/nested", &future);
    let source = small_source();
    refused(
        publish(&world, source.path(), "/nested/into", None),
        &["the hash of the nested catalog /nested/deep"],
    );
    let world = World::new("refused algorithm");
    world.change_catalog("", "UPDATE catalog SET flags = flags | 0x700 WHERE name = 'file'");
    let error = publish(&world, source.path(), "/beside", None).unwrap_err();
    assert!(matches!(&error, PublishError::Row { name, .. } if name.contains("file")), "{error}");
}

/// Rows that no walk from the root of a catalog meets. Their publisher may have had its reasons, so they don't go without a word.
///
/// > K9: A publish that writes a catalog again with entries outside of its tree, nested catalogs that are mounted nowhere or chunks of no file is refused and names them; `esker check` reports them.
#[test]
fn rows_outside_of_the_tree_of_a_catalog_are_not_lost_without_a_word() {
    let key = |path: &str| {
        let (first, second) = PathKey::of(path.as_bytes()).columns();
        format!("md5path_1 = {first}, md5path_2 = {second}")
    };
    let parent = |path: &str| key(path).replace("md5path", "parent");
    let chunk = |path: &str| {
        let (first, second) = PathKey::of(path.as_bytes()).columns();
        format!("INSERT INTO chunks VALUES ({first}, {second}, 0, 5, x'{}')", "ab".repeat(20))
    };
    let hash = "ab".repeat(20);
    for (sql, part, kind) in [
        (
            format!("UPDATE catalog SET {} WHERE name = 'inner'", parent("/absent")),
            "the entry `inner` outside of the tree",
            FindingKind::RowsUnreachable,
        ),
        (
            // Its entries have the key that it should have.
            format!("UPDATE catalog SET {} WHERE name = 'inner'", parent("/nested/deep")),
            "the entry `inner` outside of the tree",
            FindingKind::RowsUnreachable,
        ),
        (
            format!("INSERT INTO nested_catalogs VALUES ('/nested/absent', '{hash}', 7)"),
            "the catalog listed for /nested/absent",
            FindingKind::NestedDangling,
        ),
        (
            format!("INSERT INTO bind_mountpoints VALUES ('/nested/inner', '{hash}', 7)"),
            "the catalog listed for /nested/inner",
            FindingKind::Bind,
        ),
        (chunk("/nested/absent"), "of no file", FindingKind::ChunksUnowned),
        // It is stored whole.
        (chunk("/nested/inner"), "of no file", FindingKind::ChunksUnowned),
    ] {
        let world = World::new("strays");
        world.change_catalog("/nested", &sql);
        let found = world.check().findings;
        assert!(found.iter().any(|finding| finding.kind == kind), "{sql}: {found:#?}");
        let head = world.head();
        let source = small_source();
        refused(publish(&world, source.path(), "/nested/into", None), &[part]);
        refused(publish(&world, source.path(), "/nested/deep/into", None), &[part]);
        refused(
            transaction(&world, |upper| {
                fs::create_dir(upper.join("nested")).unwrap();
                whiteout(&upper.join("nested/.cvmfscatalog"));
            }),
            &[part],
        );
        assert_eq!(world.head(), head, "nothing is published");
        let before = world.catalog("/nested");
        publish(&world, source.path(), "/beside", None).unwrap();
        assert_eq!(world.catalog("/nested"), before);
    }
}

/// Hides an entry of the lower layer.
fn whiteout(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
}

/// The properties and counters of a catalog go with it, so it can't dissolve into its parent.
#[test]
fn a_catalog_with_properties_of_its_own_does_not_dissolve() {
    let world = world("dissolving");
    let without_marker = |upper: &Path| {
        fs::create_dir(upper.join("nested")).unwrap();
        whiteout(&upper.join("nested/.cvmfscatalog"));
    };
    refused(transaction(&world, without_marker), &["the property `depth`", "the counter `self_colours`"]);
    assert_eq!(pairs(&world, "/nested"), NESTED_PAIRS);
    // One without them does, and its lists go to the parent's catalog.
    transaction(&world, |upper| {
        fs::create_dir_all(upper.join("nested/deep")).unwrap();
        whiteout(&upper.join("nested/deep/.cvmfscatalog"));
    })
    .unwrap();
    assert_kept(&world, "a nested catalog dissolved");
    // A new catalog takes lists over from its parent.
    transaction(&world, |upper| {
        fs::create_dir_all(upper.join("nested/deep")).unwrap();
        fs::write(upper.join("nested/deep/.cvmfscatalog"), "").unwrap();
    })
    .unwrap();
    assert_kept(&world, "a nested catalog made");
}

#[test]
fn the_balance_joins_no_catalog_that_has_properties_of_its_own() {
    let world = World::new("balance");
    for mountpoint in ["/nested", "/nested/deep"] {
        let parent = format!("'{mountpoint}'");
        let (first, second) = PathKey::of(mountpoint.as_bytes()).columns();
        let (key_1, key_2) = PathKey::of(format!("{mountpoint}/.cvmfsautocatalog").as_bytes()).columns();
        world.change_catalog(
            mountpoint,
            &format!(
                "INSERT INTO catalog SELECT {key_1}, {key_2}, {first}, {second}, hardlinks, hash, size, mode, mtime, \
                 mtimens, flags, '.cvmfsautocatalog', symlink, uid, gid, xattr FROM catalog WHERE name = \
                 '.cvmfscatalog' AND {parent} = {parent} LIMIT 1;
                 UPDATE statistics SET value = value + 1 WHERE counter = 'self_regular'"
            ),
        );
    }
    world.change_catalog(
        "/nested",
        "UPDATE statistics SET value = value + 1 WHERE counter = 'subtree_regular'; \
        INSERT INTO properties VALUES ('depth', 'one')",
    );
    world.change_catalog("", "UPDATE statistics SET value = value + 2 WHERE counter = 'subtree_regular'");
    assert!(world.check().findings.is_empty(), "{:#?}", world.check().findings);
    // The balance of new repositories is on.
    let repository = world.open().unwrap();
    let source = small_source();
    let mut progress = |_| ();
    let options = options(&mut progress);
    let mut publish =
        Publish { source: source.path().to_owned(), target: b"/nested/deep/into".to_vec(), options };
    publish.run(&repository, now()).unwrap();
    assert_eq!(pairs(&world, "/nested"), ["the property `depth`"]);
    let catalog = Catalog::open(world.plain(&world.catalog("/nested"))).unwrap();
    assert_eq!(catalog.nested().unwrap(), [], "the one below was joined");
    assert!(world.check().findings.is_empty(), "{:#?}", world.check().findings);
}

/// A commit beside them counts once more where a counter is no count.
#[test]
fn negative_counters_are_mended_by_the_next_commit() {
    let world = World::new("negative");
    world.change_catalog("/nested", "UPDATE statistics SET value = -7 WHERE counter = 'self_regular'");
    world.change_catalog(
        "",
        "UPDATE statistics SET value = -2 WHERE counter IN ('subtree_xattr', 'subtree_regular')",
    );
    let kinds: Vec<FindingKind> = world.check().findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [FindingKind::CountersOwn, FindingKind::CountersSubtree, FindingKind::CountersSubtree]);
    publish(&world, small_source().path(), "/beside", None).unwrap();
    publish(&world, small_source().path(), "/nested/deep/below", None).unwrap();
    let found = world.check().findings;
    let is_of_head = |revisions: &[String]| revisions.iter().any(|revision| revision.contains("the head"));
    let left: Vec<_> = found.iter().filter(|finding| is_of_head(&finding.revisions)).collect();
    assert!(left.is_empty(), "{left:#?}");
}
