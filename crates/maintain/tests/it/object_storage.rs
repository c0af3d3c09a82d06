//! Repositories in object storage, by several publishers without a lock.

mod faults;
mod orphans;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_maintain::{Check, CheckPlace, Collect, CollectError, Collected, Keep};
use esker_object_storage::{StorageSettings, StorageUrl, open_storage};
use esker_publish::{Ingest, Owner, Publish, PublishError, Report, TagChange, reindex};
use esker_repository::{NewRepository, Repository, RepositoryError, Storage};
use esker_store::Sink;
use esker_testkit::check::{Findings, check};
use esker_testkit::listing::of_folder;
use esker_testkit::s3::{BUCKET, S3Fault, S3Server};

use crate::memory_bucket::{MemoryBucket, MemorySink};
use crate::workshop::{NAME, assert_same_trees, folder, now, options, publish, shared_keys};

/// A bucket, and folders for the states of its publishers.
struct Site {
    bucket: Arc<MemoryBucket>,
    /// The server that has the bucket instead of the memory of this process.
    server: Option<S3Server>,
    folder: tempfile::TempDir,
}

fn name() -> RepositoryName {
    RepositoryName::parse(NAME).unwrap()
}

fn keys() -> esker_repository::KeyFolder {
    esker_repository::KeyFolder::new(shared_keys().join("keys"), &name())
}

impl Site {
    fn new() -> Self {
        Self { bucket: Arc::default(), server: None, folder: tempfile::tempdir().unwrap() }.created()
    }

    /// The same on a server of the protocol S3.
    fn on_s3() -> Self {
        let server = Some(S3Server::start());
        Self { bucket: Arc::default(), server, folder: tempfile::tempdir().unwrap() }.created()
    }

    fn created(self) -> Self {
        // Automatic tags keep revisions, which collects are to delete.
        let mut new = NewRepository::new(name());
        new.settings.automatic_tags = false;
        new.create(self.place("first"), &keys(), now()).unwrap();
        self
    }

    /// A copy of the bucket, with publishers that know nothing yet.
    fn copy(&self) -> Self {
        Self { bucket: self.bucket.copy(), server: None, folder: tempfile::tempdir().unwrap() }
    }

    fn storage(&self, sink: Arc<dyn Sink>, machine: &str) -> Storage {
        Storage::new(&self.folder.path().join(machine), sink)
    }

    /// Returns the storage as a machine sees it.
    fn place(&self, machine: &str) -> Storage {
        let Some(server) = &self.server else {
            return self.storage(MemorySink::new(&self.bucket), machine);
        };
        let keys = [("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")];
        let settings = StorageSettings {
            endpoint: Some(server.endpoint()),
            state: Some(self.folder.path().join(machine).join(".esker")),
            environment: keys.into_iter().collect(),
            ..StorageSettings::default()
        };
        let url = StorageUrl::parse(&format!("s3://{BUCKET}/cvmfs/{NAME}")).unwrap();
        let sink = open_storage(&url, &settings, Arc::new(esker_store::RealDisk::SERVED)).unwrap();
        self.storage(sink, machine)
    }

    /// Opens the repository as a publisher on a machine.
    fn open(&self, machine: &str) -> Repository {
        open_in(self.place(machine)).unwrap()
    }

    fn root_files(&self) -> Vec<String> {
        self.place("lister").sink().list_root().unwrap()
    }

    fn findings(&self) -> Findings {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join(NAME);
        match &self.server {
            Some(server) => export(server, &root),
            None => self.bucket.export(&root),
        }
        check(&root, NAME, &fs::read_to_string(keys().public_key_file()).unwrap())
    }

    fn assert_shows(&self, expected: &[(&str, &str)]) {
        let findings = self.findings();
        findings.assert_clean();
        let files = findings.tree.iter().filter_map(|(path, entry)| {
            Some((String::from_utf8(path.clone()).unwrap(), entry.sha256.clone()?))
        });
        let expected = expected
            .iter()
            .map(|(path, content)| ((*path).to_owned(), esker_testkit::object::sha256(content.as_bytes())));
        assert_eq!(files.collect::<BTreeMap<_, _>>(), expected.collect());
    }

