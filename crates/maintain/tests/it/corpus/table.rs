//! The damages, and what has to be found.

use std::fs;

use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::reflog::Reflog;
use esker_format::whitelist::Whitelist;
use esker_format::write::head::sign_whitelist;
use esker_format::write::keys::PrivateKey;
use esker_format::write::reflog::ReflogDraft;
use esker_maintain::{FindingKind, FindingKind::*};

use super::World;
use crate::workshop::{NAME, shared_keys};

/// What happens to a file.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    Remove,
    Empty,
    Garbage,
    Flip,
    Truncate,
    Folder,
}

/// What happens to a repository.
pub(super) enum Damage {
    Objects(&'static [&'static str], How),
    RootFile(&'static str, How),
    Catalog(&'static str, &'static str),
    History(&'static str),
    Reflog(&'static str),
    /// Nothing happens, for this many seconds.
    Later(i64),
    Other(fn(&mut World)),
}

pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) damage: Damage,
    pub(super) expected: &'static [FindingKind],
    pub(super) repairable: bool,
}

const fn found(name: &'static str, damage: Damage, expected: &'static [FindingKind]) -> Case {
    Case { name, damage, expected, repairable: false }
}

const fn repaired(name: &'static str, damage: Damage, expected: &'static [FindingKind]) -> Case {
    Case { name, damage, expected, repairable: true }
}

const fn rows(name: &'static str, sql: &'static str, expected: &'static [FindingKind]) -> Case {
    found(name, Damage::Catalog("", sql), expected)
}

const MANIFEST: &str = ".cvmfspublished";
const WHITELIST: &str = ".cvmfswhitelist";
const REFLOG: &str = ".cvmfsreflog";

