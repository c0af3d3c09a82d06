//! Passing faults of single objects don't end a run.

use esker_maintain::ReplicateError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;

fn fast() -> Retries {
    let pause = Duration::from_millis(1);
    Retries { first_pause: pause, longest_pause: pause, ..Retries::default() }
}

fn is_object(path: &str) -> bool {
    path.contains("/data/")
}

/// > U12: A passing fault of some objects (a failing status, a request for a pause, a transfer that breaks off, wrong bytes) does not end a replication.
#[test]
fn a_passing_fault_of_each_object_does_not_end_a_run() {
    let faults = [
        Fault::Status(500),
        Fault::Status(503),
        Fault::RetryAfter(0),
        Fault::CloseAfter(4),
        Fault::Truncate(5),
        Fault::FlipByte(3),
        Fault::Html,
    ];
    for fault in faults {
        let scene = Scene::new();
        // Each object fails once, catalogs and the like among them.
        let seen: std::sync::Mutex<std::collections::HashMap<String, u32>> = std::sync::Mutex::default();
        let first = move |path: &str| {
            let mut seen = seen.lock().unwrap();
            let count = seen.entry(path.to_owned()).or_default();
            *count += 1;
            is_object(path) && *count <= 1
        };
        let rule = scene.mirror.fault(first, fault.clone());
        let done = scene.with(|replicate| replicate.retries = fast());
        let done = done.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert!(done.changed && done.skipped.is_empty(), "{done:?}");
        assert!(rule.hits() > 20, "{fault:?}: {}", rule.hits());
        scene.assert_equal();
    }
}

#[test]
fn a_flaky_load_balancer_is_outlasted() {
    let scene = Scene::new();
    let count = AtomicU64::new(0);
    // A fifth of all requests fails, which is worse than one of 20.
    let some = move |path: &str| {
        let number = count.fetch_add(1, Ordering::Relaxed);
        is_object(path) && number.wrapping_mul(2_654_435_761) >> 7 & 0xff < 51
    };
    let rule = scene.mirror.fault(some, Fault::Status(502));
    for number in 0..10 {
        fs::write(scene.workshop.source().join("b/f1"), format!("changed {number}")).unwrap();
        scene.workshop.publish();
        scene.with(|replicate| replicate.retries = fast()).unwrap();
    }
    assert!(rule.hits() > 10, "{}", rule.hits());
    scene.assert_equal();
}

#[test]
fn a_lasting_fault_ends_a_run_after_a_bounded_number_of_attempts() {
    let scene = Scene::new();
    let object = scene.workshop.object_of(b"c 7");
    let name = object.file_name().unwrap().to_str().unwrap().to_owned();
    let rule = scene.mirror.fault(move |path| path.ends_with(&name), Fault::Status(500));
    let error = scene.with(|replicate| replicate.retries = Retries { number: 5, ..fast() }).unwrap_err();
    assert!(matches!(error, ReplicateError::Repository(RepositoryError::Storage(_))), "{error:?}");
    assert!((6..40).contains(&rule.hits()), "{}", rule.hits());
    assert!(!scene.root().join(".cvmfspublished").exists());
}

/// > U14: A command that publishes, replicates, checks or collects ends soon after SIGTERM or Ctrl-C, also while a server accepts its requests and never answers, and the next one uses what was stored.
#[test]
fn a_server_that_never_answers_does_not_hold_up_an_interruption() {
    for catalogs in [true, false] {
        let scene = Scene::new();
        let picks = move |path: &str| is_object(path) && path.ends_with('C') == catalogs;
        let rule = scene.mirror.fault(picks, Fault::NoAnswer);
        let stop = Arc::new(AtomicBool::new(false));
        let begun = std::thread::scope(|scope| {
            let run = scope.spawn(|| scene.with(|replicate| replicate.stop = stop.clone()));
            rule.wait_for_hits(1);
            stop.store(true, Ordering::Relaxed);
            let begun = std::time::Instant::now();
            let error = run.join().unwrap().unwrap_err();
            assert!(matches!(error, ReplicateError::Repository(RepositoryError::Interrupted)), "{error:?}");
            begun
        });
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        rule.lift();
        scene.replicate();
        scene.assert_equal();
    }
}
