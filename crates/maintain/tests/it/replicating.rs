//! Copies of repositories: a replica has one whole revision at any time, whatever fails.

mod bucket_collects;
mod collects;
mod faults;
mod left_out;
mod model;
mod operators;
mod others;
mod retries;
mod selection;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use esker_format::chunker::ChunkSizes;
use esker_format::manifest::Manifest;
use esker_format::name::RepositoryName;
use esker_maintain::{
    Check, CheckPlace, CheckReport, Replicate, ReplicateError, ReplicateProgress, Replicated,
    ReplicationPlan, Retries, RevisionLimit,
};
use esker_repository::{Disks, NewRepository, RepositoryError, Storage};
use esker_store::{Engine, EngineOptions, RetryPolicy, Servers, Source, connect};
use esker_testkit::check::{Findings, check};
use esker_testkit::mirror::{Fault, Mirror};

use crate::memory_bucket::{MemoryBucket, MemorySink};
use crate::workshop::{NAME, Workshop, assert_same_trees, now};

fn quiet(_: ReplicateProgress) {}

/// A repository behind a web server, and a folder for its copy.
pub(crate) struct Scene {
    pub(crate) workshop: Workshop,
    pub(crate) mirror: Mirror,
    pub(crate) folder: tempfile::TempDir,
    engine: Engine,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self::of(|_| ())
    }

    pub(crate) fn of(change: impl FnOnce(&mut NewRepository)) -> Self {
        let chunks = ChunkSizes::new(4096, 8192, 16_384).unwrap();
        let workshop = Workshop::with(|new| {
            new.settings.chunks = chunks;
            change(new);
        });
        fill(&workshop.source());
        workshop.publish();
        let mirror = Mirror::serve(workshop.root().parent().unwrap());
        Self { workshop, mirror, folder: tempfile::tempdir().unwrap(), engine: engine() }
    }

    pub(crate) fn url(&self) -> String {
        self.mirror.url(NAME)
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join(NAME)
    }

    pub(crate) fn source(&self) -> Arc<dyn Source> {
        source(&self.engine, &[self.url()])
    }

    /// Replicates with changed options.
    pub(crate) fn with(&self, change: impl FnOnce(&mut Replicate<'_>)) -> Result<Replicated, ReplicateError> {
        let mut replicate = options(&self.workshop, self.source());
        change(&mut replicate);
        replicate.run(&self.root(), now())
    }

    pub(crate) fn replicate(&self) -> Replicated {
        self.with(|_| ()).unwrap()
    }

    pub(crate) fn plan(&self) -> ReplicationPlan {
        options(&self.workshop, self.source()).dry_run(&self.root(), now()).unwrap()
    }

    pub(crate) fn place(&self) -> CheckPlace {
        CheckPlace {
            root: self.root(),
            name: RepositoryName::parse(NAME).unwrap(),
            keys: Some(self.workshop.keys().public().unwrap()),
            spool: None,
        }
    }

    /// Checks the replica, and asserts that nothing is found.
    pub(crate) fn check(&self, when: &str) -> CheckReport {
        let report = Check::new(&|_| ()).run(&self.place(), now()).unwrap();
        assert!(report.findings.is_empty(), "{when}: {:#?}", report.findings);
        report
    }

    /// Asserts that the replica shows what the source of the workshop has.
    pub(crate) fn assert_equal(&self) -> Findings {
        let findings = findings(&self.workshop, &self.root());
        findings.assert_whole("a replica names the reflog of its source");
        assert_same_trees(&self.workshop.check().listing(), &findings.listing());
        findings
    }
}

pub(crate) fn engine() -> Engine {
    let pause = Duration::from_millis(1);
    let retry =
        RetryPolicy { attempts: 2, first_pause: pause, longest_pause: pause, ..RetryPolicy::default() };
    Engine::start(EngineOptions { retry, ..EngineOptions::default() }).unwrap()
}

/// Opens servers of one repository.
pub(crate) fn source(engine: &Engine, urls: &[String]) -> Arc<dyn Source> {
    let mut servers = Servers::direct(urls[0].as_str());
    servers.urls = urls.to_vec();
    servers.timings.retries = 0;
    connect(engine, servers).unwrap()
}

pub(crate) fn options(workshop: &Workshop, source: Arc<dyn Source>) -> Replicate<'static> {
    let keys = fs::read(workshop.keys().public_key_file()).unwrap();
    let name = RepositoryName::parse(NAME).unwrap();
    let servers = source.describe();
    // Tests of single faults.
    let retries = Retries { number: 0, ..Retries::default() };
    Replicate { threads: 2, reserve: Some(0), retries, ..Replicate::new(name, servers, source, keys, &quiet) }
}

pub(crate) fn findings(workshop: &Workshop, root: &Path) -> Findings {
    let public = fs::read_to_string(workshop.keys().public_key_file()).unwrap();
    check(root, NAME, &public)
}

pub(crate) fn head(root: &Path) -> Manifest {
    Manifest::parse(&fs::read(root.join(".cvmfspublished")).unwrap()).unwrap()
}

