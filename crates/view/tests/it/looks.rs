//! Entries as options and catalogs define them: bound revisions, hidden names, variables, owners, magic attributes,
//! and links in paths.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use esker_format::object::ObjectName;
use esker_testkit::catalog::{Draft, Row};
use esker_testkit::fixture::FULL;
use esker_vfs::{ErrorKind, Kind, Node, Reply, Tree, TreeError};
use esker_view::{About, LastLink, Ownership, Pin, View, ViewOptions};

use crate::fixtures::{read_all, walk};
use crate::model::{Model, Thing};
use crate::support::Site;

fn xattr(view: &View, node: &Node, name: &str) -> Result<String, TreeError> {
    let value = Reply::wait(|reply| view.xattr(node, name.as_bytes(), reply))?;
    Ok(String::from_utf8(value).unwrap())
}

/// `/.cvmfs/snapshots/<tag>` as publishers write it: hidden, and bound to the roots of other revisions.
fn publish_snapshots(site: &Site, tags: &[&str]) {
    let repository = &site.repository;
    let mut head = repository.manifest();
    let revision: u64 = head.get('S').unwrap().parse().unwrap();
    let nested = Draft::new("/.cvmfs");
    nested.add(&Row { flags: 1 | 32 | 0x8000, mode: 0o040_555, ..Row::directory("/.cvmfs") });
    nested.add(&Row { mode: 0o040_555, ..Row::directory("/.cvmfs/snapshots") });
    for tag in tags {
        let path = format!("/.cvmfs/snapshots/{tag}");
        nested.add(&Row { flags: 1 | 0x4000, ..Row::directory(&path) });
        let tag = repository.tag(tag);
        nested.bind(&path, &tag.root, usize::try_from(tag.size).unwrap());
    }
    let nested = nested.finish();
    let nested_hash = repository.store(&nested, "C");
    let root = Draft::new("");
    root.add(&Row::directory(""));
    root.add(&Row { flags: 1 | 2 | 0x8000, mode: 0o040_555, ..Row::directory("/.cvmfs") });
    root.nest("/.cvmfs", &nested_hash, nested.len());
    let root = root.finish();
    head.set('C', repository.store(&root, "C")).set('B', root.len()).set('S', revision + 1);
    repository.publish(&head.sign(&repository.fixture().keys()));
}

#[test]
fn bound_revisions_are_shown_below_their_mountpoints() {
    let site = Site::of(FULL);
    publish_snapshots(&site, &["v1", "v2"]);
    let view = site.following();
    assert!(view.names(&view.root().node).unwrap().is_empty(), "what is hidden is not listed");
    let mut numbers = BTreeMap::new();
    for tag in ["v1", "v2"] {
        let pinned = site.pinned(Pin::Tag(tag.into())).unwrap();
        let mountpoint = format!("/.cvmfs/snapshots/{tag}");
        for (path, own) in walk(&pinned).into_iter().filter(|(path, _)| path != b"/") {
            let bound = [mountpoint.as_bytes(), &path].concat();
            let found = view.find(&bound, LastLink::Keep).unwrap();
            assert_eq!(found.attr.size, own.attr.size);
            assert_eq!(found.attr.mode(), own.attr.mode());
            if found.node.kind == Kind::Directory {
                let names = |view: &View, node| -> Vec<Box<[u8]>> {
                    view.names(node).unwrap().iter().map(|entry| entry.name.clone()).collect()
                };
                assert_eq!(names(&view, &found.node), names(&pinned, &own.node));
            } else if found.node.kind == Kind::File && path.starts_with(b"/links") {
                assert_eq!(read_all(&view, &found), read_all(&pinned, &own));
            }
            assert_eq!(view.path_of(&found.node), String::from_utf8_lossy(&bound));
            if found.attr.nlink < 2 || found.node.kind == Kind::Directory {
                assert_eq!(numbers.insert(found.attr.ino, bound), None, "a number is given twice");
            }
        }
    }
    // The same catalogs are mounted in both, but the files are different nodes.
    assert!(numbers.len() > 1000);
}

#[test]
fn hidden_names_are_found_but_not_listed() {
    let site = Site::of(FULL);
    let mut model = Model::default().file("/seen", 1).file("/hidden", 2);
    model.hidden.insert("/hidden".into());
    model.publish(&site.repository);
    let view = site.following();
    let names = view.names(&view.root().node).unwrap();
    assert_eq!(names.iter().map(|entry| &*entry.name).collect::<Vec<_>>(), [b"seen"]);
    view.find(b"/hidden", LastLink::Keep).unwrap();
}

