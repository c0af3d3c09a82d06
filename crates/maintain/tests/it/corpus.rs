//! Damaged repositories: each fault is found and named, and repaired where a mirror has the data.
//!
//! `ESKER_CORPUS=DIR cargo test -p esker-maintain corpus` keeps the damaged repositories in DIR, for other checkers
//! (`scripts/judge-check.sh`).

mod table;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use esker_format::catalog::{Catalog, Flags, PathKey};
use esker_format::chunker::ChunkSizes;
use esker_format::hash::ContentHash;
use esker_format::manifest::Manifest;
use esker_format::name::RepositoryName;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::reflog::Reflog;
use esker_format::time::UnixTime;
use esker_format::write::head::sign_manifest;
use esker_format::write::reflog::ReflogDraft;
use esker_maintain::{Check, CheckError, CheckPlace, CheckReport, DataCheck, FindingKind, Repair, Repaired};
use esker_publish::{Publish, TagChange, TagRequest};
use esker_repository::Repository;
use esker_store::LocalSink;
use esker_testkit::object::{deflate, inflate};

use crate::workshop::{NAME, Workshop, now, options};
use table::{CASES, Case, Damage, How};

/// A repository in order, from which the damaged ones are made.
struct Template {
    workshop: Workshop,
}

/// A copy of it that is being damaged.
pub(crate) struct World {
    folder: PathBuf,
    now: UnixTime,
    _temporary: Option<tempfile::TempDir>,
}

const SPOOL: &str = "spool";

fn template() -> &'static Template {
    static TEMPLATE: OnceLock<Template> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let chunks = ChunkSizes::new(4096, 8192, 16_384).unwrap();
        let workshop = Workshop::with(|new| {
            new.settings.chunks = chunks;
            new.settings.automatic_tags = false;
        });
        let top = workshop.source();
        for folder in ["dir/sub", "nested/deep", "other"] {
            fs::create_dir_all(top.join(folder)).unwrap();
        }
        for marker in ["nested", "nested/deep"] {
            fs::write(top.join(marker).join(".cvmfscatalog"), b"").unwrap();
        }
        let noise: Vec<u8> = (0..60_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        fs::write(top.join("large"), noise).unwrap();
        for (path, content) in
            [("file", "one"), ("dir/sub/file", "two"), ("nested/inner", "three"), ("nested/deep/f", "four")]
        {
            fs::write(top.join(path), content).unwrap();
        }
        fs::write(top.join("hard1"), "hard").unwrap();
        fs::hard_link(top.join("hard1"), top.join("hard2")).unwrap();
        std::os::unix::fs::symlink("file", top.join("link")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(top.join("pipe")).status().unwrap().success());
        fs::write(top.join("old"), "only in the first revision").unwrap();
        publish_tagged(&workshop, "v1");
        fs::remove_file(top.join("old")).unwrap();
        fs::write(top.join("new"), "only in the second revision").unwrap();
        publish_tagged(&workshop, "v2");
        let spool = workshop.folder.path().join(SPOOL);
        fs::create_dir(&spool).unwrap();
        let head = Manifest::parse(&fs::read(workshop.root().join(".cvmfspublished")).unwrap()).unwrap();
        fs::write(spool.join("reflog.chksum"), head.reflog.unwrap().to_string()).unwrap();
        Template { workshop }
    })
}

fn publish_tagged(workshop: &Workshop, tag: &str) {
    let mut progress = |_| ();
    let mut options = options(&mut progress);
    options.tag = TagRequest { name: Some(tag.to_owned()), ..TagRequest::default() };
    let mut publish = Publish { source: workshop.source(), target: Vec::new(), options };
    publish.run(&workshop.open(), now()).unwrap();
}