/// Nested catalogs, chunks, an empty file and equal files.
pub(crate) fn fill(top: &Path) {
    for directory in ["a/deep", "b", "c"] {
        fs::create_dir_all(top.join(directory)).unwrap();
        for number in 0..8 {
            fs::write(top.join(directory).join(format!("f{number}")), format!("{directory} {number}"))
                .unwrap();
        }
        fs::write(top.join(directory).join(".cvmfscatalog"), "").unwrap();
        fs::write(top.join(directory).join("same"), "the same everywhere").unwrap();
    }
    let large: Vec<u8> = (0..60_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(top.join("large"), large).unwrap();
    fs::write(top.join("empty"), "").unwrap();
}

#[test]
fn a_replica_shows_the_tree_of_its_source_and_passes_the_checks() {
    let scene = Scene::new();
    let plan = scene.plan();
    assert!(!scene.root().exists(), "a dry run makes nothing");
    let done = scene.replicate();
    assert_eq!((done.before, done.revision), (None, 1));
    assert!(done.changed && done.skipped.is_empty() && done.warnings.is_empty(), "{done:?}");
    assert_eq!((plan.objects, plan.catalogs, plan.revision), (done.objects, done.catalogs, done.revision));
    scene.assert_equal();
    for file in [".cvmfspublished", ".cvmfswhitelist"] {
        let (theirs, ours) = (scene.workshop.root().join(file), scene.root().join(file));
        assert_eq!(fs::read(theirs).unwrap(), fs::read(ours).unwrap(), "{file}");
    }
    let status = fs::read_to_string(scene.root().join(".cvmfs_status.json")).unwrap();
    let last = fs::read_to_string(scene.root().join(".cvmfs_last_snapshot")).unwrap();
    assert!(status.contains("last_snapshot") && status.contains(last.trim_end()), "{status} {last}");
    assert!(!scene.root().join(".cvmfs_is_snapshotting").exists());
    scene.check("after a replication");
}

#[test]
fn a_second_run_asks_for_the_signed_files_only() {
    let scene = Scene::new();
    scene.replicate();
    scene.mirror.forget();
    let done = scene.replicate();
    assert!(!done.changed);
    let mut paths: Vec<String> = scene.mirror.requests().into_iter().map(|request| request.path).collect();
    paths.sort_unstable();
    assert_eq!(paths, [".cvmfspublished", ".cvmfswhitelist"].map(|file| format!("/{NAME}/{file}")));
}

#[test]
fn a_revision_with_ten_changed_files_costs_these_and_the_touched_catalogs() {
    let scene = Scene::new();
    scene.replicate();
    for number in 0..10 {
        fs::write(
            scene.workshop.source().join("a/deep").join(format!("new{number}")),
            format!("new {number}"),
        )
        .unwrap();
    }
    scene.workshop.publish();
    scene.mirror.forget();
    let sent = scene.mirror.sent();
    let plan = scene.plan();
    // Catalogs of a dry run are read again.
    assert_eq!((plan.objects, plan.catalogs), (10, 2), "{plan:?}");
    scene.mirror.forget();
    let (sent, before) = (scene.mirror.sent(), sent);
    assert!(sent > before);
    let done = scene.replicate();
    assert_eq!((done.objects, done.catalogs), (10, 2), "the root catalog and that of a/deep: {done:?}");
    // Manifest, whitelist, history, two catalogs, ten objects.
    assert_eq!(scene.mirror.requests().len(), 15, "{:#?}", scene.mirror.requests());
    let bytes = scene.mirror.sent() - sent;
    let stored = done.bytes + done.catalog_bytes;
    assert!(bytes < stored + 20_000, "{bytes} bytes for {stored}");
    scene.assert_equal();
}

#[test]
fn replicas_of_replicas_show_the_same_tree() {
    let scene = Scene::new();
    scene.replicate();
    let mut roots = vec![scene.root()];
    let mut mirrors = Vec::new();
    for number in 0..2 {
        let folder = scene.folder.path().join(format!("{number}"));
        mirrors.push(Mirror::serve(roots.last().unwrap().parent().unwrap()));
        let source = source(&scene.engine, &[mirrors.last().unwrap().url(NAME)]);
        let done = options(&scene.workshop, source).run(&folder.join(NAME), now()).unwrap();
        assert!(done.changed);
        roots.push(folder.join(NAME));
    }
    fs::write(scene.workshop.source().join("b/f1"), "changed").unwrap();
    scene.workshop.publish();
    scene.replicate();
    for (mirror, root) in mirrors.iter().zip(&roots[1..]) {
        let source = source(&scene.engine, &[mirror.url(NAME)]);
        let done = options(&scene.workshop, source).run(root, now()).unwrap();
        assert_eq!((done.objects, done.revision), (1, 2), "{done:?}");
        let findings = findings(&scene.workshop, root);
        findings.assert_whole("a replica names the reflog of its source");
        assert_same_trees(&scene.workshop.check().listing(), &findings.listing());
    }
}

#[test]
fn an_older_head_is_never_taken() {
    let scene = Scene::new();
    let old = fs::read(scene.workshop.root().join(".cvmfspublished")).unwrap();
    fs::write(scene.workshop.source().join("b/f1"), "changed").unwrap();
    scene.workshop.publish();
    scene.replicate();
    scene.mirror.put(&format!("{NAME}/.cvmfspublished"), old);
    let error = scene.with(|_| ()).unwrap_err();
    assert!(format!("{error:?}").contains("Older"), "{error:?}");
    assert_eq!(head(&scene.root()).revision, 2);
    scene.assert_equal();
}

#[test]
fn a_repository_that_is_published_here_is_not_replaced_by_a_replica() {
    let scene = Scene::new();
    let error = options(&scene.workshop, scene.source()).run(&scene.workshop.root(), now()).unwrap_err();
    assert!(matches!(error, ReplicateError::Repository(RepositoryError::NotReplica(_))), "{error:?}");
    scene.replicate();
    let name = RepositoryName::parse(NAME).unwrap();
    let opened = esker_repository::Repository::open(&scene.root(), &name, scene.workshop.keys(), now());
    assert!(matches!(opened.err(), Some(RepositoryError::IsReplica { .. })));
}

#[test]
fn one_process_replicates_at_a_time() {
    let scene = Scene::new();
    scene.replicate();
    let path = scene.root().join(".esker/replica/lock");
    let esker_store::Locking::Taken(held) = esker_store::FileLock::try_take(&path).unwrap() else { panic!() };
    assert!(matches!(
        scene.with(|_| ()).unwrap_err(),
        ReplicateError::Repository(RepositoryError::Locked { .. })
    ));
    drop(held);
    scene.replicate();
}

#[test]
fn a_full_disk_stops_a_replication_before_damage() {
    let scene = Scene::new();
    scene.replicate();
    fs::write(scene.workshop.source().join("b/f1"), "changed").unwrap();
    scene.workshop.publish();
    let error = scene.with(|replicate| replicate.reserve = Some(u64::MAX / 2)).unwrap_err();
    assert!(matches!(error, ReplicateError::Full { .. }), "{error:?}");
    assert_eq!(head(&scene.root()).revision, 1);
    findings(&scene.workshop, &scene.root()).assert_whole("the old head");
    scene.replicate();
    scene.assert_equal();
}

/// Repositories that the reference published, with each of its hash algorithms, chunks, and files that are not compressed.
#[test]
fn repositories_of_the_reference_are_replicated_with_all_tagged_revisions() {
    for fixture in esker_testkit::fixture::ALL {
        let unpacked = fixture.unpack();
        let mirror = Mirror::serve(unpacked.document_root());
        let engine = engine();
        let source = source(&engine, &[mirror.url(fixture.name())]);
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join(fixture.name());
        let keys = fs::read(fixture.public_key()).unwrap();
        let name = RepositoryName::parse(fixture.name()).unwrap();
        let replicate = Replicate::new(name.clone(), source.describe(), source, keys.clone(), &quiet);
        let done = Replicate { reserve: Some(0), ..replicate }.run(&root, now()).unwrap();
        assert!(done.changed && done.skipped.is_empty() && done.warnings.is_empty(), "{done:?}");
        assert!(done.revisions >= 2, "{done:?}");
        let judge = |root: &Path| check(root, fixture.name(), &String::from_utf8(keys.clone()).unwrap());
        let copied = judge(&root);
        copied.assert_whole(fixture.name());
        assert_same_trees(&judge(&unpacked.path()).listing(), &copied.listing());
        let place = CheckPlace { root, name, keys: None, spool: None };
        let report = Check::new(&|_| ()).run(&place, now()).unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
    }
}

#[test]
fn a_replica_in_object_storage_shows_the_tree_of_its_source_and_is_continued() {
    let scene = Scene::new();
    let bucket: Arc<MemoryBucket> = Arc::default();
    let place = tempfile::tempdir().unwrap();
    let storage = || Storage::new(place.path(), MemorySink::new(&bucket));
    let run = || options(&scene.workshop, scene.source()).run(storage(), now());
    // Interrupted after some objects: they are not fetched again.
    let object = scene.workshop.object_of(b"c 7");
    let name = object.file_name().unwrap().to_str().unwrap().to_owned();
    let rule = scene.mirror.fault(move |path| path.ends_with(&name), Fault::Missing);
    assert!(run().is_err());
    rule.assert_hit();
    rule.lift();
    let done = run().unwrap();
    assert!(done.changed && done.present > 0, "{done:?}");
    let judge = || {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join(NAME);
        bucket.export(&root);
        let findings = findings(&scene.workshop, &root);
        findings.assert_whole("in the bucket");
        assert_same_trees(&scene.workshop.check().listing(), &findings.listing());
    };
    judge();
    fs::write(scene.workshop.source().join("b/f1"), "changed").unwrap();
    scene.workshop.publish();
    let done = run().unwrap();
    assert_eq!((done.objects, done.catalogs), (1, 2), "{done:?}");
    judge();
    assert!(!run().unwrap().changed);
}