#[test]
fn variables_in_links_take_the_values_of_the_options() {
    let site = Site::of(FULL);
    let link = |target: &str| Thing::Link { target: target.into() };
    Model::default()
        .with("/arch", link("sw/$(ARCH:-generic)/bin"))
        .with("/unset", link("$(NOT_SET)x"))
        .publish(&site.repository);
    let options = |variables: &[(&str, &str)]| ViewOptions {
        variables: variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        ..ViewOptions::default()
    };
    let target = |view: &View, path: &str| {
        let found = view.find(path.as_bytes(), LastLink::Keep).unwrap();
        let target = view.target(&found.node).unwrap();
        assert_eq!(found.attr.size, target.len() as u64);
        (String::from_utf8(target).unwrap(), found.node)
    };
    let plain = site.open(options(&[])).unwrap();
    let set = site.open(options(&[("ARCH", "x86_64")])).unwrap();
    assert_eq!(target(&plain, "/arch").0, "sw/generic/bin");
    assert_eq!(target(&set, "/arch").0, "sw/x86_64/bin");
    assert_eq!(target(&set, "/unset").0, "x");
    assert_ne!(target(&plain, "/arch").1, target(&set, "/arch").1, "another target is another link");
    assert_eq!(xattr(&set, &target(&set, "/arch").1, "user.rawlink").unwrap(), "sw/$(ARCH:-generic)/bin");
}

/// > K4: A transaction and the commands that inspect a repository show targets of symlinks with their variables, so that copies of such links are published as they were; only a mount replaces variables.
#[test]
fn a_raw_view_shows_variables_and_follows_them_all_the_same() {
    let site = Site::of(FULL);
    Model::default()
        .with("/arch", Thing::Link { target: "sw/$(ARCH)".into() })
        .with("/sw", Thing::Directory { mode: 0o755 })
        .with("/sw/x86_64", Thing::Directory { mode: 0o755 })
        .with("/sw/x86_64/found", Thing::Link { target: "anywhere".into() })
        .publish(&site.repository);
    let variables = [("ARCH".to_owned(), "x86_64".to_owned())].into();
    let view = site.open(ViewOptions { variables, raw_targets: true, ..ViewOptions::default() }).unwrap();
    let link = view.find(b"/arch", LastLink::Keep).unwrap();
    assert_eq!(view.target(&link.node).unwrap(), b"sw/$(ARCH)");
    assert_eq!(link.attr.size, 10);
    let through = view.find(b"/arch/found", LastLink::Keep).unwrap();
    assert_eq!(view.path(&through.node).unwrap(), b"/sw/x86_64/found");
}

#[test]
fn claimed_files_have_the_owner_of_the_options() {
    let site = Site::of(FULL);
    let ownership = Ownership::Claim { uid: 4711, gid: 815 };
    let view = site.open(ViewOptions { ownership, ..ViewOptions::default() }).unwrap();
    let found = walk(&view);
    assert!(found.values().all(|found| (found.attr.uid, found.attr.gid) == (4711, 815)));
    assert_eq!(found[&b"/perm/owned"[..]].node.key, {
        let published = site.following();
        published.find(b"/perm/owned", LastLink::Keep).unwrap().node.key
    });
}

#[test]
fn magic_attributes_describe_the_repository() {
    let site = Site::of(FULL);
    let view = site.following();
    let status = view.status();
    let find = |path: &str| view.find(path.as_bytes(), LastLink::Keep).unwrap().node;
    let (root, file, dir) = (view.root().node, find("/perm/m0644"), find("/perm"));
    for node in [&root, &file, &dir] {
        assert_eq!(xattr(&view, node, "user.fqrn").unwrap(), "full.test");
        assert_eq!(xattr(&view, node, "user.revision").unwrap(), status.revision.to_string());
        assert_eq!(xattr(&view, node, "user.root_hash").unwrap(), status.root_hash.to_string());
    }
    let contents = site.repository.contents("v3");
    let object = contents.whole("/perm/m0644").replace("data/", "").replace('/', "");
    assert_eq!(xattr(&view, &file, "user.hash").unwrap(), object);
    assert_eq!(xattr(&view, &file, "user.chunks").unwrap(), "1");
    assert_eq!(xattr(&view, &file, "user.compression").unwrap(), "zlib");
    assert_eq!(xattr(&view, &file, "user.external_file").unwrap(), "0");
    assert_eq!(xattr(&view, &file, "user.bundle_trigger").unwrap(), "0");
    assert_eq!(xattr(&view, &dir, "user.hash").unwrap_err().kind, ErrorKind::NoAttribute);
    assert_eq!(xattr(&view, &dir, "user.chunks").unwrap_err().kind, ErrorKind::NoAttribute);
    let (path, chunked) = contents.files.iter().find(|(_, file)| file.chunks.len() > 1).unwrap();
    let big = view.find(path, LastLink::Keep).unwrap().node;
    assert_eq!(xattr(&view, &big, "user.chunks").unwrap(), chunked.chunks.len().to_string());
    let list = xattr(&view, &big, "user.chunk_list").unwrap();
    assert_eq!(list.lines().count(), chunked.chunks.len() + 1);
    assert!(xattr(&view, &root, "user.catalog_counters").unwrap().starts_with("catalog_hash: "));
    assert!(xattr(&view, &root, "user.repo_counters").unwrap().contains("\nsymlink,"));
    let names = Reply::wait(|reply| view.xattr_names(&root, reply)).unwrap();
    for name in names {
        xattr(&view, &root, std::str::from_utf8(&name).unwrap()).unwrap();
    }
}