    /// Checks every byte with the command's own check.
    fn check_all(&self) {
        let storage = self.place("checker");
        let place = CheckPlace {
            root: PathBuf::new(),
            name: name(),
            keys: Some(keys().public().unwrap()),
            spool: None,
        };
        let mut check = Check::new(&|_| ());
        check.data = Some(esker_maintain::DataCheck::default());
        let report = check.run_in(&storage, &place, now()).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        assert!(report.read_objects > 0 && report.read_objects == report.objects, "{report:?}");
    }
}

fn open_in(storage: Storage) -> Result<Repository, RepositoryError> {
    Repository::open(storage, &name(), keys(), now())
}

/// Writes the files of a bucket to a folder.
fn export(server: &S3Server, root: &Path) {
    let prefix = format!("cvmfs/{NAME}/");
    for (key, object) in server.objects(BUCKET) {
        let Some(path) = key.strip_prefix(&prefix).map(|path| root.join(path)) else { continue };
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, object.bytes).unwrap();
    }
}

fn collect(repository: &Repository, grace: i64, time: UnixTime) -> Result<Collected, CollectError> {
    let progress = |_| ();
    let mut collect = Collect::new(&progress);
    (collect.keep, collect.grace, collect.automatic_tags) = (Keep::Tags, grace, Some(0));
    collect.run(repository, time)
}

fn earlier(seconds: i64) -> UnixTime {
    UnixTime(now().0 - seconds)
}

/// A collect that runs beside a publisher on its machine keeps the base and names the publisher; one on another machine can't
/// tell, and the publisher begins again.
#[test]
fn a_collect_keeps_the_base_of_a_publisher_on_the_same_machine() {
    for (machine, names_it) in [("first", true), ("second", false)] {
        let site = Site::new();
        publish(&site.open("first"), folder(&[("old", "old")]).path(), "/a").unwrap();
        let base = site.open("first").head().root_catalog();
        let mut collected = None;
        let source = folder(&[("new", "new")]);
        let mut progress = |_| {
            if collected.is_none() {
                for content in ["before", "other"] {
                    publish(&site.open("second"), folder(&[("other", content)]).path(), "/b").unwrap();
                }
                let done = collect(&site.open(machine), 0, now()).unwrap();
                let is_kept = site.place("lister").sink().len_of(&base).unwrap().is_some();
                collected = Some((done.plan.open, done.deleted.objects, is_kept));
            }
        };
        let options = options(&mut progress);
        let mut run = Publish { source: source.path().to_owned(), target: b"/c".to_vec(), options };
        run.run(&site.open("first"), now()).unwrap();
        let (open, deleted, is_kept) = collected.expect("the publisher tells of its progress");
        assert_eq!(
            (open.len(), is_kept),
            (usize::from(names_it), names_it),
            "{machine}: {open:?}, {deleted} deleted"
        );
        assert!(open.iter().all(|work| work.what.contains("a publisher, process")), "{open:?}");
        site.assert_shows(&[("/a/old", "old"), ("/b/other", "other"), ("/c/new", "new")]);
        let open = collect(&site.open(machine), 0, now()).unwrap().plan.open;
        assert!(open.is_empty(), "its record goes with it: {open:?}");
        site.assert_shows(&[("/a/old", "old"), ("/b/other", "other"), ("/c/new", "new")]);
    }
}