pub(super) const CASES: &[Case] = &[
    repaired("a file object is gone", Damage::Objects(&["file"], How::Remove), &[ObjectMissing]),
    repaired("a file object has a wrong byte", Damage::Objects(&["file"], How::Flip), &[ObjectDamaged]),
    repaired("a file object is cut off", Damage::Objects(&["file"], How::Truncate), &[ObjectDamaged]),
    repaired("a file object is empty", Damage::Objects(&["file"], How::Empty), &[ObjectDamaged]),
    found("a file object is a folder", Damage::Objects(&["file"], How::Folder), &[FindingKind::ObjectKind]),
    repaired("a chunk is gone", Damage::Objects(&["chunk"], How::Remove), &[ObjectMissing]),
    repaired("a chunk has a wrong byte", Damage::Objects(&["chunk"], How::Flip), &[ObjectDamaged]),
    repaired("a chunk is empty", Damage::Objects(&["chunk"], How::Empty), &[ObjectDamaged]),
    repaired(
        "several objects are gone",
        Damage::Objects(&["file", "chunk", "old file"], How::Remove),
        &[ObjectMissing],
    ),
    repaired("an object of a tag is gone", Damage::Objects(&["old file"], How::Remove), &[ObjectMissing]),
    repaired("the root catalog is gone", Damage::Objects(&["root catalog"], How::Remove), &[CatalogMissing]),
    repaired(
        "the root catalog has a wrong byte",
        Damage::Objects(&["root catalog"], How::Flip),
        &[CatalogDamaged],
    ),
    repaired(
        "the root catalog is cut off",
        Damage::Objects(&["root catalog"], How::Truncate),
        &[CatalogDamaged],
    ),
    repaired(
        "a nested catalog is gone",
        Damage::Objects(&["nested catalog"], How::Remove),
        &[CatalogMissing],
    ),
    repaired(
        "a nested catalog is empty",
        Damage::Objects(&["nested catalog"], How::Empty),
        &[CatalogDamaged],
    ),
    repaired(
        "a deep catalog has a wrong byte",
        Damage::Objects(&["deep catalog"], How::Flip),
        &[CatalogDamaged],
    ),
    repaired(
        "catalogs at each depth are gone",
        Damage::Objects(&["deep catalog", "nested catalog", "root catalog"], How::Remove),
        &[CatalogMissing],
    ),
    repaired(
        "the catalog of a tag is gone",
        Damage::Objects(&["old root catalog"], How::Remove),
        &[CatalogMissing, TagCatalog],
    ),
    repaired("the history is gone", Damage::Objects(&["history"], How::Remove), &[HistoryMissing]),
    repaired("the history has a wrong byte", Damage::Objects(&["history"], How::Flip), &[HistoryDamaged]),
    repaired(
        "the certificate is gone",
        Damage::Objects(&["certificate"], How::Remove),
        &[CertificateMissing],
    ),
    repaired(
        "the certificate has a wrong byte",
        Damage::Objects(&["certificate"], How::Flip),
        &[CertificateDamaged],
    ),
    repaired("the metainfo is gone", Damage::Objects(&["metainfo"], How::Remove), &[Metainfo]),
    repaired("the metainfo has a wrong byte", Damage::Objects(&["metainfo"], How::Flip), &[Metainfo]),
    found("the metainfo is no JSON", Damage::Other(metainfo_without_json), &[Metainfo, ReflogIncomplete]),
    found("an unused object is damaged", Damage::Other(unused_object), &[UnusedDamaged]),
    found("a strange file is in the storage", Damage::Other(strange_file), &[StrangeFile]),
    repaired("the manifest is gone", Damage::RootFile(MANIFEST, How::Remove), &[ManifestMissing]),
    repaired("the manifest is garbage", Damage::RootFile(MANIFEST, How::Garbage), &[ManifestUnreadable]),
    repaired("the manifest is empty", Damage::RootFile(MANIFEST, How::Empty), &[ManifestUnreadable]),
    repaired(
        "the manifest is changed",
        Damage::Other(changed_manifest),
        &[ManifestSignature, CatalogRevision],
    ),
    repaired("the manifest is of another repository", Damage::Other(other_name), &[ManifestName]),
    repaired("the whitelist is gone", Damage::RootFile(WHITELIST, How::Remove), &[WhitelistMissing]),
    repaired("the whitelist is garbage", Damage::RootFile(WHITELIST, How::Garbage), &[WhitelistUnreadable]),
    repaired("the whitelist is changed", Damage::Other(changed_whitelist), &[WhitelistSignature]),
    repaired(
        "the whitelist lists another certificate",
        Damage::Other(other_certificate),
        &[CertificateNotListed],
    ),
    found("the whitelist is expired", Damage::Later(40 * 86_400), &[WhitelistExpired]),
    repaired("the reflog is gone", Damage::RootFile(REFLOG, How::Remove), &[ReflogMissing]),
    repaired(
        "the reflog is garbage",
        Damage::RootFile(REFLOG, How::Garbage),
        &[ReflogUnreadable, ReflogChecksum, ReflogHead],
    ),
    repaired("the reflog lacks the head", Damage::Other(reflog_without_head), &[ReflogIncomplete]),
    repaired(
        "the reflog is of another repository",
        Damage::Reflog("UPDATE properties SET value = 'other.test' WHERE key = 'fqrn'"),
        &[ReflogName],
    ),
    repaired(
        "a row of the reflog is damaged",
        Damage::Reflog("UPDATE refs SET type = 9"),
        &[ReflogUnreadable],
    ),
    repaired("the checksum of the reflog is wrong", Damage::Other(wrong_checksum), &[ReflogChecksum]),
    repaired("the checksum of the reflog is gone", Damage::Other(no_checksum), &[ReflogChecksum]),
    repaired(
        "the head and the spool folder name another reflog",
        Damage::Other(other_reflog),
        &[ReflogHead, ReflogChecksum],
    ),
    found(
        "a tag is on an unknown branch",
        Damage::History("UPDATE tags SET branch = 'x' WHERE name = 'v1'"),
        &[TagBranch],
    ),
    found(
        "a tag names another revision",
        Damage::History(
            "UPDATE tags SET revision = 77 WHERE hash = (SELECT hash FROM tags WHERE name = 'v1')",
        ),
        &[TagRevision],
    ),
    found(
        "a tag names another size",
        Damage::History("UPDATE tags SET size = 77 WHERE hash = (SELECT hash FROM tags WHERE name = 'v1')"),
        &[TagSize],
    ),
    found(
        "a tag names a catalog that never was",
        Damage::History(
            "INSERT INTO tags VALUES ('x', '0123456789012345678901234567890123456789', 1, 1, 0, '', 1, '')",
        ),
        &[CatalogMissing, TagCatalog],
    ),
    found("a tag has no name", Damage::History("UPDATE tags SET name = '' WHERE name = 'v1'"), &[TagName]),
    found(
        "a tag has no hash",
        Damage::History("UPDATE tags SET hash = 'x' WHERE name = 'v1'"),
        &[HistoryUnreadable],
    ),
    found("a branch has an unknown parent", Damage::Other(branch_without_parent), &[BranchParent]),
    found(
        "a branch has no tag",
        Damage::History("INSERT INTO branches VALUES ('x', '', 1)"),
        &[BranchUnused],
    ),
    found(
        "the history is of another repository",
        Damage::History("UPDATE properties SET value = 'other.test' WHERE key = 'fqrn'"),
        &[HistoryName],
    ),
    found("the history has no tags", Damage::History("DROP TABLE tags"), &[HistoryUnreadable]),
    found("alternative names are not there", Damage::Other(alternative_names), &[AlternativeName]),
    rows("a link count is zero", "UPDATE catalog SET hardlinks = 0 WHERE name = 'file'", &[LinkCountZero]),
    rows(
        "a directory is hard-linked",
        "UPDATE catalog SET hardlinks = (7 << 32) + 3 WHERE name = 'dir'",
        &[DirectoryGroup],
    ),
    rows(
        "a directory has a wrong link count",
        "UPDATE catalog SET hardlinks = 9 WHERE name = 'dir'",
        &[DirectoryLinks],
    ),
    rows(
        "a hard link is missing",
        "UPDATE catalog SET hardlinks = hardlinks + 1 WHERE name LIKE 'hard_'",
        &[HardlinkGroup],
    ),
    rows("hard links differ", "UPDATE catalog SET mtime = mtime + 1 WHERE name = 'hard2'", &[HardlinkGroup]),
    rows("links have no group", "UPDATE catalog SET hardlinks = 2 WHERE name = 'file'", &[HardlinkGroup]),
    rows("a file has no hash", "UPDATE catalog SET hash = NULL WHERE name = 'file'", &[FileHash]),
    rows("a hash is too short", "UPDATE catalog SET hash = x'0102' WHERE name = 'file'", &[RowUnreadable]),
    rows("a size is negative", "UPDATE catalog SET size = -1 WHERE name = 'file'", &[RowUnreadable]),
    rows("a mode has no type", "UPDATE catalog SET mode = 420 WHERE name = 'file'", &[RowUnreadable]),
    rows(
        "chunks leave a gap",
        "UPDATE chunks SET offset = offset + 1 WHERE offset > 0",
        &[Chunks, ChunksUnowned],
    ),
    rows(
        "chunks are too short",
        "UPDATE catalog SET size = size + 1 WHERE name = 'large'",
        &[Chunks, ChunksUnowned],
    ),
    rows("a chunked file has no chunks", "DELETE FROM chunks", &[Chunks]),
    rows(
        "chunks belong to no file",
        "INSERT INTO chunks SELECT 1, 2, offset, size, hash FROM chunks",
        &[ChunksUnowned],
    ),
    rows("a symlink has another size", "UPDATE catalog SET size = 99 WHERE name = 'link'", &[SymlinkSize]),
    rows("a symlink has no target", "UPDATE catalog SET symlink = '' WHERE name = 'link'", &[SymlinkSize]),
    rows(
        "a symlink has content",
        "UPDATE catalog SET hash = (SELECT hash FROM catalog WHERE name = 'file') WHERE name = 'link'",
        &[ContentOfOther],
    ),
    rows("a file has a target", "UPDATE catalog SET symlink = 'x' WHERE name = 'file'", &[SymlinkOfOther]),
    rows(
        "a directory has a target",
        "UPDATE catalog SET symlink = 'x' WHERE name = 'dir'",
        &[SymlinkOfOther],
    ),
    rows("a pipe has a size", "UPDATE catalog SET size = 5 WHERE name = 'pipe'", &[SpecialSize]),
    rows(
        "a directory is external",
        "UPDATE catalog SET flags = flags | 128 WHERE name = 'dir'",
        &[ContentOfOther],
    ),
    rows(
        "a symlink has direct I/O",
        "UPDATE catalog SET flags = flags | 65536 WHERE name = 'link'",
        &[ContentOfOther],
    ),
    rows(
        "flags and mode disagree",
        "UPDATE catalog SET flags = flags | 1 WHERE name = 'file'",
        &[FindingKind::Flags],
    ),
    rows(
        "a hash algorithm is unknown",
        "UPDATE catalog SET flags = flags | 0x700 WHERE name = 'file'",
        &[FindingKind::HashAlgorithm],
    ),
    rows(
        "a compression is unknown",
        "UPDATE catalog SET flags = flags | 0x3800 WHERE name = 'file'",
        &[Compression],
    ),
    rows(
        "a name is empty",
        "UPDATE catalog SET name = '' WHERE name = 'file'",
        &[NameEmpty, RowsUnreachable],
    ),
    rows("a name is changed", "UPDATE catalog SET name = 'renamed' WHERE name = 'file'", &[Key]),
    rows(
        "a name is there twice",
        "INSERT INTO catalog SELECT 1, 2, parent_1, parent_2, hardlinks, hash, size, mode, mtime, mtimens, flags, name, \
         symlink, uid, gid, xattr FROM catalog WHERE name = 'file' AND md5path_1 != 1 LIMIT 1",
        &[Key, NameTwice],
    ),
    rows("a row hangs in the air", "UPDATE catalog SET parent_1 = 1 WHERE name = 'link'", &[RowsUnreachable]),
    rows(
        "a row is its own parent",
        "UPDATE catalog SET parent_1 = md5path_1, parent_2 = md5path_2 WHERE name = 'sub'",
        &[RowsUnreachable, DirectoryLinks],
    ),
    found(
        "a nested catalog has no root",
        Damage::Catalog("/nested", "DELETE FROM catalog WHERE name = 'nested'"),
        &[RootMissing, NestedDangling, RowsUnreachable],
    ),
    found(
        "a nested root is a file",
        Damage::Catalog("/nested", "UPDATE catalog SET mode = 33188 WHERE name = 'nested'"),
        &[RootKind, RootDiffers, FindingKind::Flags, FileHash],
    ),
    found(
        "a nested root lacks its flag",
        Damage::Catalog("/nested", "UPDATE catalog SET flags = 1 WHERE name = 'nested'"),
        &[RootFlags],
    ),
    found(
        "a nested root differs",
        Damage::Catalog("/nested", "UPDATE catalog SET mtime = 5 WHERE name = 'nested'"),
        &[RootDiffers],
    ),
    found(
        "a nested root has another owner",
        Damage::Catalog("/nested", "UPDATE catalog SET uid = 12345 WHERE name = 'nested'"),
        &[RootDiffers],
    ),
    found(
        "a marker is missing",
        Damage::Catalog("/nested", "DELETE FROM catalog WHERE name = '.cvmfscatalog'"),
        &[MarkerMissing],
    ),
    found("a marker is abandoned", Damage::Other(abandoned_marker), &[MarkerAbandoned]),
    rows("a nested catalog is not listed", "DELETE FROM nested_catalogs", &[NestedUnlisted]),
    rows(
        "a nested catalog has no mountpoint",
        "INSERT INTO nested_catalogs SELECT '/dir/none', sha1, size FROM nested_catalogs",
        &[NestedDangling, CatalogPrefix],
    ),
    rows("a nested catalog has no hash", "UPDATE nested_catalogs SET sha1 = ''", &[NestedHash]),
    rows(
        "a nested catalog is a bind mountpoint too",
        "INSERT INTO bind_mountpoints SELECT * FROM nested_catalogs",
        &[NestedTwice],
    ),
    rows("a nested catalog has another size", "UPDATE nested_catalogs SET size = 77", &[CatalogSize]),
    rows(
        "a mountpoint has entries",
        "UPDATE catalog SET parent_1 = (SELECT md5path_1 FROM catalog WHERE name = 'nested'), parent_2 = (SELECT md5path_2 FROM catalog WHERE name = 'nested') WHERE name = 'file'",
        &[NestedChildren, RowsUnreachable],
    ),
    rows(
        "a bind mountpoint has no row",
        "UPDATE catalog SET flags = flags | 16384 WHERE name = 'other'",
        &[Bind],
    ),
    rows(
        "a row has no bind mountpoint",
        "INSERT INTO bind_mountpoints SELECT '/none', sha1, size FROM nested_catalogs",
        &[Bind],
    ),
    rows(
        "a counter is wrong",
        "UPDATE statistics SET value = value + 1 WHERE counter = 'self_regular'",
        &[CountersOwn],
    ),
    rows(
        "a counter of the subtree is wrong",
        "UPDATE statistics SET value = value + 1 WHERE counter = 'subtree_dir'",
        &[CountersSubtree],
    ),
    rows(
        "a counter is negative",
        "UPDATE statistics SET value = -2 WHERE counter = 'self_symlink'",
        &[CountersOwn],
    ),
    rows(
        "a counter of the subtree is negative",
        "UPDATE statistics SET value = -2 WHERE counter = 'subtree_xattr'",
        &[CountersSubtree],
    ),
    found(
        "a counter of a deep catalog is wrong",
        Damage::Catalog("/nested/deep", "UPDATE statistics SET value = 99 WHERE counter = 'self_file_size'"),
        &[CountersOwn],
    ),
    found(
        "a catalog is for another directory",
        Damage::Catalog(
            "/nested/deep",
            "UPDATE properties SET value = '/nested/other' WHERE key = 'root_prefix'",
        ),
        &[CatalogPrefix, RootMissing, RowsUnreachable],
    ),
    rows(
        "the root catalog has another revision",
        "UPDATE properties SET value = 77 WHERE key = 'revision'",
        &[CatalogRevision],
    ),
    rows(
        "the schema is unknown",
        "UPDATE properties SET value = '3.7' WHERE key = 'schema'",
        &[CatalogUnreadable],
    ),
    rows("a catalog has no entries table", "DROP TABLE catalog", &[CatalogUnreadable]),
    found("a catalog is no database", Damage::Other(no_database), &[CatalogUnreadable]),
    found("the manifest names another catalog size", Damage::Other(other_size), &[CatalogSize]),
];

