//! Disks and servers that fail, at every point.

use esker_maintain::ReplicateError;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_store::{Callback, Cause, Fetch, RealDisk, StoreError, Stored};
use esker_testkit::disk::{FaultDisk, Plan, scratch};

use super::*;

/// Fails the request with this number, and counts.
struct FailingSource {
    inner: Arc<dyn Source>,
    at: u64,
    seen: AtomicU64,
}

impl Source for FailingSource {
    fn fetch(&self, fetch: Fetch, done: Callback<Stored>) {
        if self.seen.fetch_add(1, Ordering::Relaxed) + 1 == self.at {
            return done.err(StoreError::new("a request", Cause::Status(500)));
        }
        self.inner.fetch(fetch, done);
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

/// A source with a changed second revision, and a replica of the first.
struct Changed {
    scene: Scene,
    /// The replica before.
    template: tempfile::TempDir,
    old: Vec<esker_testkit::listing::Entry>,
    new: Vec<esker_testkit::listing::Entry>,
}

impl Changed {
    fn new() -> Self {
        let scene = Scene::new();
        scene.replicate();
        let old = scene.workshop.check().listing();
        fs::write(scene.workshop.source().join("b/f1"), "changed").unwrap();
        fs::write(scene.workshop.source().join("a/deep/new"), "new").unwrap();
        scene.workshop.publish();
        let new = scene.workshop.check().listing();
        let template = scratch();
        copy(&scene.root(), &template.path().join(NAME));
        Self { scene, template, old, new }
    }

    fn folder(&self) -> tempfile::TempDir {
        let folder = scratch();
        copy(&self.template.path().join(NAME), &folder.path().join(NAME));
        folder
    }

    fn run(
        &self,
        folder: &Path,
        disks: &Disks,
        source: Arc<dyn Source>,
    ) -> Result<Replicated, ReplicateError> {
        let replicate = options(&self.scene.workshop, source);
        replicate.run((disks, &*folder.join(NAME)), now())
    }

    /// Asserts that a replica is one of the two revisions; tells whether it is the new one.
    fn judge(&self, folder: &Path, when: &str) -> bool {
        let findings = findings(&self.scene.workshop, &folder.join(NAME));
        findings.assert_whole(when);
        let is_new = findings.revision == 2;
        assert_same_trees(if is_new { &self.new } else { &self.old }, &findings.listing());
        is_new
    }

    fn finish(&self, folder: &Path, when: &str) {
        let done = self.run(folder, &Disks::default(), self.scene.source());
        done.unwrap_or_else(|error| panic!("{when}: {error:?}"));
        assert!(self.judge(folder, when), "{when}");
        findings(&self.scene.workshop, &folder.join(NAME)).assert_whole(when);
        assert!(!folder.join(NAME).join(".cvmfs_is_snapshotting").exists(), "{when}");
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.unwrap().success());
}

fn disks(disk: &FaultDisk) -> Disks {
    Disks { served: Arc::new(disk.making(RealDisk::SERVED)), private: Arc::new(disk.clone()) }
}

#[test]
fn a_failed_disk_operation_leaves_the_old_head_or_the_new_one() {
    let changed = Changed::new();
    let mut hits = 0;
    for (ever, errno) in [(false, 5), (true, 28)] {
        for at in (1..).step_by(if ever { 3 } else { 1 }) {
            let folder = changed.folder();
            let disk = FaultDisk::new(folder.path(), Plan::Fail { at, ever, errno });
            let outcome = changed.run(folder.path(), &disks(&disk), changed.scene.source());
            if disk.struck() == 0 {
                assert!(outcome.unwrap().changed);
                break;
            }
            let when = format!("operation {at}, ever {ever}: {outcome:?}");
            let is_new = changed.judge(folder.path(), &when);
            assert!(outcome.is_err() || is_new, "{when}");
            if at % 4 == 1 {
                changed.finish(folder.path(), &when);
            }
            hits += 1;
        }
    }
    assert!(hits > 60, "{hits}");
}

#[test]
fn a_failed_request_leaves_the_old_head_and_the_next_run_goes_on() {
    let changed = Changed::new();
    let mut hits = 0;
    for at in 1.. {
        let folder = changed.folder();
        let inner = changed.scene.source();
        let source = Arc::new(FailingSource { inner, at, seen: AtomicU64::new(0) });
        let outcome = changed.run(folder.path(), &Disks::default(), source.clone());
        if source.seen.load(Ordering::Relaxed) < at {
            assert!(outcome.unwrap().changed);
            break;
        }
        let when = format!("request {at}: {outcome:?}");
        assert!(outcome.is_err(), "{when}");
        assert!(!changed.judge(folder.path(), &when), "{when}");
        changed.finish(folder.path(), &when);
        hits += 1;
    }
    assert!(hits > 5, "{hits}");
}

#[test]
fn a_power_loss_before_any_change_leaves_the_old_head_or_the_new_one() {
    let changed = Arc::new(Changed::new());
    let folder = changed.folder();
    let disk = FaultDisk::new(folder.path(), Plan::Nothing);
    let seen = Arc::new(std::sync::Mutex::new([0, 0]));
    disk.before_each_change({
        let (changed, seen) = (changed.clone(), seen.clone());
        move |moment| {
            let number = moment.change;
            for loss in [esker_testkit::disk::Loss::Everything, esker_testkit::disk::Loss::Some(number)] {
                let image = moment.crash(loss);
                let when = format!("{loss:?} lost before change {number}");
                let is_new = changed.judge(image.path(), &when);
                seen.lock().unwrap()[usize::from(is_new)] += 1;
                if number.is_multiple_of(8) {
                    changed.finish(image.path(), &when);
                }
            }
        }
    });
    changed.run(folder.path(), &disks(&disk), changed.scene.source()).unwrap();
    let seen = *seen.lock().unwrap();
    assert!(seen[0] > 20 && seen[1] > 3, "{seen:?}");
}

#[test]
fn a_head_whose_root_catalog_is_missing_is_refused() {
    let scene = Scene::new();
    scene.replicate();
    fs::write(scene.workshop.source().join("b/f1"), "changed").unwrap();
    scene.workshop.publish();
    let root = head(&scene.workshop.root()).root_catalog.to_string();
    let rule = scene.mirror.fault(move |path| path.contains(&root[2..]), Fault::Missing);
    let error = scene.with(|_| ()).unwrap_err();
    rule.assert_hit();
    assert!(matches!(error, ReplicateError::Repository(RepositoryError::Missing { .. })), "{error:?}");
    assert_eq!(head(&scene.root()).revision, 1);
    rule.lift();
    scene.replicate();
    scene.assert_equal();
}

#[test]
fn a_missing_object_of_the_head_keeps_the_old_head() {
    let scene = Scene::new();
    scene.replicate();
    fs::write(scene.workshop.source().join("b/f1"), "changed").unwrap();
    scene.workshop.publish();
    let object = scene.workshop.object_of(b"changed");
    let name = object.file_name().unwrap().to_str().unwrap().to_owned();
    let rule = scene.mirror.fault(move |path| path.ends_with(&name), Fault::Missing);
    assert!(scene.with(|_| ()).is_err());
    rule.assert_hit();
    assert_eq!(head(&scene.root()).revision, 1);
    rule.lift();
    scene.replicate();
    scene.assert_equal();
}

#[test]
fn damaged_objects_are_fetched_from_the_next_server_or_refused() {
    let scene = Scene::new();
    let is_object = |path: &str| path.contains("/data/");
    for fault in [Fault::FlipByte(3), Fault::Truncate(5), Fault::Html, Fault::CloseAfter(4)] {
        let rule = scene.mirror.fault(is_object, fault.clone());
        assert!(scene.with(|_| ()).is_err(), "{fault:?}");
        rule.assert_hit();
        assert!(!scene.root().join(".cvmfspublished").exists());
        rule.lift();
    }
    let rule = scene.mirror.fault(is_object, Fault::FlipByte(3));
    let good = Mirror::serve(scene.workshop.root().parent().unwrap());
    let source = source(&engine(), &[scene.url(), good.url(NAME)]);
    let done = options(&scene.workshop, source).run(&scene.root(), now()).unwrap();
    rule.assert_hit();
    assert!(done.changed);
    scene.assert_equal();
}

#[test]
fn an_interrupted_first_copy_does_not_fetch_again_what_it_has() {
    let scene = Scene::new();
    let rule = scene.mirror.fault(|path| path.ends_with('C'), Fault::Missing);
    assert!(scene.with(|_| ()).is_err());
    rule.lift();
    // The last object of the first copy never arrives.
    let object = scene.workshop.object_of(b"c 7");
    let name = object.file_name().unwrap().to_str().unwrap().to_owned();
    let rule = scene.mirror.fault(move |path| path.ends_with(&name), Fault::Status(500));
    assert!(scene.with(|_| ()).is_err());
    rule.assert_hit();
    rule.lift();
    let catalogs = scene.mirror.count(|path| path.ends_with('C'));
    assert!(catalogs >= 4, "{catalogs}");
    scene.mirror.forget();
    let done = scene.replicate();
    assert_eq!(done.catalogs, 0, "staged ones are used: {done:?}");
    assert_eq!(scene.mirror.count(|path| path.ends_with('C')), 0);
    assert!(done.present > 0, "{done:?}");
    scene.assert_equal();
}
