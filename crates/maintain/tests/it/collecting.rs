//! Collects: the objects that are kept and deleted, and the state after an interruption.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use esker_format::hash::ContentHash;
use esker_format::manifest::Manifest;
use esker_format::name::RepositoryName;
use esker_format::reflog::Reflog;
use esker_format::time::UnixTime;
use esker_maintain::{Collect, CollectError, Collected, Keep};
use esker_repository::{Disks, NewRepository, Repository, RepositoryError};
use esker_store::RealDisk;
use esker_testkit::disk::{FaultDisk, Plan, scratch};

use crate::workshop::{NAME, Workshop, now, objects, publish_at};

const DAY: i64 = 86_400;
const NO_TAGS: fn(&mut NewRepository) = |new| new.settings.automatic_tags = false;

fn quiet(_: esker_maintain::CollectProgress) {}

/// A collect that deletes at once.
pub(crate) fn at_once(keep: Keep) -> Collect<'static> {
    Collect { keep, grace: 0, threads: 3, ..Collect::new(&quiet) }
}

/// A repository that was created weeks ago.
fn aged(change: impl Fn(&mut NewRepository)) -> Workshop {
    let workshop = Workshop::with(&change);
    fs::remove_dir_all(workshop.root()).unwrap();
    let mut new = NewRepository::new(RepositoryName::parse(NAME).unwrap());
    change(&mut new);
    new.create(&workshop.root(), &workshop.keys(), UnixTime(now().0 - 20 * DAY)).unwrap();
    workshop
}

/// Publishes revisions whose only file differs, one a day, the last one now.
fn revisions(workshop: &Workshop, count: i64) {
    revisions_until(workshop, count, now());
}

fn revisions_until(workshop: &Workshop, count: i64, today: UnixTime) {
    for number in 0..count {
        fs::write(workshop.source().join("file"), format!("content {number}")).unwrap();
        fs::write(workshop.source().join("stays"), "stays").unwrap();
        let time = UnixTime(today.0 - (count - 1 - number) * DAY);
        publish_at(time, &workshop.open(), &workshop.source(), "").unwrap();
    }
}

fn has_content(workshop: &Workshop, number: i64) -> bool {
    let stored = esker_testkit::object::deflate(format!("content {number}").as_bytes());
    let name = esker_testkit::object::Algorithm::Sha1.hash(&stored);
    workshop.root().join(esker_testkit::object::path(&name, "")).exists()
}

fn contents(workshop: &Workshop, count: i64) -> Vec<i64> {
    (0..count).filter(|number| has_content(workshop, *number)).collect()
}

fn manifest(root: &Path) -> Manifest {
    Manifest::parse(&fs::read(root.join(".cvmfspublished")).unwrap()).unwrap()
}

#[test]
fn old_revisions_are_dropped_and_one_beyond_the_age_stays() {
    let workshop = aged(NO_TAGS);
    revisions(&workshop, 8);
    assert_eq!(contents(&workshop, 8), [0, 1, 2, 3, 4, 5, 6, 7]);
    let collect = at_once(Keep::Age(3 * DAY - 60));
    let plan = collect.dry_run(&workshop.open(), now()).unwrap();
    assert_eq!(contents(&workshop, 8).len(), 8, "a dry run deletes nothing");
    let done = collect.run(&workshop.open(), now()).unwrap();
    // Today's, those one and two days old, and the first that is too old.
    assert_eq!(contents(&workshop, 8), [4, 5, 6, 7]);
    assert_eq!((done.plan.kept, done.plan.dropped.len()), (4, 5), "four of eight and the empty revision");
    assert_eq!(done.plan.dropped, plan.dropped);
    assert_eq!((done.deleted.objects, done.deleted.bytes), (plan.objects, plan.bytes));
    assert!(done.deleted.objects > 8 && done.waiting.is_none());
    workshop.assert_equal();
    let again = collect.run(&workshop.open(), now()).unwrap();
    assert_eq!((again.deleted.objects, again.plan.dropped.len()), (0, 0));
}

#[test]
fn the_last_n_revisions_and_all_tagged_ones_are_kept() {
    let workshop = aged(NO_TAGS);
    revisions(&workshop, 6);
    at_once(Keep::Last(2)).run(&workshop.open(), now()).unwrap();
    assert_eq!(contents(&workshop, 6), [3, 4, 5]);
    // The tags `trunk` and `trunk-previous` are left.
    at_once(Keep::Tags).run(&workshop.open(), now()).unwrap();
    assert_eq!(contents(&workshop, 6), [4, 5]);
    workshop.assert_equal();
}

