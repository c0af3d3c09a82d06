//! Attributes and owners of entries that the overlay of an ordinary user copied, or linked.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use esker_format::catalog::{Catalog, PathKey, XattrList};
use esker_format::copied_xattr::PUBLISHED_PATH;
use esker_publish::{BaseRevision, PublishError, PublishUpper, Report, Upper};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};

use crate::corpus::World;
use crate::workshop::{now, options};

/// An access control list: the owner 6, user 4711 6, the group 4, the mask 6, others 0.
const LIST: &[u8] = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x06\0\x67\x12\0\0\x04\0\x04\0\xff\xff\xff\xff\x10\0\x06\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";

fn world() -> World {
    world_with("'file', 'new', 'link'", &[])
}

/// Makes a repository whose entries of these names in the root have attributes, and some more.
fn world_with(names: &str, more: &[(&[u8], &[u8])]) -> World {
    let world = World::new("attributes of a user's transaction");
    let pairs: [(&[u8], &[u8]); 5] = [
        (b"security.capability", b"caps"),
        (b"system.posix_acl_access", LIST),
        (b"trusted.kept", b"t"),
        (b"user.removed", b"r"),
        (b"user.stays", b"s"),
    ];
    let list: XattrList = pairs.into_iter().chain(more.iter().copied()).collect();
    let hex: String = list.to_blob().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    world.change_catalog(
        "",
        &format!(
            "UPDATE catalog SET uid = 5, gid = 6; UPDATE catalog SET xattr = x'{hex}' WHERE name IN ({names});
             UPDATE statistics SET value = (SELECT count(*) FROM catalog WHERE xattr IS NOT NULL) WHERE counter = 'self_xattr'"
        ),
    );
    world
}

/// Publishes an upper folder as an ordinary user, who saw everything as its own.
pub(crate) fn transaction(world: &World, change: impl FnOnce(&Path)) -> Result<Report, PublishError> {
    let folder = tempfile::tempdir().unwrap();
    let me = fs::metadata(folder.path()).unwrap();
    let repository = world.open().unwrap();
    let upper = Upper {
        folder: folder.path().to_owned(),
        base: BaseRevision::published(&repository),
        origin: None,
        claimed: Some((me.uid(), me.gid())),
        within: Vec::new(),
        filter: Default::default(),
    };
    upper.prepare(&world.root()).unwrap();
    change(folder.path());
    let mut progress = |_| ();
    PublishUpper { upper, choices: Default::default(), options: options(&mut progress) }
        .run(&repository, now())
}

/// Writes what an overlay copies up of a file that was published at a path.
fn copied_up(file: &Path, content: &str, mode: u32, published: &str) {
    fs::write(file, content).unwrap();
    setxattr(file, PUBLISHED_PATH, published.as_bytes(), XattrFlags::empty()).unwrap();
    setxattr(file, "user.stays", b"s", XattrFlags::empty()).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
}

fn whiteout(path: &Path) {
    mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
}

struct Row {
    list: XattrList,
    owner: (u32, u32),
    links: (u32, u32),
    mode: u32,
    mtime: i64,
}

fn row(world: &World, path: &str) -> Row {
    let catalog = Catalog::open(world.plain(&world.catalog(""))).unwrap();
    let row = catalog.find(PathKey::of(path.as_bytes())).unwrap().unwrap();
    Row {
        list: row.xattrs(),
        owner: (row.uid().unwrap(), row.gid().unwrap()),
        links: (row.hardlink_group(), row.link_count()),
        mode: row.mode(),
        mtime: row.mtime(),
    }
}

fn names(list: &XattrList) -> Vec<String> {
    list.iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect()
}