/// Files that were made anew are asked for, and not sent. `ESKER_FAR_ENTRIES=1381` measures it at 0.3 s a request.
#[test]
fn a_far_bucket_is_asked_by_as_many_requests_at_once_as_settings_allow() {
    let far = std::env::var("ESKER_FAR_ENTRIES").ok().and_then(|entries| entries.parse().ok());
    let (entries, delay) = far.map_or((100, 100), |entries: usize| (entries, 300));
    let site = Site::on_s3();
    let contents: Vec<String> = (0..entries).map(|number| format!("content of {number}")).collect();
    let names: Vec<String> = (0..entries).map(|number| format!("{number}")).collect();
    let files: Vec<_> = names.iter().zip(&contents).map(|(name, content)| (&**name, &**content)).collect();
    let source = folder(&files);
    publish(&site.open("first"), source.path(), "/a").unwrap();
    let server = site.server.as_ref().unwrap();
    server.fault(|_| true, S3Fault::Delay(std::time::Duration::from_millis(delay)));
    for (name, content) in &files {
        fs::write(source.path().join(name), content).unwrap();
    }
    let repository = site.open("first");
    server.forget();
    server.most_at_once();
    let began = std::time::Instant::now();
    let report = publish(&repository, source.path(), "/a").unwrap();
    println!("{entries} entries in {:.1} s", began.elapsed().as_secs_f64());
    assert_eq!((report.objects_stored, report.objects_present), (0, entries as u64));
    let asked = server.requests().iter().filter(|request| request.method == "HEAD").count();
    assert!(asked >= entries, "{asked}");
    assert_eq!(server.most_at_once(), StorageSettings::CONNECTIONS);
}

/// The storage replaces the head and loses the answer, and another publisher commits before the first one looks.
#[test]
fn a_publisher_that_was_overtaken_reports_its_own_revision() {
    let site = Site::new();
    publish(&site.open("first"), folder(&[("old", "old")]).path(), "").unwrap();
    let others = site.open("second");
    let by = move || {
        publish(&others, folder(&[("new", "second")]).path(), "/b").unwrap();
    };
    let sink = MemorySink::overtaken(&site.bucket, by);
    let repository = open_in(site.storage(sink, "first")).unwrap();
    let source = folder(&[("new", "first")]);
    let mut progress = |_| ();
    let mut options = options(&mut progress);
    options.tag.name = Some("v1".to_owned());
    let mut run = Publish { source: source.path().to_owned(), target: b"/a".to_vec(), options };
    let report = run.run(&repository, now()).unwrap();
    assert!(report.published);
    assert_eq!((report.revision, report.tag.as_deref()), (2, Some("v1")));
    assert_eq!(site.open("first").head().revision(), 3);
    site.assert_shows(&[("/old", "old"), ("/a/new", "first"), ("/b/new", "second")]);
}

#[test]
fn a_repository_in_object_storage_is_created_published_tagged_and_checked() {
    walk_through(&Site::new());
    walk_through(&Site::on_s3());
}

fn walk_through(site: &Site) {
    let source = folder(&[("a/file", "one"), ("b/.cvmfscatalog", ""), ("b/file", "two")]);
    let report = publish(&site.open("first"), source.path(), "").unwrap();
    assert!(report.published && report.revision == 1, "{report:?}");
    let findings = site.findings();
    assert_same_trees(&of_folder(source.path()), &findings.assert_clean().listing());
    // Another machine knows nothing, and finds the same.
    let other = site.open("second");
    assert!(!publish(&other, source.path(), "").unwrap().published);
    let stop = AtomicBool::new(false);
    let add = TagChange::Add { name: "v1".into(), revision: None, description: String::new(), force: false };
    add.run(&other, now(), &stop).unwrap();
    assert_eq!(site.findings().assert_clean().tags.get("v1"), Some(&1));
    // A rebuilt index finds the content that another machine stored.
    assert!(reindex(&other, 2, &stop).unwrap().objects >= 3);
    let copy = folder(&[("again", "two")]);
    let report = publish(&other, copy.path(), "/c").unwrap();
    assert_eq!((report.objects_stored, report.objects_present), (0, 1), "{report:?}");
    site.check_all();
    assert!(matches!(
        NewRepository::new(name()).create(site.place("third"), &keys(), now()),
        Err(RepositoryError::Exists(_))
    ));
}

#[test]
fn publishers_of_different_paths_keep_each_others_changes_and_equal_paths_are_a_conflict() {
    disjoint_and_equal_paths(&Site::new());
    disjoint_and_equal_paths(&Site::on_s3());
}