#[test]
fn old_automatic_tags_are_removed_and_keep_their_revisions_until_then() {
    let workshop = aged(|_| ());
    revisions(&workshop, 6);
    let keep = at_once(Keep::Tags);
    let plan = keep.dry_run(&workshop.open(), now()).unwrap();
    assert_eq!((plan.kept, plan.tags_removed.len()), (6, 0));
    assert_eq!(plan.largest.len(), 5, "all but the head: {:#?}", plan.largest);
    let is_named =
        |kept: &esker_maintain::KeptRevision| kept.tags.iter().any(|tag| tag.starts_with("generic-"));
    assert!(plan.largest.iter().all(|kept| kept.objects >= 2 && is_named(kept)), "{:#?}", plan.largest);
    let short = Collect { automatic_tags: Some(3 * DAY - 60), ..at_once(Keep::Tags) };
    let plan = short.dry_run(&workshop.open(), now()).unwrap();
    let done = short.run(&workshop.open(), now()).unwrap();
    assert_eq!(done.plan.tags_removed.len(), 3);
    assert_eq!((&plan.tags_removed, &plan.dropped), (&done.plan.tags_removed, &done.plan.dropped));
    assert_eq!(contents(&workshop, 6), [3, 4, 5]);
    let tags = workshop.assert_equal().tags;
    assert_eq!(tags.keys().filter(|name| name.starts_with("generic")).count(), 3);
    let forever = Collect { automatic_tags: None, ..at_once(Keep::Tags) };
    forever.run(&workshop.open(), UnixTime(now().0 + 1000 * DAY)).unwrap();
    assert_eq!(contents(&workshop, 6), [3, 4, 5]);
}