fn copy_tree(from: &Path, to: &Path) {
    assert!(std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

impl World {
    pub(crate) fn new(name: &str) -> Self {
        let template = template();
        let (folder, temporary) = match std::env::var_os("ESKER_CORPUS") {
            Some(corpus) => (PathBuf::from(corpus).join(name.replace([' ', '`'], "-")), None),
            None => {
                let folder = esker_testkit::disk::scratch();
                (folder.path().to_owned(), Some(folder))
            }
        };
        fs::create_dir_all(&folder).unwrap();
        copy_tree(&template.workshop.root(), &folder.join(NAME));
        copy_tree(&template.workshop.folder.path().join(SPOOL), &folder.join(SPOOL));
        let public = template.workshop.keys().public_key_file();
        fs::copy(public, folder.join("key.pub")).unwrap();
        Self { folder, now: now(), _temporary: temporary }
    }

    /// The folder that the repository was published from.
    pub(crate) fn source_of_template() -> PathBuf {
        template().workshop.source()
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.join(NAME)
    }

    pub(crate) fn spool(&self) -> PathBuf {
        self.folder.join(SPOOL)
    }

    pub(crate) fn head(&self) -> Manifest {
        Manifest::parse(&fs::read(self.root().join(".cvmfspublished")).unwrap()).unwrap()
    }

    /// Signs a changed head.
    pub(crate) fn change_head(&self, change: impl FnOnce(&mut Manifest)) {
        let mut head = self.head();
        change(&mut head);
        let publisher = template().workshop.keys().publisher().unwrap();
        let signed = sign_manifest(&head, publisher.key()).unwrap();
        fs::write(self.root().join(".cvmfspublished"), signed).unwrap();
    }

    pub(crate) fn plain(&self, name: &ObjectName) -> Vec<u8> {
        inflate(&fs::read(self.root().join(name.path())).unwrap())
    }

    pub(crate) fn store(&self, plain: &[u8], kind: ObjectKind) -> ContentHash {
        let stored = deflate(plain);
        let hash = ContentHash::of(self.head().root_catalog.algorithm(), &stored);
        let path = self.root().join(ObjectName::new(hash, kind).path());
        fs::write(path, stored).unwrap();
        hash
    }

    /// The catalogs from the root down to the one that is mounted at a path.
    fn chain(&self, mountpoint: &str) -> Vec<(String, ObjectName)> {
        let mut chain = vec![(String::new(), ObjectName::new(self.head().root_catalog, ObjectKind::Catalog))];
        while chain.last().unwrap().0 != mountpoint {
            let catalog = Catalog::open(self.plain(&chain.last().unwrap().1)).unwrap();
            let below = catalog.nested().unwrap().into_iter().find(|nested| {
                let path = String::from_utf8_lossy(&nested.path);
                mountpoint == path || mountpoint.starts_with(&format!("{path}/"))
            });
            let below = below.unwrap();
            let path = String::from_utf8(below.path).unwrap();
            chain.push((path, ObjectName::new(below.hash.unwrap(), ObjectKind::Catalog)));
        }
        chain
    }

    pub(crate) fn catalog(&self, mountpoint: &str) -> ObjectName {
        self.chain(mountpoint).pop().unwrap().1
    }

    /// The objects of a file in the head's revision.
    pub(crate) fn objects_of(&self, path: &str) -> Vec<ObjectName> {
        self.objects_in(self.head().root_catalog, path)
    }

    fn objects_in(&self, root: ContentHash, path: &str) -> Vec<ObjectName> {
        let catalog = Catalog::open(self.plain(&ObjectName::new(root, ObjectKind::Catalog))).unwrap();
        let row = catalog.find(PathKey::of(path.as_bytes())).unwrap().unwrap();
        if row.flags().has(Flags::CHUNKED) {
            let chunks = catalog.chunks(&row).unwrap();
            return chunks.iter().map(|chunk| ObjectName::new(chunk.hash, ObjectKind::Chunk)).collect();
        }
        vec![ObjectName::new(row.hash().unwrap(), ObjectKind::File)]
    }

    pub(crate) fn first_root(&self) -> ObjectName {
        let history = self.plain(&ObjectName::new(self.head().history.unwrap(), ObjectKind::History));
        let history = esker_format::history::History::parse(&history).unwrap();
        ObjectName::new(history.find("v1").unwrap().root_catalog, ObjectKind::Catalog)
    }

    fn object(&self, which: &str) -> ObjectName {
        let head = self.head();
        match which {
            "file" => self.objects_of("/file")[0],
            "chunk" => self.objects_of("/large")[1],
            "old file" => self.objects_in(self.first_root().hash, "/old")[0],
            "root catalog" => self.catalog(""),
            "old root catalog" => self.first_root(),
            "nested catalog" => self.catalog("/nested"),
            "deep catalog" => self.catalog("/nested/deep"),
            "history" => ObjectName::new(head.history.unwrap(), ObjectKind::History),
            "certificate" => ObjectName::new(head.certificate.unwrap(), ObjectKind::Certificate),
            "metainfo" => ObjectName::new(head.metainfo.unwrap(), ObjectKind::Metainfo),
            other => panic!("no object {other}"),
        }
    }

    fn damage_file(path: &Path, how: How) {
        match how {
            How::Remove => fs::remove_file(path).unwrap(),
            How::Empty => fs::write(path, b"").unwrap(),
            How::Garbage => fs::write(path, b"no such file was ever written by a publisher\n").unwrap(),
            How::Flip => {
                let mut bytes = fs::read(path).unwrap();
                let at = bytes.len() / 2;
                bytes[at] ^= 0x55;
                fs::write(path, bytes).unwrap();
            }
            How::Truncate => {
                let bytes = fs::read(path).unwrap();
                fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
            }
            How::Folder => {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            }
        }
    }

    /// Changes a database, and returns its bytes.
    pub(crate) fn sql(bytes: &[u8], sql: &str) -> Vec<u8> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        let database = rusqlite::Connection::open(file.path()).unwrap();
        database.execute_batch(&format!("PRAGMA foreign_keys = OFF; {sql}")).unwrap();
        let changed: i64 = database.query_row("SELECT total_changes()", [], |row| row.get(0)).unwrap();
        let is_of_schema = ["DROP", "CREATE", "ALTER"].iter().any(|word| sql.contains(word));
        assert!(changed > 0 || is_of_schema, "{sql} changes nothing");
        drop(database);
        fs::read(file.path()).unwrap()
    }

    /// Changes a catalog, and those above it so that they name it.
    pub(crate) fn change_catalog(&self, mountpoint: &str, sql: &str) {
        self.replace_catalog(mountpoint, |bytes| Self::sql(bytes, sql));
    }

    pub(crate) fn replace_catalog(&self, mountpoint: &str, change: impl Fn(&[u8]) -> Vec<u8>) {
        let mut chain = self.chain(mountpoint);
        let (mut at, name) = chain.pop().unwrap();
        let mut bytes = change(&self.plain(&name));
        let mut hash = self.store(&bytes, ObjectKind::Catalog);
        while let Some((above, name)) = chain.pop() {
            let size = bytes.len();
            let sql =
                format!("UPDATE nested_catalogs SET sha1 = '{hash}', size = {size} WHERE path = '{at}'");
            bytes = Self::sql(&self.plain(&name), &sql);
            hash = self.store(&bytes, ObjectKind::Catalog);
            at = above;
        }
        // The tags of the head's revision follow it.
        let old = self.head().root_catalog;
        let size = bytes.len();
        let tags = format!("UPDATE tags SET hash = '{hash}', size = {size} WHERE hash = '{old}'");
        self.change_history(&tags);
        self.change_head(|head| (head.root_catalog, head.root_catalog_size) = (hash, size as u64));
        self.list_head();
    }

    pub(crate) fn change_history(&self, sql: &str) {
        let name = ObjectName::new(self.head().history.unwrap(), ObjectKind::History);
        let hash = self.store(&Self::sql(&self.plain(&name), sql), ObjectKind::History);
        self.change_head(|head| head.history = Some(hash));
        self.list_head();
    }

    /// Brings the reflog up to date with the head.
    pub(crate) fn list_head(&self) {
        let path = self.root().join(".cvmfsreflog");
        let mut draft = ReflogDraft::continuing(&Reflog::parse(&fs::read(&path).unwrap()).unwrap());
        let head = self.head();
        draft.add(ObjectName::new(head.root_catalog, ObjectKind::Catalog), now());
        draft.add(ObjectName::new(head.history.unwrap(), ObjectKind::History), now());
        self.put_reflog(&draft.finish());
    }

    pub(crate) fn put_reflog(&self, bytes: &[u8]) {
        fs::write(self.root().join(".cvmfsreflog"), bytes).unwrap();
        let hash = ContentHash::of(self.head().root_catalog.algorithm(), bytes);
        fs::write(self.spool().join("reflog.chksum"), hash.to_string()).unwrap();
        self.change_head(|head| head.reflog = Some(hash));
    }

    fn damage(&mut self, damage: &Damage) {
        match damage {
            Damage::Objects(which, how) => {
                let paths: Vec<PathBuf> =
                    which.iter().map(|which| self.root().join(self.object(which).path())).collect();
                paths.iter().for_each(|path| Self::damage_file(path, *how));
            }
            Damage::RootFile(name, how) => Self::damage_file(&self.root().join(name), *how),
            Damage::Catalog(mountpoint, sql) => self.change_catalog(mountpoint, sql),
            Damage::History(sql) => self.change_history(sql),
            Damage::Reflog(sql) => {
                let bytes = fs::read(self.root().join(".cvmfsreflog")).unwrap();
                self.put_reflog(&Self::sql(&bytes, sql));
            }
            Damage::Later(seconds) => self.now = UnixTime(self.now.0 + seconds),
            Damage::Other(change) => change(self),
        }
    }

    fn place(&self) -> CheckPlace {
        CheckPlace {
            root: self.root(),
            name: RepositoryName::parse(NAME).unwrap(),
            keys: Some(template().workshop.keys().public().unwrap()),
            spool: Some(self.spool()),
        }
    }

    pub(crate) fn check(&self) -> CheckReport {
        self.all_of(&checker()).unwrap()
    }

    fn all_of(&self, check: &Check<'_>) -> Result<CheckReport, CheckError> {
        check.run(&self.place(), self.now)
    }

    /// Opens the repository as its publisher.
    pub(crate) fn open(&self) -> Result<Repository, esker_repository::RepositoryError> {
        let name = RepositoryName::parse(NAME).unwrap();
        let mut repository = Repository::open(&self.root(), &name, template().workshop.keys(), self.now)?;
        repository.share_with_spool(&self.spool())?;
        Ok(repository)
    }

    fn repair(&self) -> Repaired {
        let mirror = LocalSink::open(template().workshop.root());
        let publisher = template().workshop.keys().publisher().unwrap();
        let open = || self.open();
        let repair = Repair { from: Some(&mirror), publisher: Some(&publisher), open: Some(&open) };
        repair.run(&checker(), &self.place(), self.now).unwrap()
    }
}

fn quiet(_: esker_maintain::CheckProgress) {}

fn checker() -> Check<'static> {
    Check { threads: 2, data: Some(DataCheck::default()), ..Check::new(&quiet) }
}

