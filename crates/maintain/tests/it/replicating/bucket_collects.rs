//! Collects on replicas in object storage, whose writers exclude each other by a lease.

use std::sync::atomic::{AtomicU64, Ordering};

use esker_maintain::{Collect, CollectError, Collected, Keep, ReplicateError};
use esker_repository::Repository;
use esker_store::Sink as _;

use super::*;
use crate::collecting::at_once;
use crate::memory_bucket::Fault as BucketFault;
use esker_store::StoredFiles;

const LEASE: &str = ".esker_replica_lease.json";

/// A replica in a bucket, and the machines that write to it.
struct Copy {
    scene: Scene,
    bucket: Arc<MemoryBucket>,
}

impl Copy {
    /// Makes a replica of the last of these contents, which has the objects of the others.
    fn of(contents: &[&str]) -> Self {
        let scene = Scene::of(|new| new.settings.automatic_tags = false);
        let copy = Self { scene, bucket: Arc::default() };
        copy.replicate("first").unwrap();
        for content in contents {
            copy.change(content);
            copy.replicate("first").unwrap();
        }
        copy
    }

    fn change(&self, content: &str) {
        fs::write(self.scene.workshop.source().join("b/f1"), content).unwrap();
        self.scene.workshop.publish();
    }

    fn storage(&self, machine: &str, sink: Arc<MemorySink>) -> Storage {
        Storage::new(&self.scene.folder.path().join(machine), sink)
    }

    fn replicate(&self, machine: &str) -> Result<Replicated, ReplicateError> {
        let mut replicate = options(&self.scene.workshop, self.scene.source());
        // Each new head drops the one before.
        replicate.revisions = RevisionLimit::Newest(0);
        replicate.run(self.storage(machine, MemorySink::new(&self.bucket)), now())
    }

    fn open(&self, machine: &str, sink: Arc<MemorySink>) -> Result<Repository, RepositoryError> {
        let name = RepositoryName::parse(NAME).unwrap();
        let storage = self.storage(machine, sink);
        let mut repository = Repository::open_replica(storage, &name, now())?;
        repository.wait_for_lock(Some(Duration::ZERO), |_| {});
        Ok(repository)
    }

    fn collect(&self, machine: &str, grace: i64) -> Result<Collected, CollectError> {
        let repository = self.open(machine, MemorySink::new(&self.bucket))?;
        Collect { grace, ..at_once(Keep::Last(0)) }.run(&repository, now())
    }

    fn judge(&self, when: &str) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join(NAME);
        self.bucket.export(&root);
        let findings = findings(&self.scene.workshop, &root);
        findings.assert_whole(when);
    }

    fn assert_equal(&self) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join(NAME);
        self.bucket.export(&root);
        let findings = findings(&self.scene.workshop, &root);
        findings.assert_whole("in the bucket");
        assert_same_trees(&self.scene.workshop.check().listing(), &findings.listing());
    }

    fn has(&self, content: &str) -> bool {
        let stored = esker_testkit::object::deflate(content.as_bytes());
        let name = esker_testkit::object::Algorithm::Sha1.hash(&stored);
        let path = esker_testkit::object::path(&name, "");
        MemorySink::new(&self.bucket).read(&path, 1 << 20).unwrap().is_some()
    }

    fn signed(&self) -> Option<Vec<u8>> {
        MemorySink::new(&self.bucket).read(".cvmfspublished", 1 << 20).unwrap()
    }
}

#[test]
fn a_collect_deletes_what_the_signed_head_does_not_need() {
    let copy = Copy::of(&["one", "two", "three"]);
    let (signed, before) = (copy.signed(), copy.bucket.objects());
    let done = copy.collect("first", 0).unwrap();
    assert!(done.deleted.objects > 4, "{done:?}");
    assert_eq!(copy.bucket.objects() as u64, before as u64 - done.deleted.objects);
    assert!(!copy.has("one") && copy.has("three"));
    assert_eq!(copy.signed(), signed);
    copy.assert_equal();
    copy.change("one");
    copy.replicate("first").unwrap();
    copy.assert_equal();
}