#[test]
fn reflog_head_and_status_are_brought_up_to_date() {
    let workshop = aged(NO_TAGS);
    revisions(&workshop, 5);
    let status = workshop.root().join(".cvmfs_status.json");
    fs::write(&status, r#"{"last_check": "before"}"#).unwrap();
    at_once(Keep::Tags).run(&workshop.open(), now()).unwrap();
    let bytes = fs::read(workshop.root().join(".cvmfsreflog")).unwrap();
    let reflog = Reflog::parse(&bytes).unwrap();
    let head = manifest(&workshop.root());
    assert_eq!(head.reflog, Some(ContentHash::of(head.root_catalog.algorithm(), &bytes)));
    let roots = reflog.references().iter().filter(|r| r.object.to_string().ends_with('C')).count();
    assert_eq!(roots, 2);
    for reference in reflog.references() {
        assert!(workshop.root().join(reference.object.path()).exists(), "{}", reference.object);
    }
    let text = fs::read_to_string(&status).unwrap();
    assert!(text.contains("last_gc") && text.contains("before"), "{text}");
    fs::remove_file(&status).unwrap();
    at_once(Keep::Tags).run(&workshop.open(), now()).unwrap();
    assert!(fs::read_to_string(&status).unwrap().contains("last_gc"), "also when nothing was to do");
}

#[test]
fn condemned_objects_wait_for_the_grace_time() {
    let workshop = aged(NO_TAGS);
    let begun = UnixTime(now().0 - 7200);
    revisions_until(&workshop, 5, begun);
    let collect = Collect { grace: 3600, ..at_once(Keep::Tags) };
    let before = objects(&workshop.root());
    let first = collect.run(&workshop.open(), begun).unwrap();
    let waiting = first.waiting.unwrap();
    assert!(waiting.objects > 0 && waiting.until == waiting.since + 3600);
    assert_eq!(first.deleted.objects, 0);
    assert!(before.is_subset(&objects(&workshop.root())));
    workshop.assert_equal();
    let early = collect.run(&workshop.open(), UnixTime(begun.0 + 60)).unwrap();
    assert_eq!((early.waiting, early.deleted.objects), (Some(waiting), 0));
    // A publish in between names a condemned object again.
    fs::write(workshop.source().join("again"), "content 1").unwrap();
    let report = workshop.publish();
    assert_eq!(report.objects_stored, 1, "it is stored again");
    let late = collect.run(&workshop.open(), UnixTime(begun.0 + 3700)).unwrap();
    assert_eq!((late.deleted.revived, late.deleted.objects), (1, waiting.objects - 1));
    workshop.assert_equal();
}

#[test]
fn the_deletion_log_names_each_deleted_object_with_its_time_and_cause() {
    let workshop = aged(NO_TAGS);
    let begun = UnixTime(now().0 - 7200);
    revisions_until(&workshop, 5, begun);
    let log = workshop.folder.path().join("deleted.log");
    let collect = Collect { grace: 3600, log: Some(log.clone()), ..at_once(Keep::Tags) };
    let before = objects(&workshop.root());
    let plan = collect.dry_run(&workshop.open(), begun).unwrap();
    assert!(!log.exists(), "a dry run writes no log");
    collect.run(&workshop.open(), begun).unwrap();
    let text = fs::read_to_string(&log).unwrap();
    assert!(
        text.starts_with(&format!("# {begun} condemned {} objects: revision 0 (", plan.objects)),
        "{text}"
    );
    assert_eq!(text.matches(") is not kept").count(), plan.dropped.len(), "{text}");
    let done = collect.run(&workshop.open(), now()).unwrap();
    let gone: BTreeSet<String> = before.difference(&objects(&workshop.root())).cloned().collect();
    assert_eq!(gone.len() as u64, done.deleted.objects);
    let text = fs::read_to_string(&log).unwrap();
    let path = |name: &str| format!("data/{}/{}", &name[..2], &name[2..]);
    let named: BTreeSet<String> =
        text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(path).collect();
    assert_eq!(named, gone);
    let order: Vec<_> = ["condemned", "Collection started at", "Collection finished at"]
        .map(|text_of| text.find(text_of).expect("the line"))
        .into();
    assert!(order.is_sorted(), "{text}");
    // A log that can't be written is noticed before anything is deleted.
    revisions(&workshop, 3);
    let refused = Collect { log: Some(workshop.folder.path().to_owned()), ..at_once(Keep::Tags) };
    let left = objects(&workshop.root());
    assert!(refused.run(&workshop.open(), now()).is_err());
    assert_eq!(objects(&workshop.root()), left);
}

#[test]
fn old_leftovers_without_a_revision_are_deleted() {
    let workshop = aged(NO_TAGS);
    revisions(&workshop, 2);
    let orphan = esker_testkit::object::Algorithm::Sha1.hash(b"orphan");
    let orphan = workshop.root().join(esker_testkit::object::path(&orphan, "P"));
    fs::write(&orphan, b"orphan").unwrap();
    let collect = Collect { orphans: Some(DAY), keep: Keep::Age(30 * DAY), ..at_once(Keep::Tags) };
    let plan = collect.dry_run(&workshop.open(), now()).unwrap();
    assert_eq!(plan.orphans, 0, "it may belong to a publish in flight");
    let yesterday = std::time::SystemTime::now() - std::time::Duration::from_secs(100_000);
    fs::File::options().write(true).open(&orphan).unwrap().set_modified(yesterday).unwrap();
    assert_eq!(collect.dry_run(&workshop.open(), now()).unwrap().orphans, 1);
    let done = collect.run(&workshop.open(), now()).unwrap();
    assert_eq!((done.plan.orphans, done.deleted.objects), (1, 1));
    assert!(!orphan.exists());
    workshop.assert_equal();
}

#[test]
fn a_repository_that_keeps_everything_is_refused() {
    let workshop = Workshop::with(|new| new.garbage_collectable = false);
    let refused = at_once(Keep::Tags).run(&workshop.open(), now());
    assert!(matches!(refused, Err(CollectError::NotCollectable(name)) if name == NAME));
}

#[test]
fn nothing_is_deleted_if_a_catalog_of_the_head_is_missing() {
    let workshop = aged(NO_TAGS);
    fs::create_dir(workshop.source().join("nested")).unwrap();
    fs::write(workshop.source().join("nested/.cvmfscatalog"), b"").unwrap();
    revisions(&workshop, 4);
    let root = manifest(&workshop.root()).root_catalog.to_string();
    let all = objects(&workshop.root());
    let head = format!("data/{}/{}C", &root[..2], &root[2..]);
    let nested = all.iter().find(|path| {
        path.ends_with('C') && **path != head && {
            let bytes = esker_testkit::object::inflate(&fs::read(workshop.root().join(path)).unwrap());
            esker_format::catalog::Catalog::open(bytes).unwrap().properties().root_prefix == b"/nested"
        }
    });
    fs::remove_file(workshop.root().join(nested.unwrap())).unwrap();
    let left = objects(&workshop.root());
    let refused = at_once(Keep::Tags).run(&workshop.open(), now());
    assert!(matches!(refused, Err(CollectError::Repository(RepositoryError::Missing { .. }))), "{refused:?}");
    assert_eq!(objects(&workshop.root()), left);
}

#[test]
fn a_missing_reflog_is_made_anew() {
    let workshop = aged(|_| ());
    revisions(&workshop, 4);
    fs::remove_file(workshop.root().join(".cvmfsreflog")).unwrap();
    let done = at_once(Keep::Last(100)).run(&workshop.open(), now()).unwrap();
    assert_eq!((done.plan.dropped.len(), done.deleted.objects), (0, 0));
    let reflog = Reflog::parse(&fs::read(workshop.root().join(".cvmfsreflog")).unwrap()).unwrap();
    let roots = reflog.references().iter().filter(|r| r.object.to_string().ends_with('C')).count();
    assert_eq!(roots, 5);
    workshop.assert_equal();
}

#[test]
fn tiny_buffers_give_the_same_result() {
    let workshop = aged(NO_TAGS);
    for number in 0..50 {
        fs::write(workshop.source().join(format!("many {number}")), format!("{number}")).unwrap();
    }
    revisions(&workshop, 5);
    let plan = |buffer| {
        let collect = Collect { buffer, ..at_once(Keep::Tags) };
        let plan = collect.dry_run(&workshop.open(), now()).unwrap();
        (plan.objects, plan.bytes, plan.dropped)
    };
    assert_eq!(plan(4), plan(1 << 20));
}

fn collect_on(disks: &Disks, folder: &Path, keys: &Workshop) -> Result<Collected, CollectError> {
    let name = RepositoryName::parse(NAME).unwrap();
    let repository = Repository::open((disks, &*folder.join(NAME)), &name, keys.keys(), now())?;
    let collect = Collect { automatic_tags: Some(2 * DAY - 600), threads: 1, ..at_once(Keep::Tags) };
    collect.run(&repository, now())
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            if fs::read_dir(entry.path()).unwrap().next().is_some() {
                copy_tree(&entry.path(), &target);
            }
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Collects with a fault at every operation, and then again without: the result is the same as without faults.
fn interrupted(plan: impl Fn(u64) -> Plan) {
    let workshop = aged(|_| ());
    revisions(&workshop, 5);
    let template = workshop.folder.path();
    let judge = |folder: &Path, when: &str| {
        let public = fs::read_to_string(workshop.keys().public_key_file()).unwrap();
        let findings = esker_testkit::check::check(&folder.join(NAME), NAME, &public);
        findings.assert_whole(when);
        findings
    };
    let expected = scratch();
    copy_tree(&template.join(NAME), &expected.path().join(NAME));
    collect_on(&Disks::default(), expected.path(), &workshop).unwrap();
    let content = |root: &Path| {
        let is_content = |path: &String| path.ends_with('C') || path.len() == 46 || path.ends_with('P');
        objects(root).into_iter().filter(is_content).collect::<BTreeSet<_>>()
    };
    let left = content(&expected.path().join(NAME));
    let mut met = 0;
    for at in 1.. {
        let folder = scratch();
        copy_tree(&template.join(NAME), &folder.path().join(NAME));
        let disk = FaultDisk::new(folder.path(), plan(at));
        let disks =
            Disks { served: Arc::new(disk.making(RealDisk::SERVED)), private: Arc::new(disk.clone()) };
        let outcome = collect_on(&disks, folder.path(), &workshop);
        if disk.struck() == 0 {
            outcome.unwrap();
            break;
        }
        met += 1;
        let crashed = disk.after_crash();
        let folder = crashed.as_ref().unwrap_or(&folder).path();
        let when = format!("operation {at}");
        judge(folder, &when);
        collect_on(&Disks::default(), folder, &workshop).unwrap_or_else(|error| panic!("{when}: {error}"));
        judge(folder, &when).assert_clean();
        assert_eq!(content(&folder.join(NAME)), left, "{when}");
        assert!(!folder.join(NAME).join(".esker/condemned/list").exists(), "{when}");
    }
    assert!(met > 50, "{met} faults were met");
}

#[test]
fn a_collect_with_a_failure_at_any_operation_is_completed_by_the_next_one() {
    interrupted(|at| Plan::Fail { at, ever: true, errno: 5 });
}

#[test]
fn a_collect_with_a_power_loss_at_any_change_is_completed_by_the_next_one() {
    interrupted(|at| Plan::Crash { at, seed: at });
}

/// Whether a collect is due follows from the time of the last one, as monitors see it.
#[test]
fn an_automatic_collect_is_due_after_the_interval() {
    let workshop = Workshop::with(|new| {
        NO_TAGS(new);
        new.settings.automatic_collect.every = Some(86_400);
        new.settings.automatic_collect.keep = 2 * 86_400;
    });
    let is_due = |time| Collect::is_due(&workshop.open(), time).unwrap();
    assert!(is_due(now()), "it was never collected");
    revisions(&workshop, 2);
    let repository = workshop.open();
    let collect = Collect::automatic(&repository, &quiet);
    assert_eq!(collect.keep, Keep::Age(2 * DAY));
    let time = now();
    collect.run(&repository, time).unwrap();
    drop(repository);
    let after = |seconds: i64| UnixTime(time.0 + seconds);
    assert_eq!([0, DAY, DAY + 1].map(|seconds| is_due(after(seconds))), [false, false, true]);
    let status = workshop.root().join(".cvmfs_status.json");
    fs::write(&status, "{\"last_gc\": \"some day\"}").unwrap();
    assert!(is_due(time), "a time that can't be read is none");
    let off = Workshop::new();
    assert!(!Collect::is_due(&off.open(), now()).unwrap(), "it is off unless the settings say otherwise");
}
