//! Checks of a repository that changes meanwhile, or whose publisher was killed.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_format::name::RepositoryName;
use esker_maintain::{Check, CheckPlace, CheckProgress, CheckReport, Collect, DataCheck, FindingKind, Keep};
use esker_publish::{Publish, PublishError, PublishOptions, TagRequest};
use esker_repository::Repository;
use esker_testkit::disk::{FaultDisk, Plan, scratch};

use crate::collecting::at_once;
use crate::workshop::{NAME, Workshop, disks, now, options, publish};

fn place(workshop: &Workshop) -> CheckPlace {
    let keys = Some(workshop.keys().public().unwrap());
    CheckPlace { root: workshop.root(), name: RepositoryName::parse(NAME).unwrap(), keys, spool: None }
}

/// Publishes a revision in which every file is another one.
fn change(workshop: &Workshop, number: u32) {
    for directory in ["a", "b"] {
        let directory = workshop.source().join(directory);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(".cvmfscatalog"), "").unwrap();
        (0..10).for_each(|file| {
            fs::write(directory.join(format!("f{file}")), format!("{directory:?} {file} {number}")).unwrap();
        });
    }
    workshop.publish();
}

/// Publishes, and collects everything but the head.
fn publish_and_collect(workshop: &Workshop, number: u32) {
    (0..3).for_each(|more| change(workshop, number + more));
    let collect = Collect { automatic_tags: Some(-60), ..at_once(Keep::Tags) };
    assert!(collect.run(&workshop.open(), now()).unwrap().deleted.objects > 20);
}

/// Checks with all bytes; `act` runs once, in the middle of a phase.
fn check(workshop: &Workshop, phase: fn(&CheckProgress) -> bool, act: &(dyn Fn() + Sync)) -> CheckReport {
    let done = AtomicBool::new(false);
    let progress = |progress| {
        if phase(&progress) && !done.swap(true, Ordering::Relaxed) {
            act();
        }
    };
    let mut check = Check::new(&progress);
    check.data = Some(DataCheck::default());
    let report = check.run(&place(workshop), now()).unwrap();
    assert!(done.load(Ordering::Relaxed), "the phase was met");
    report
}

const PHASES: [fn(&CheckProgress) -> bool; 4] = [
    |progress| matches!(progress, CheckProgress::Catalogs { done: 0 }),
    |progress| matches!(progress, CheckProgress::Catalogs { done } if *done > 0),
    |progress| matches!(progress, CheckProgress::Presence { .. }),
    |progress| matches!(progress, CheckProgress::Data { folders: 128, .. }),
];

/// > U16: What is published and collected during a check is no fault, and damage is found all the same.
#[test]
fn what_is_published_and_collected_during_a_check_is_no_fault() {
    for phase in PHASES {
        let workshop = Workshop::new();
        change(&workshop, 0);
        change(&workshop, 1);
        let report = check(&workshop, phase, &|| publish_and_collect(&workshop, 2));
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        workshop.check().assert_clean();
    }
}

/// > U16: What is published and collected during a check is no fault, and damage is found all the same.
#[test]
fn damage_is_found_also_while_the_repository_changes() {
    for phase in PHASES {
        let workshop = Workshop::new();
        fs::write(workshop.source().join("damaged"), "this stays").unwrap();
        fs::write(workshop.source().join("lost"), "this stays as well").unwrap();
        // In a tagged revision: a publish would store again what it reads.
        let mut progress = |_| ();
        let tag = TagRequest { name: Some("keep".to_owned()), ..TagRequest::default() };
        let options = PublishOptions { tag, ..options(&mut progress) };
        let (source, target) = (workshop.source(), Vec::new());
        Publish { source, target, options }.run(&workshop.open(), now()).unwrap();
        for file in ["damaged", "lost"] {
            fs::remove_file(workshop.source().join(file)).unwrap();
        }
        change(&workshop, 0);
        fs::write(workshop.object_of(b"this stays"), "something else").unwrap();
        fs::remove_file(workshop.object_of(b"this stays as well")).unwrap();
        let report = check(&workshop, phase, &|| publish_and_collect(&workshop, 1));
        let found: Vec<_> = report.findings.iter().map(|one| (one.kind, one.path.as_deref())).collect();
        let expected =
            [(FindingKind::ObjectMissing, Some("/lost")), (FindingKind::ObjectDamaged, Some("/damaged"))];
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(expected.iter().all(|one| found.contains(one)), "{found:?}");
    }
}

#[test]
fn an_object_that_vanishes_without_a_new_head_is_a_fault() {
    let workshop = Workshop::new();
    fs::write(workshop.source().join("lost"), "this is needed").unwrap();
    change(&workshop, 0);
    let object = workshop.object_of(b"this is needed");
    let is_late = |progress: &CheckProgress| matches!(progress, CheckProgress::Presence { .. });
    let report = check(&workshop, is_late, &|| fs::remove_file(&object).unwrap());
    let found: Vec<_> = report.findings.iter().map(|one| (one.kind, one.path.as_deref())).collect();
    assert_eq!(found, [(FindingKind::ObjectMissing, Some("/lost"))]);
}

/// > U15: A publisher that is killed at any moment leaves no fault for `esker check`, and the next command that opens the repository for publishing puts the reflog right.
#[test]
fn a_publisher_that_ends_at_any_operation_leaves_no_fault_and_the_next_one_mends_the_reflog() {
    let workshop = Workshop::new();
    change(&workshop, 0);
    fs::write(workshop.source().join("new"), "new").unwrap();
    let name = RepositoryName::parse(NAME).unwrap();
    let (mut ended, mut between) = (0, 0);
    for at in 1.. {
        let folder = scratch();
        let copied =
            std::process::Command::new("cp").arg("-a").arg(workshop.root()).arg(folder.path()).status();
        assert!(copied.unwrap().success());
        let root = folder.path().join(NAME);
        let spool = folder.path().join("spool");
        fs::create_dir(&spool).unwrap();
        fs::write(spool.join("reflog.chksum"), "0".repeat(40)).unwrap();
        // From this operation on nothing is done any more, as after kill -9.
        let disk = FaultDisk::new(folder.path(), Plan::Fail { at, ever: true, errno: 5 });
        let outcome = Repository::open((&disks(&disk), &*root), &name, workshop.keys(), now())
            .map_err(PublishError::from)
            .and_then(|repository| publish(&repository, &workshop.source(), ""));
        if disk.struck() == 0 {
            outcome.unwrap();
            break;
        }
        ended += 1;
        let when = format!("operation {at}: {outcome:?}");
        let place = CheckPlace { root: root.clone(), ..place(&workshop) };
        let report = Check::new(&|_| ()).run(&place, now()).unwrap();
        assert!(report.findings.is_empty(), "{when}: {:#?}", report.findings);
        let is_between = report.notes.iter().any(|note| note.contains("interrupted"));
        between += u32::from(is_between);
        // The next command that opens the repository puts it right, whatever it does.
        let mut repository = Repository::open(&root, &name, workshop.keys(), now()).unwrap();
        repository.share_with_spool(&spool).unwrap();
        drop(repository);
        let place = CheckPlace { spool: Some(spool), ..place };
        let report = Check::new(&|_| ()).run(&place, now()).unwrap();
        assert!(report.findings.is_empty() && report.notes.is_empty(), "{when}: {report:#?}");
        let public = fs::read_to_string(workshop.keys().public_key_file()).unwrap();
        esker_testkit::check::check(&root, NAME, &public).assert_clean();
    }
    assert!(ended > 50 && between > 0, "{ended} ends, {between} between reflog and head");
}
