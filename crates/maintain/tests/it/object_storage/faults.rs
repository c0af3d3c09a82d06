//! Failures of single operations of object storage.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_testkit::soak::Soak;

use super::*;
use crate::memory_bucket::Fault;

/// What a publisher or a collector does; false if another revision is published than it expects.
type Run<'r> = dyn Fn(&Repository) -> Result<bool, Box<dyn Error>> + 'r;

/// One run with a failing operation; false if it was through before the fault.
fn fail(before: &Site, fault: (u64, Fault), run: &Run<'_>, judge: &dyn Fn(&Site, &str) -> bool) -> bool {
    let site = before.copy();
    let sink = MemorySink::failing(&site.bucket, Some(fault));
    let outcome = open_in(site.storage(sink.clone(), "failing"))
        .map_err(Into::into)
        .and_then(|repository| run(&repository));
    let when = format!("{fault:?}: {outcome:?}");
    if sink.struck() == 0 {
        assert!(outcome.unwrap(), "{when}");
        return false;
    }
    let is_new = judge(&site, &when);
    // Only a lost answer, or a failure after the head, leaves a new revision with an error.
    assert!(outcome.is_err() || is_new, "{when}");
    // The publisher repeats it.
    run(&site.open("failing")).unwrap_or_else(|error| panic!("{when}: {error}"));
    assert!(judge(&site, &when), "{when}");
    site.findings().assert_clean();
    true
}

/// Every operation fails in one way, some in each.
fn fail_everywhere(site: &Site, run: &Run<'_>, judge: &dyn Fn(&Site, &str) -> bool) {
    for (first, fault) in [(1, Fault::Refused), (2, Fault::Lost), (3, Fault::Ever)] {
        let places = (first..).step_by(3);
        let hits = places.take_while(|at| fail(site, (*at, fault), run, judge)).count();
        assert!(hits > 12, "{fault:?}: {hits}");
    }
}

#[test]
fn a_failure_of_any_operation_of_a_publish_leaves_the_old_or_the_new_revision() {
    let site = Site::new();
    publish(&site.open("first"), folder(&[("a/file", "old"), ("b/file", "stays")]).path(), "").unwrap();
    let source = folder(&[("a/file", "new"), ("b/file", "stays"), ("c/.cvmfscatalog", ""), ("c/d", "more")]);
    let old = site.findings().listing();
    let new = of_folder(source.path());
    let judge = |site: &Site, when: &str| {
        let findings = site.findings();
        // A publisher that is killed after it replaced the head leaves the reflog to the next one.
        let is_late = |problem: &&String| !problem.contains("reflog");
        let problems: Vec<_> = findings.problems.iter().filter(is_late).collect();
        assert!(problems.is_empty(), "{when}: {problems:?}");
        let is_new = findings.revision > 1;
        assert_same_trees(if is_new { &new } else { &old }, &findings.listing());
        is_new
    };
    let tags = AtomicU64::new(0);
    let run = |repository: &Repository| {
        let report = publish(repository, source.path(), "")?;
        // A repeated one finds everything done, and completes the reflog with a tag.
        let stop = AtomicBool::new(false);
        let name = format!("tag-{}", tags.fetch_add(1, Ordering::Relaxed));
        let (revision, description) = (None, String::new());
        TagChange::Add { name, revision, description, force: false }.run(repository, now(), &stop)?;
        Ok(report.revision == 2)
    };
    fail_everywhere(&site, &run, &judge);
}

/// Three revisions, of which a collect deletes objects.
fn of_three_revisions() -> Site {
    let site = Site::new();
    for content in ["one", "two", "three"] {
        publish(&site.open("first"), folder(&[("file", content), ("same", "same")]).path(), "").unwrap();
    }
    site
}

/// Asserts that the published revisions are whole; returns whether objects were deleted.
fn judge_collect(full: usize) -> impl Fn(&Site, &str) -> bool {
    move |site, when| {
        let findings = site.findings();
        let is_late = |problem: &&String| !problem.contains("reflog");
        let problems: Vec<_> = findings.problems.iter().filter(is_late).collect();
        assert!(problems.is_empty(), "{when}: {problems:?}");
        site.bucket.objects() < full
    }
}

fn collect_now(repository: &Repository) -> Result<bool, Box<dyn Error>> {
    collect(repository, 0, now())?;
    Ok(true)
}

#[test]
fn a_failure_of_any_operation_of_a_collect_loses_no_object_of_a_kept_revision() {
    let site = of_three_revisions();
    fail_everywhere(&site, &collect_now, &judge_collect(site.bucket.objects()));
}

/// The same for each operation in each way, as far as the time of the soak allows.
#[test]
fn soak_faults_of_a_collect_in_object_storage() {
    let site = of_three_revisions();
    let judge = judge_collect(site.bucket.objects());
    let mut soak = Soak::begin("faults_of_a_collect_in_object_storage");
    let (mut is_whole, mut left) = (false, vec![Fault::Refused, Fault::Lost, Fault::Ever]);
    for at in 1.. {
        left.retain(|fault| fail(&site, (at, *fault), &collect_now, &judge));
        is_whole = left.is_empty();
        if is_whole || !soak.goes_on_until(12) {
            break;
        }
    }
    soak.finish(&[("all operations failed in each way", &is_whole)]);
}