/// > K5: Attributes that the overlay of an ordinary user can't copy (access control lists, capabilities, `trusted.*`) stay with the entries that a transaction touches, renames or copies with `cp -a`; a list follows `chmod`, capabilities stay as long as the content does, and attributes in `user.` that the user removed are gone.
#[test]
fn attributes_that_a_user_cannot_copy_stay_with_what_is_touched_and_renamed() {
    const ALL: [&str; 4] = ["security.capability", "system.posix_acl_access", "trusted.kept", "user.stays"];
    let world = world();
    transaction(&world, |upper| copied_up(&upper.join("file"), "one", 0o601, "/file")).unwrap();
    let touched = row(&world, "/file");
    assert_eq!((touched.owner, touched.mode & 0o777), ((5, 6), 0o601));
    assert_eq!(names(&touched.list), ALL);
    let list = touched.list.get(b"system.posix_acl_access").unwrap();
    let permissions: Vec<u8> = list[4..].chunks(8).map(|entry| entry[2]).collect();
    assert_eq!(permissions, [6, 6, 4, 0, 1], "the mask and the others follow the mode");
    transaction(&world, |upper| {
        whiteout(&upper.join("new"));
        copied_up(&upper.join("renamed"), "only in the second revision", 0o660, "/new");
        copied_up(&upper.join("copy"), "only in the second revision", 0o660, "/new");
    })
    .unwrap();
    for path in ["/renamed", "/copy"] {
        assert_eq!(names(&row(&world, path).list), ALL, "{path}");
    }
    let report =
        transaction(&world, |upper| copied_up(&upper.join("copy"), "changed", 0o660, "/copy")).unwrap();
    assert_eq!(report.differences.capabilities_left_out, 1);
    assert!(report.warnings.iter().any(|warning| warning.contains("capabilities")), "{:?}", report.warnings);
    assert_eq!(names(&row(&world, "/copy").list), ALL[1..]);
    // What replaces a file has nothing of it, and a symlink can't tell where it comes from.
    transaction(&world, |upper| {
        fs::write(upper.join("copy"), "new").unwrap();
        std::os::unix::fs::symlink("elsewhere", upper.join("link")).unwrap();
    })
    .unwrap();
    assert_eq!(names(&row(&world, "/copy").list), [""; 0]);
    assert_eq!(names(&row(&world, "/link").list), ALL[..3]);
}

#[test]
fn new_entries_without_the_default_list_of_their_directory_are_counted() {
    let world = world_with("'dir'", &[(b"system.posix_acl_default", LIST)]);
    let report = transaction(&world, |upper| {
        let dir = upper.join("dir");
        fs::create_dir_all(dir.join("folder")).unwrap();
        setxattr(&dir, PUBLISHED_PATH, b"/dir", XattrFlags::empty()).unwrap();
        fs::write(dir.join("added"), "new").unwrap();
        fs::write(dir.join("folder/below"), "new").unwrap();
        std::os::unix::fs::symlink("added", dir.join("a symlink")).unwrap();
        fs::write(upper.join("elsewhere"), "new").unwrap();
    })
    .unwrap();
    assert_eq!(report.differences.default_acls_left_out, 2);
    assert!(report.warnings.iter().any(|warning| warning.contains("access control list")), "{report:?}");
    assert_eq!(names(&row(&world, "/dir/added").list), [""; 0]);
    assert!(names(&row(&world, "/dir").list).contains(&"system.posix_acl_default".to_owned()));
}

/// > K6: All names of a file that a transaction linked have the same owner, mode, time and attributes.
#[test]
fn a_new_name_of_a_published_file_has_the_owner_of_the_others() {
    let world = world();
    transaction(&world, |upper| {
        let time = fs::metadata(World::source_of_template().join("hard1")).unwrap().modified().unwrap();
        fs::write(upper.join("hard2"), "hard").unwrap();
        fs::File::options().write(true).open(upper.join("hard2")).unwrap().set_modified(time).unwrap();
        // Before and after it in the order of names.
        fs::hard_link(upper.join("hard2"), upper.join("a")).unwrap();
        fs::hard_link(upper.join("hard2"), upper.join("z")).unwrap();
    })
    .unwrap();
    let [first, published, last] = ["/a", "/hard2", "/z"].map(|path| row(&world, path));
    for other in [&first, &last] {
        assert_eq!(other.owner, (5, 6));
        assert_eq!(
            (other.links, other.mode, other.mtime),
            (published.links, published.mode, published.mtime)
        );
    }
    assert_eq!(published.links.1, 3);
    let groups: Vec<_> =
        world.check().findings.into_iter().filter(|it| it.kind.name() == "hardlink-group").collect();
    assert!(groups.is_empty(), "{groups:#?}");
}