fn kinds(report: &CheckReport) -> BTreeSet<FindingKind> {
    report.findings.iter().map(|finding| finding.kind).collect()
}

#[test]
fn a_repository_in_order_has_no_findings() {
    let world = World::new("in order");
    let report = world.check();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    assert_eq!((report.revisions, report.catalogs), (2, 4));
    assert!(report.entries > 15 && report.objects > 10 && report.read_objects > report.objects);
    assert!(world.repair().objects.is_empty());
}

/// CernVM-FS's collect writes a shorter reflog with its checksum, and leaves the head, which names the reflog before.
#[test]
fn a_repository_that_cvmfs_server_collected_has_no_findings() {
    let world = World::new("collected");
    let reflog = fs::read(world.root().join(".cvmfsreflog")).unwrap();
    let mut draft = ReflogDraft::new(RepositoryName::parse(NAME).unwrap());
    let listed = Reflog::parse(&reflog).unwrap();
    let later = UnixTime(now().0 + 60);
    listed.references().iter().for_each(|known| draft.add(known.object, later));
    let shorter = draft.finish();
    assert_ne!(shorter, reflog);
    fs::write(world.root().join(".cvmfsreflog"), &shorter).unwrap();
    let hash = ContentHash::of(world.head().root_catalog.algorithm(), &shorter);
    assert_ne!(world.head().reflog, Some(hash));
    fs::write(world.spool().join("reflog.chksum"), hash.to_string()).unwrap();
    let report = world.check();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

#[test]
fn each_damage_is_found_and_named_and_repaired_where_a_mirror_has_the_data() {
    let mut names = BTreeSet::new();
    let mut failures = Vec::new();
    for Case { name, damage, expected, repairable } in CASES {
        assert!(names.insert(name), "{name} is there twice");
        let mut world = World::new(name);
        world.damage(damage);
        let report = world.check();
        let found = kinds(&report);
        // Counters follow every change of rows.
        let extra = [FindingKind::CountersOwn, FindingKind::CountersSubtree];
        let wanted: BTreeSet<FindingKind> = expected.iter().copied().collect();
        let is_right = found.is_superset(&wanted)
            && found.iter().all(|kind| wanted.contains(kind) || extra.contains(kind));
        if !is_right {
            failures.push(format!("{name}: expected {wanted:?}, found {:#?}", report.findings));
            continue;
        }
        if std::env::var_os("ESKER_CORPUS").is_some() {
            continue;
        }
        let repaired = world.repair();
        let left = world.check();
        if left.findings.is_empty() != *repairable {
            failures.push(format!("{name}: repaired {repaired:#?}, then found {:#?}", left.findings));
        }
        if kinds(&repaired.left) != kinds(&left) {
            failures.push(format!(
                "{name}: the repair leaves {:?}, not {:?}",
                kinds(&repaired.left),
                kinds(&left)
            ));
        }
    }
    assert!(names.len() >= 60, "{} damages", names.len());
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), names.len(), failures.join("\n"));
}