fn metainfo_without_json(world: &mut World) {
    let hash = world.store(b"no JSON", ObjectKind::Metainfo);
    world.change_head(|head| head.metainfo = Some(hash));
}

fn unused_object(world: &mut World) {
    let name = ObjectName::new(ContentHash::of(HashAlgorithm::Sha1, b"other"), ObjectKind::File);
    fs::write(world.root().join(name.path()), b"bytes").unwrap();
}

fn strange_file(world: &mut World) {
    fs::write(world.root().join("data/00/strange"), b"bytes").unwrap();
}

fn changed_manifest(world: &mut World) {
    let path = world.root().join(MANIFEST);
    let bytes = fs::read(&path).unwrap();
    let at = bytes.windows(3).position(|window| window == b"\nS2").unwrap();
    let mut changed = bytes;
    changed[at + 2] = b'7';
    fs::write(path, changed).unwrap();
}

fn other_name(world: &mut World) {
    world.change_head(|head| head.name = Some("other.test".to_owned()));
}

fn changed_whitelist(world: &mut World) {
    let path = world.root().join(WHITELIST);
    let mut bytes = fs::read(&path).unwrap();
    // The expiry is put off.
    bytes[16] = b'9';
    fs::write(path, bytes).unwrap();
}

fn other_certificate(world: &mut World) {
    let path = world.root().join(WHITELIST);
    let mut list = Whitelist::parse(&fs::read(&path).unwrap()).unwrap();
    list.fingerprints = vec![ContentHash::of(HashAlgorithm::Sha1, b"other")];
    let key = fs::read_to_string(shared_keys().join("keys").join(format!("{NAME}.masterkey"))).unwrap();
    let key = PrivateKey::from_pem(&key).unwrap();
    fs::write(path, sign_whitelist(&list, HashAlgorithm::Sha1, &key).unwrap()).unwrap();
}