fn disjoint_and_equal_paths(site: &Site) {
    let (first, second, third) = (site.open("first"), site.open("second"), site.open("third"));
    publish(&first, folder(&[("x", "1")]).path(), "/a").unwrap();
    publish(&second, folder(&[("x", "2")]).path(), "/b").unwrap();
    match publish(&third, folder(&[("x", "3")]).path(), "/a") {
        Err(PublishError::Conflict { paths, base, head, .. }) => {
            assert_eq!((paths, base, head), (vec!["/a/x".to_owned()], 0, 2));
        }
        other => panic!("{other:?}"),
    }
    site.assert_shows(&[("/a/x", "1"), ("/b/x", "2")]);
}

#[test]
fn twenty_publishers_at_once_give_the_tree_of_the_accepted_changes() {
    twenty_publishers(&Site::new());
    twenty_publishers(&Site::on_s3());
}

fn twenty_publishers(site: &Site) {
    const PUBLISHERS: usize = 20;
    const ROUNDS: usize = 3;
    // All publishers, and the server with their connections, are in this process.
    esker_testkit::descriptors::allow(4096);
    let start = std::sync::Barrier::new(PUBLISHERS);
    // Each publisher has a directory of its own, and all of them one file in a common one.
    let outcomes: Vec<(String, String, Result<Report, PublishError>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..PUBLISHERS)
            .map(|number| {
                let start = &start;
                scope.spawn(move || {
                    let mut outcomes = Vec::new();
                    for round in 0..ROUNDS {
                        let mut repository = site.open(&format!("machine {number}"));
                        repository.settings_mut().automatic_tags = true;
                        start.wait();
                        let content = format!("{number} in {round}");
                        // Every fifth publisher changes what others of its kind change too.
                        let target = match number % 5 {
                            0 => format!("/common {round}"),
                            _ => format!("/own {number}"),
                        };
                        let source = folder(&[("file", &content)]);
                        let outcome = publish(&repository, source.path(), &target);
                        outcomes.push((format!("{target}/file"), content, outcome));
                    }
                    outcomes
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let (mut accepted, mut lost) = (BTreeMap::new(), 0);
    for (path, content, outcome) in &outcomes {
        match outcome {
            Ok(report) => {
                let before = accepted.insert(report.revision, (path.as_str(), content.as_str()));
                assert!(report.published && before.is_none(), "{report:?}");
            }
            Err(PublishError::Conflict { paths, .. }) => {
                assert_eq!(paths, std::slice::from_ref(path));
                lost += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    // Of four publishers of a common file one wins in each round.
    assert_eq!(lost, 3 * ROUNDS);
    assert_eq!(accepted.len() + lost, PUBLISHERS * ROUNDS);
    assert!(accepted.keys().copied().eq(1..=accepted.len() as u64), "{accepted:?}");
    let mut expected: BTreeMap<&str, &str> = BTreeMap::new();
    expected.extend(accepted.values().copied());
    site.assert_shows(&expected.into_iter().collect::<Vec<_>>());
    // Each has its tag, beside the two of the trunk.
    assert_eq!(site.findings().tags.len(), accepted.len() + 2);
}

#[test]
fn a_publisher_takes_objects_off_the_list_of_a_collect_on_another_machine() {
    revive(&Site::new());
    revive(&Site::on_s3());
}

fn revive(site: &Site) {
    for content in ["old content", "between", "new"] {
        publish(&site.open("first"), folder(&[("file", content)]).path(), "").unwrap();
    }
    let collected = collect(&site.open("collector"), 3600, earlier(7200)).unwrap();
    assert!(collected.waiting.is_some_and(|waiting| waiting.objects > 0), "{collected:?}");
    // The publisher on the first machine knows the object of the old content.
    let again = folder(&[("file", "old content")]);
    publish(&site.open("first"), again.path(), "/again").unwrap();
    let collected = collect(&site.open("other collector"), 3600, now()).unwrap();
    // The file, and not the catalog of the old revision.
    assert!(collected.deleted.revived == 1 && collected.deleted.objects > 0, "{collected:?}");
    site.assert_shows(&[("/again/file", "old content"), ("/file", "new")]);
    // One list, of what the publish above left.
    let lists =
        |site: &Site| site.root_files().iter().filter(|name| name.starts_with(".esker_condemned_")).count();
    assert_eq!(
        lists(site),
        usize::from(collected.waiting.is_some()),
        "{collected:?} {:?}",
        site.root_files()
    );
    let last = collect(&site.open("collector"), 0, now()).unwrap();
    assert!(last.waiting.is_none() && lists(site) == 0, "{last:?} {:?}", site.root_files());
    site.check_all();
}

/// The publisher opens the repository, and a collect on another machine begins and ends before the commit.
#[test]
fn a_publisher_stores_objects_again_that_a_collect_deleted_meanwhile() {
    store_again(&Site::new());
    store_again(&Site::on_s3());
}

fn store_again(site: &Site) {
    for content in ["old content", "between", "new"] {
        publish(&site.open("first"), folder(&[("file", content)]).path(), "").unwrap();
    }
    let repository = site.open("first");
    let source = folder(&[("file", "old content")]);
    let mut collected = false;
    let mut progress = |progress: esker_publish::Progress| {
        if progress.phase == esker_publish::Phase::Catalogs && !std::mem::replace(&mut collected, true) {
            let done = collect(&site.open("collector"), 0, now()).unwrap();
            assert!(done.deleted.objects > 0, "{done:?}");
        }
    };
    let options = options(&mut progress);
    let mut publish =
        esker_publish::Publish { source: source.path().to_owned(), target: b"/again".to_vec(), options };
    assert!(publish.run(&repository, now()).unwrap().published);
    assert!(collected);
    site.assert_shows(&[("/again/file", "old content"), ("/file", "new")]);
    site.check_all();
}

#[test]
fn publishers_and_collects_at_once_lose_no_object() {
    publishers_and_collects(&Site::new());
    publishers_and_collects(&Site::on_s3());
}

fn publishers_and_collects(site: &Site) {
    publish(&site.open("first"), folder(&[("file", "0")]).path(), "").unwrap();
    std::thread::scope(|scope| {
        for number in 0..4 {
            let site = &site;
            scope.spawn(move || {
                for round in 0..12 {
                    // The same few contents again and again, so that condemned objects are in use again.
                    let content = format!("content {}", (number + round) % 3);
                    let repository = site.open(&format!("machine {number}"));
                    publish(&repository, folder(&[("file", &content)]).path(), &format!("/{number}"))
                        .unwrap_or_else(|error| panic!("{number} in {round}: {error}"));
                }
            });
        }
        for number in 0..2 {
            let site = &site;
            scope.spawn(move || {
                for _ in 0..10 {
                    match collect(&site.open(&format!("collector {number}")), 0, now()) {
                        // Only one collector deletes at a time.
                        Ok(_)
                        | Err(CollectError::Repository(
                            RepositoryError::Locked { .. } | RepositoryError::Moving,
                        )) => {}
                        Err(error) => panic!("collector {number}: {error}"),
                    }
                }
            });
        }
    });
    collect(&site.open("collector 0"), 0, now()).unwrap();
    site.findings().assert_clean();
    site.check_all();
}

#[test]
fn an_archive_is_ingested_and_rolled_back_in_object_storage() {
    ingest_and_undo(&Site::new());
    ingest_and_undo(&Site::on_s3());
}

fn ingest_and_undo(site: &Site) {
    let archive = tempfile::NamedTempFile::new().unwrap();
    let mut tar = tar::Builder::new(archive.reopen().unwrap());
    let mut header = tar::Header::new_gnu();
    header.set_size(3);
    header.set_mode(0o644);
    tar.append_data(&mut header, "file", &b"tar"[..]).unwrap();
    tar.finish().unwrap();
    let mut progress = |_| ();
    let (owner, delete) = (Owner::default(), Vec::new());
    let (path, target) = (archive.path().to_owned(), b"/in".to_vec());
    Ingest { archive: path, target, delete, owner, nested: false, options: options(&mut progress) }
        .run(&site.open("first"), now())
        .unwrap();
    site.assert_shows(&[("/in/file", "tar")]);
    publish(&site.open("first"), folder(&[("x", "x")]).path(), "").unwrap();
    site.assert_shows(&[("/x", "x")]);
    let rollback = esker_publish::Rollback { target: None };
    rollback.run(&site.open("second"), now(), &AtomicBool::new(false)).unwrap();
    site.assert_shows(&[("/in/file", "tar")]);
}