#[test]
fn wrong_counters_are_put_right_by_a_new_revision_of_the_same_tree() {
    let mut world = World::new("counters");
    world.damage(&Damage::Catalog(
        "/nested/deep",
        "UPDATE statistics SET value = 99 WHERE counter IN ('self_file_size', 'subtree_dir')",
    ));
    world.change_catalog(
        "/nested",
        "UPDATE statistics SET value = value + 5 WHERE counter = 'subtree_regular';
         UPDATE statistics SET value = -2 WHERE counter = 'subtree_xattr'",
    );
    let found = world.check();
    assert_eq!(kinds(&found), BTreeSet::from([FindingKind::CountersOwn, FindingKind::CountersSubtree]));
    let before = world.head();
    // The tag of the revision would keep the fault.
    let untag = TagChange::Remove { names: vec!["v2".to_owned()] };
    untag.run(&world.open().unwrap(), world.now, &std::sync::atomic::AtomicBool::new(false)).unwrap();
    let repaired = world.repair();
    assert_eq!(repaired.recounted, Some(before.revision + 1));
    assert!(repaired.left.findings.is_empty(), "{:#?}", repaired.left.findings);
    assert!(world.check().findings.is_empty());
    let head = world.head();
    assert_eq!(head.revision, before.revision + 1);
    assert_ne!(world.catalog("/nested/deep"), ObjectName::new(before.root_catalog, ObjectKind::Catalog));
    let findings = esker_testkit::check::check(
        &world.root(),
        NAME,
        &fs::read_to_string(template().workshop.keys().public_key_file()).unwrap(),
    );
    findings.assert_clean();
    let expected = esker_testkit::listing::of_folder(&template().workshop.source());
    crate::workshop::assert_same_trees(&expected, &findings.listing());
    // A second repair finds nothing to do.
    assert_eq!(world.repair().recounted, None);
}