fn reflog_without_head(world: &mut World) {
    let reflog = Reflog::parse(&fs::read(world.root().join(REFLOG)).unwrap()).unwrap();
    let mut draft = ReflogDraft::continuing(&reflog);
    let root = world.catalog("");
    draft.remove(&[root.hash].into());
    world.put_reflog(&draft.finish());
}

fn wrong_checksum(world: &mut World) {
    fs::write(world.spool().join("reflog.chksum"), b"").unwrap();
}

fn no_checksum(world: &mut World) {
    fs::remove_file(world.spool().join("reflog.chksum")).unwrap();
}

fn other_reflog(world: &mut World) {
    let other = ContentHash::of(HashAlgorithm::Sha1, b"other");
    world.change_head(|head| head.reflog = Some(other));
    fs::write(world.spool().join("reflog.chksum"), other.to_string()).unwrap();
}

fn branch_without_parent(world: &mut World) {
    world.change_history(
        "INSERT INTO branches VALUES ('x', 'y', 1); \
         INSERT INTO tags SELECT 'tx', hash, revision, timestamp, 0, '', size, 'x' FROM tags WHERE name = 'v1'",
    );
}

fn alternative_names(world: &mut World) {
    world.change_head(|head| head.alternative_paths = true);
}

fn abandoned_marker(world: &mut World) {
    let path = "/dir/.cvmfscatalog";
    let (first, second) = esker_format::catalog::PathKey::of(path.as_bytes()).columns();
    let (parent_first, parent_second) = esker_format::catalog::PathKey::of(b"/dir").columns();
    world.change_catalog(
        "",
        &format!(
            "INSERT INTO catalog SELECT {first}, {second}, {parent_first}, {parent_second}, hardlinks, hash, size, \
             mode, mtime, mtimens, flags, '.cvmfscatalog', symlink, uid, gid, xattr FROM catalog WHERE name = 'new'"
        ),
    );
}

fn no_database(world: &mut World) {
    world.replace_catalog("/nested/deep", |_| b"this is no database".to_vec());
}

fn other_size(world: &mut World) {
    world.change_head(|head| head.root_catalog_size += 1);
}