#[test]
fn condemned_objects_that_a_new_head_needs_again_stay_in_the_bucket() {
    let copy = Copy::of(&["returns", "between", "other"]);
    let first = copy.collect("first", 3600).unwrap();
    assert!(first.waiting.is_some_and(|waiting| waiting.objects > 0), "{first:?}");
    copy.change("returns");
    let done = copy.replicate("first").unwrap();
    assert_eq!(done.objects, 0, "the object is still here: {done:?}");
    copy.collect("first", 0).unwrap();
    assert!(copy.has("returns"));
    copy.assert_equal();
}

#[test]
fn a_lease_of_another_machine_is_waited_for_until_it_is_over() {
    let copy = Copy::of(&["one", "two"]);
    let sink = MemorySink::new(&copy.bucket);
    let lease = |since: i64| {
        let record = format!("{{\"owner\":\"another machine\",\"since\":{since}}}");
        sink.put_root(LEASE, record.as_bytes()).unwrap();
    };
    lease(now_of_the_clock());
    let held = copy.collect("first", 0).unwrap_err();
    assert!(matches!(held, CollectError::Repository(RepositoryError::Locked { .. })), "{held:?}");
    lease(now_of_the_clock() - 901);
    assert!(copy.collect("first", 0).unwrap().deleted.objects > 0);
    let left = sink.read(LEASE, 1000).unwrap().unwrap();
    assert_eq!(String::from_utf8(left).unwrap(), "{\"owner\":null,\"since\":0}");
    copy.assert_equal();
}

/// Leases are timed by the real clock.
fn now_of_the_clock() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    since.as_secs().cast_signed()
}

#[test]
fn a_failure_of_any_operation_of_a_collect_leaves_the_replica_whole() {
    let mut copy = Copy::of(&["one", "two", "three"]);
    let before = copy.bucket.clone();
    // Every operation fails in one way, some in each.
    for (first, fault) in [(1, BucketFault::Refused), (2, BucketFault::Lost), (3, BucketFault::Ever)] {
        let mut hits = 0;
        for at in (first..).step_by(3) {
            copy.bucket = before.copy();
            let sink = MemorySink::failing(&copy.bucket, Some((at, fault)));
            let collect = || at_once(Keep::Last(0)).run(&copy.open("first", sink.clone())?, now());
            let outcome = collect();
            copy.judge(&format!("{fault:?} at {at}: {outcome:?}"));
            if sink.struck() == 0 {
                outcome.unwrap();
                break;
            }
            hits += 1;
            // The machine that was interrupted goes on at once.
            let again = copy.collect("first", 0);
            again.unwrap_or_else(|error| panic!("{fault:?} at {at}: {error}"));
            assert!(!copy.has("one"), "{fault:?} at {at}");
            copy.judge(&format!("after {fault:?} at {at}"));
        }
        assert!(hits > 12, "{fault:?}: {hits}");
    }
}

#[test]
fn replications_and_collects_of_two_machines_keep_the_replica_whole() {
    let copy = Copy::of(&["0"]);
    copy.replicate("second").unwrap();
    let counts = [AtomicU64::new(0), AtomicU64::new(0)];
    for round in 0..10 {
        // Contents come back, whose objects may be condemned.
        copy.change(&format!("{}", round % 3));
        std::thread::scope(|scope| {
            for (number, machine) in ["first", "second"].into_iter().enumerate() {
                let (copy, counts) = (&copy, &counts);
                scope.spawn(move || {
                    let (grace, begins) = ([0, 3600][round % 2], (round + number) % 2 == 0);
                    for collects in [begins, !begins] {
                        let outcome = match collects {
                            true => copy.collect(machine, grace).map(drop).map_err(|error| match error {
                                CollectError::Repository(error) => error,
                                other => panic!("{machine} in {round}: {other:?}"),
                            }),
                            false => copy.replicate(machine).map(drop).map_err(|error| match error {
                                ReplicateError::Repository(error) => error,
                                other => panic!("{machine} in {round}: {other:?}"),
                            }),
                        };
                        match outcome {
                            Ok(()) => drop(counts[usize::from(collects)].fetch_add(1, Ordering::Relaxed)),
                            Err(RepositoryError::Locked { .. } | RepositoryError::Moving) => {}
                            Err(error) => panic!("{machine} in {round}: {error:?}"),
                        }
                    }
                });
            }
        });
        copy.judge(&format!("round {round}"));
    }
    let counts = counts.map(AtomicU64::into_inner);
    assert!(counts.iter().all(|count| *count > 5), "{counts:?}");
    copy.replicate("first").unwrap();
    copy.assert_equal();
}