#[test]
fn a_repair_waits_for_no_publisher_while_it_checks_and_fetches() {
    let mut world = World::new("repair beside a publisher");
    world.damage(&Damage::Objects(&["file", "nested catalog"], How::Remove));
    let sink = esker_store::LocalSink::open(world.root());
    let esker_store::Locking::Taken(_lock) = sink.lock().unwrap() else { panic!("the lock is free") };
    let repaired = world.repair();
    assert_eq!(repaired.objects.len(), 2);
    assert!(world.check().findings.is_empty());
}

#[test]
fn a_finding_names_paths_and_revisions() {
    let mut world = World::new("names");
    world.damage(&Damage::Objects(&["old file", "chunk"], How::Remove));
    let report = world.check();
    let lines: Vec<_> = report
        .findings
        .iter()
        .map(|finding| (finding.kind, finding.path.clone().unwrap(), finding.revisions.len()))
        .collect();
    assert_eq!(
        lines,
        [
            (FindingKind::ObjectMissing, "/large".to_owned(), 2),
            (FindingKind::ObjectMissing, "/old".to_owned(), 1)
        ]
    );
    assert!(report.findings[1].revisions[0].contains("v1"), "{:?}", report.findings[1]);
    let only = |check: Check<'_>| world.all_of(&Check { threads: 2, ..check }).unwrap().findings.len();
    assert_eq!(only(Check { tag: Some("v2".to_owned()), ..Check::new(&quiet) }), 1);
    assert_eq!(only(Check { path: Some(b"/old".to_vec()), ..Check::new(&quiet) }), 1);
    assert_eq!(only(Check { path: Some(b"/nested".to_vec()), ..Check::new(&quiet) }), 0);
    let unknown = Check { tag: Some("v9".to_owned()), ..Check::new(&quiet) };
    assert!(matches!(world.all_of(&unknown), Err(esker_maintain::CheckError::NoTag(_))));
}

