//! Operations of the disk that fail, and power that is lost: the repository always is one whole revision.

use std::error::Error as _;
use std::sync::{Arc, Mutex};

use esker_publish::PublishError;
use esker_testkit::disk::{FaultDisk, Loss, Plan};

use crate::scene::{Act, Scene};
use crate::workshop::disks;

/// A failure names the file and the cause.
fn assert_clear(error: &PublishError, cause: &str, when: &str) {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(&format!(": {source}"));
        next = source.source();
    }
    assert!(text.contains(cause) && text.contains('/'), "{when}: {text}");
}

/// One run with a failing disk; false if it was through before the fault.
fn fail(scene: &Scene, at: u64, ever: bool, (errno, cause): (i32, &str)) -> bool {
    let folder = scene.copy();
    let disk = FaultDisk::new(folder.path(), Plan::Fail { at, ever, errno });
    let outcome = scene.run(&disks(&disk), folder.path());
    if disk.struck() == 0 {
        assert!(outcome.unwrap().published);
        return false;
    }
    let when = format!("operation {at}, ever {ever}, {outcome:?}");
    let is_new = scene.judge(folder.path(), &when);
    match &outcome {
        Ok(report) => assert!(is_new && report.published, "{when}"),
        Err(error) => {
            assert_clear(error, cause, &when);
            // Only one thing can fail once the head is replaced.
            let lost = format!("{:?}", error.source()).contains("may not outlast");
            assert!(!is_new || lost, "{when}");
        }
    }
    scene.finish(folder.path(), &when);
    true
}

/// `step` leaves out operations that are like their neighbours, or that fail in another test with the other error.
fn fail_everywhere(act: Act, error: (i32, &str), ever: bool, step: usize) {
    let scene = Scene::new(act);
    let mut hits = 0;
    for at in (1..).step_by(step) {
        if !fail(&scene, at, ever, error) {
            break;
        }
        hits += 1;
    }
    assert!(hits > 40, "{act:?}: {hits}");
}

const IO: (i32, &str) = (5, "Input/output error");
const FULL: (i32, &str) = (28, "No space left on device");

#[test]
fn a_single_failure_of_any_operation_is_survived() {
    fail_everywhere(Act::Again, IO, false, 1);
    fail_everywhere(Act::Again, FULL, false, 3);
    fail_everywhere(Act::Many, IO, false, 7);
}

#[test]
fn failures_from_any_operation_on_are_survived() {
    fail_everywhere(Act::Again, IO, true, 3);
    fail_everywhere(Act::Again, FULL, true, 1);
    fail_everywhere(Act::Many, FULL, true, 7);
}

#[test]
fn a_failure_of_any_operation_of_a_first_publish_is_survived() {
    fail_everywhere(Act::First, IO, false, 1);
    fail_everywhere(Act::First, FULL, true, 2);
}

#[test]
fn a_failure_of_any_operation_of_an_ingest_is_survived() {
    fail_everywhere(Act::Ingest, IO, false, 1);
    fail_everywhere(Act::Ingest, FULL, true, 2);
}

/// Before every change of a publish: if the power failed now, the repository would have the old revision or the new
/// one, and the next publish would succeed. After the publish has returned, it would have the new one.
fn lose_power_everywhere(act: Act) {
    let scene = Arc::new(Scene::new(act));
    let folder = scene.copy();
    let disk = FaultDisk::new(folder.path(), Plan::Nothing);
    let seen = Arc::new(Mutex::new([0, 0]));
    disk.before_each_change({
        let (scene, seen) = (scene.clone(), seen.clone());
        move |moment| {
            let number = moment.change;
            for loss in [Loss::Everything, Loss::Content, Loss::Some(number)] {
                // Most changes among many are alike.
                if act == Act::Many && loss != Loss::Everything && !number.is_multiple_of(4) {
                    continue;
                }
                let image = moment.crash(loss);
                let when = format!("{act:?}: {loss:?} lost before change {number}");
                let is_new = scene.judge(image.path(), &when);
                seen.lock().unwrap()[usize::from(is_new)] += 1;
                if number.is_multiple_of(4) {
                    scene.finish(image.path(), &when);
                }
            }
        }
    });
    scene.run(&disks(&disk), folder.path()).unwrap();
    let seen = *seen.lock().unwrap();
    assert!(seen[0] > 60 && seen[1] > 5, "{act:?}: {seen:?}");
    for loss in [Loss::Everything, Loss::Content, Loss::Some(0)] {
        let when = format!("{act:?}: {loss:?} lost after the end");
        assert!(scene.judge(disk.crash_now(loss).path(), &when), "{when}");
    }
}

#[test]
fn a_power_loss_before_any_change_of_a_publish_is_survived() {
    lose_power_everywhere(Act::First);
    lose_power_everywhere(Act::Again);
}

#[test]
fn a_power_loss_before_any_change_of_a_large_publish_is_survived() {
    lose_power_everywhere(Act::Many);
}

#[test]
fn a_power_loss_before_any_change_of_an_ingest_is_survived() {
    lose_power_everywhere(Act::Ingest);
}
