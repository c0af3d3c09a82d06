//! Random publishes, collects, replications and kills, against the tree of the publisher.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use esker_maintain::{Collect, Keep, ReplicateError};
use esker_repository::Repository;
use esker_testkit::soak::Random;

use super::*;
use crate::collecting::at_once;

/// Steps of one run.
const STEPS: usize = 40;

struct Model {
    scene: Scene,
    random: Random,
    /// Listings of the published revisions, by number.
    published: std::collections::BTreeMap<u64, Vec<esker_testkit::listing::Entry>>,
    replicated: u64,
    interrupted: u64,
    collected: u64,
}

impl Model {
    fn edit(&mut self) {
        let top = self.scene.workshop.source();
        for _ in 0..1 + self.random.below(4) {
            let directory = top.join(["a/deep", "b", "c", "d"][self.random.below(4)]);
            fs::create_dir_all(&directory).unwrap();
            let name = directory.join(format!("f{}", self.random.below(6)));
            match self.random.below(5) {
                0 => drop(fs::remove_file(name)),
                1 => fs::write(directory.join(".cvmfscatalog"), "").unwrap(),
                // Contents come back.
                _ => fs::write(name, format!("content {}", self.random.below(12))).unwrap(),
            }
        }
        self.scene.workshop.publish();
        let findings = self.scene.workshop.check();
        self.published.insert(findings.revision, findings.listing());
    }

    fn replicate(&mut self) {
        let limit = self.random.below(3) as u64;
        let stop_at = self.random.below(8) as u64;
        let fails = self.random.below(2) == 0;
        let seen = AtomicU64::new(0);
        let stop = Arc::new(AtomicBool::new(false));
        let raise = stop.clone();
        let source = Arc::new(Counting {
            inner: self.scene.source(),
            hook: Box::new(move || {
                if fails && seen.fetch_add(1, Ordering::Relaxed) == stop_at {
                    raise.store(true, Ordering::Relaxed);
                }
            }),
        });
        let mut replicate = options(&self.scene.workshop, source);
        replicate.revisions = if limit == 0 { RevisionLimit::All } else { RevisionLimit::Newest(limit) };
        replicate.stop = stop;
        match replicate.run(&self.scene.root(), now()) {
            Ok(_) => self.replicated += 1,
            Err(ReplicateError::Repository(RepositoryError::Interrupted)) => self.interrupted += 1,
            Err(error) => panic!("{error:?}"),
        }
    }

    fn collect(&mut self) {
        let keep = Keep::Last(self.random.below(2) as u64);
        if self.random.below(2) == 0 {
            let short = Collect { automatic_tags: Some(-10), ..at_once(keep) };
            short.run(&self.scene.workshop.open(), now()).unwrap();
            return;
        }
        if !self.scene.root().join(".cvmfspublished").exists() {
            return;
        }
        let name = RepositoryName::parse(NAME).unwrap();
        let replica = Repository::open_replica(&self.scene.root(), &name, now()).unwrap();
        let grace = [0, 3600][self.random.below(2)];
        Collect { grace, ..at_once(keep) }.run(&replica, now()).unwrap();
        self.collected += 1;
    }

    fn judge(&self, step: usize) {
        if !self.scene.root().join(".cvmfspublished").exists() {
            return;
        }
        let revision = head(&self.scene.root()).revision;
        self.scene.check(&format!("step {step}"));
        let found = findings(&self.scene.workshop, &self.scene.root()).listing();
        assert_same_trees(&self.published[&revision], &found);
    }
}

/// Calls a hook before each request.
struct Counting {
    inner: Arc<dyn Source>,
    hook: Box<dyn Fn() + Send + Sync>,
}

impl Source for Counting {
    fn fetch(&self, fetch: esker_store::Fetch, done: esker_store::Callback<esker_store::Stored>) {
        (self.hook)();
        self.inner.fetch(fetch, done);
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

#[test]
fn a_replica_is_a_whole_published_revision_after_every_step() {
    let mut counts = (0, 0, 0);
    for seed in 1..=3 {
        let scene = Scene::new();
        let findings = scene.workshop.check();
        let published = [(findings.revision, findings.listing())].into();
        let random = Random(seed * 7919);
        let mut model = Model { scene, random, published, replicated: 0, interrupted: 0, collected: 0 };
        for step in 0..STEPS {
            match model.random.below(6) {
                0 | 1 => model.edit(),
                2..=4 => model.replicate(),
                _ => model.collect(),
            }
            model.judge(step);
        }
        counts.0 += model.replicated;
        counts.1 += model.interrupted;
        counts.2 += model.collected;
        model.scene.with(|_| ()).unwrap();
        model.judge(STEPS);
        assert_eq!(head(&model.scene.root()).revision, head(&model.scene.workshop.root()).revision);
    }
    assert!(counts.0 > 9 && counts.1 > 2 && counts.2 > 1, "{counts:?}");
}