#[test]
fn an_interrupted_check_of_all_bytes_continues_where_it_stopped() {
    let mut world = World::new("resume");
    world.damage(&Damage::Objects(&["file", "chunk", "old file"], How::Flip));
    let resume = world.spool().join("resume");
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    let progress = move |progress| {
        if matches!(progress, esker_maintain::CheckProgress::Data { folders: 200, .. }) {
            stopped.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    };
    let data = Some(DataCheck { rate: Some(1 << 40), resume: Some(resume.clone()) });
    let first = Check { data: data.clone(), stop, ..Check::new(&progress) };
    assert!(matches!(
        world.all_of(&first),
        Err(CheckError::Repository(esker_repository::RepositoryError::Interrupted))
    ));
    assert!(resume.exists());
    let seen = std::sync::Mutex::new(Vec::new());
    let progress = |progress| {
        if let esker_maintain::CheckProgress::Data { folders, .. } = progress {
            seen.lock().unwrap().push(folders);
        }
    };
    let second = world.all_of(&Check { data, ..Check::new(&progress) }).unwrap();
    let folders = seen.lock().unwrap().clone();
    assert!(folders[0] >= 199 && folders.len() < 60, "{folders:?}");
    assert_eq!(kinds(&second), BTreeSet::from([FindingKind::ObjectDamaged]));
    assert_eq!(second.findings.len(), 3, "those of the first part are not forgotten");
    assert!(!resume.exists());
}