#[test]
fn links_on_the_way_of_a_path_are_followed_within_the_repository() {
    let site = Site::of(FULL);
    let link = |target: &str| Thing::Link { target: target.into() };
    Model::default()
        .directory("/d")
        .file("/d/f", 1)
        .with("/to_d", link("d"))
        .with("/d/up", link("../to_d/./f"))
        .with("/out", link("/etc/passwd"))
        .with("/loop", link("loop"))
        .publish(&site.repository);
    let view = site.following();
    let file = view.find(b"/d/f", LastLink::Keep).unwrap().node;
    for path in ["/to_d/f", "//to_d/../d/./f", "/d/up", "to_d/up"] {
        assert_eq!(view.find(path.as_bytes(), LastLink::Follow).unwrap().node, file, "{path}");
    }
    assert_eq!(view.find(b"/d/up", LastLink::Keep).unwrap().node.kind, Kind::Symlink);
    assert_eq!(view.find(b"/out", LastLink::Follow).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(view.find(b"/loop", LastLink::Follow).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(view.find(b"/d/f/x", LastLink::Keep).unwrap_err().kind, ErrorKind::NotADirectory);
    let absent = view.find(b"/d/absent", LastLink::Keep).unwrap_err();
    assert_eq!((absent.kind, absent.object.as_str()), (ErrorKind::NotFound, "/d/absent"));
}

#[test]
fn unused_catalogs_are_detached_and_attached_again() {
    let site = Site::of(FULL);
    let model = (0..200).fold(Model::default(), |model, n| {
        let dir = format!("/{n}");
        model.directory(&dir).nest(&dir).file(&format!("{dir}/f"), 1)
    });
    model.publish(&site.repository);
    // The minimum limit.
    let view = site.open(ViewOptions { attached_max: Some(1), ..ViewOptions::default() }).unwrap();
    let mut nodes = Vec::new();
    for round in 0..2 {
        for n in 0..200 {
            let found = view.find(format!("/{n}/f").as_bytes(), LastLink::Keep).unwrap();
            assert!(view.status().counters.catalogs <= 64, "{}", view.status().counters.catalogs);
            if round == 0 {
                nodes.push(found);
            } else {
                assert_eq!(found.node, nodes[n].node);
            }
        }
    }
    for found in &nodes {
        assert_eq!(Reply::wait(|reply| view.attributes(&found.node, reply)).unwrap(), found.attr);
    }
}

#[test]
fn statfs_counts_the_cache_and_the_attached_catalogs() {
    let site = Site::of(FULL);
    let view = site.following();
    let before = view.statfs();
    let found = walk(&view);
    let after = view.statfs();
    let room = site.store.room();
    assert!(room.used > 0);
    assert_eq!((after.total_bytes, after.free_bytes), (room.quota, room.quota - room.used));
    assert!(after.free_bytes < before.free_bytes, "nested catalogs were fetched");
    assert_eq!(before.files, after.files);
    assert!(after.files >= found.len() as u64);
    assert!(before.free_files > 0);
    assert_eq!(after.free_files, 0, "every catalog is attached");
}

/// Records the attributes that a mount is asked for.
#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl About for Recorder {
    fn attribute(&self, name: &str) -> Option<String> {
        self.0.lock().unwrap().push(name.to_owned());
        (name == "user.host").then(|| "http://one".to_owned())
    }

    fn metainfo(&self) -> Option<ObjectName> {
        None
    }

    fn outside(&self) -> Option<String> {
        None
    }
}

/// `ls -l` reads two attributes of each file that it rarely has, `cp -a` and tar more. The state of a mount, its cache
/// and its connections have nothing to do with them.
///
/// > P17: An extended attribute that an entry doesn't have is answered from its catalog's payload alone, whatever the mount, its cache and its connections hold.
#[test]
fn an_absent_attribute_is_not_looked_for_in_the_state_of_the_mount() {
    let site = Site::of(FULL);
    let view = site.following();
    let recorder = Arc::new(Recorder::default());
    view.set_provider(recorder.clone());
    let node = view.root().node;
    for name in
        ["security.selinux", "system.posix_acl_access", "security.capability", "user.other", "user.other@1"]
    {
        assert_eq!(xattr(&view, &node, name).unwrap_err().kind, ErrorKind::NoAttribute, "{name}");
    }
    assert!(recorder.0.lock().unwrap().is_empty(), "{:?}", recorder.0);
    assert_eq!(xattr(&view, &node, "user.host").unwrap(), "http://one");
    assert_eq!(*recorder.0.lock().unwrap(), ["user.host"]);
}
