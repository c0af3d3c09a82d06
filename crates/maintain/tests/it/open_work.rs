//! Collects beside open work: the base of a transaction stays, whatever is published meanwhile.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use esker_maintain::{Collect, CollectError, Keep};
use esker_publish::{BaseRevision, CopyTree, PublishError, PublishUpper, Upper};
use esker_repository::{OpenWork, RepositoryError, TransactionFolder};

use crate::collecting::at_once;
use crate::workshop::{Workshop, now, options};

const DAY: i64 = 86_400;

/// A transaction, as the command line records it.
struct Open {
    work: OpenWork,
    upper: Upper,
}

fn begin(workshop: &Workshop, folder: &Path) -> Result<Open, RepositoryError> {
    let base = BaseRevision::published(&workshop.open());
    begin_on(workshop, folder, (base, None), &BTreeSet::new())
}

fn begin_on(
    workshop: &Workshop,
    folder: &Path,
    (base, origin): (BaseRevision, Option<BaseRevision>),
    stored: &BTreeSet<esker_format::object::ObjectName>,
) -> Result<Open, RepositoryError> {
    fs::create_dir_all(folder.join("upper/nested")).unwrap();
    fs::write(folder.join("upper/nested/new"), "of the transaction").unwrap();
    let work = OpenWork {
        id: format!("transaction-{}", folder.file_name().unwrap().display()),
        what: "a transaction".to_owned(),
        roots: [Some(&base), origin.as_ref()]
            .into_iter()
            .flatten()
            .map(|base| base.root.to_string())
            .collect(),
        started: now().0,
        transaction: Some(TransactionFolder::of(folder)?),
    };
    work.begin(&workshop.root(), stored, Some(base.collections))?;
    let (folder, claimed, within) = (folder.join("upper"), None, Vec::new());
    let upper = Upper { folder, base, origin, claimed, within, filter: esker_publish::Filter::default() };
    Ok(Open { work, upper })
}

/// A repository with a file, in a nested catalog too.
fn workshop() -> Workshop {
    let workshop = Workshop::with(|new| new.settings.automatic_tags = false);
    fs::create_dir_all(workshop.source().join("nested")).unwrap();
    fs::write(workshop.source().join("nested/.cvmfscatalog"), "").unwrap();
    publish(&workshop, 0);
    workshop
}

/// Publishes a revision in which every file is another one.
fn publish(workshop: &Workshop, number: u32) {
    for path in ["file", "nested/file"] {
        fs::write(workshop.source().join(path), format!("{path} {number}")).unwrap();
    }
    workshop.publish();
}

/// Collects at once everything that no tag names, also objects without a revision, whatever their age.
fn collect(workshop: &Workshop) -> Result<esker_maintain::Collected, CollectError> {
    let collect = Collect { orphans: Some(-DAY), ..at_once(Keep::Tags) };
    collect.run(&workshop.open(), now())
}

/// Reads the catalogs of the base, as the command of a transaction does, and looks for its contents.
fn read_base(workshop: &Workshop, open: &Open) -> Result<(), PublishError> {
    open.upper.changes(&workshop.root(), &AtomicBool::new(false))?;
    assert!(workshop.object_of(b"file 0").exists() && workshop.object_of(b"nested/file 0").exists());
    Ok(())
}

fn has(workshop: &Workshop, path: &str) -> bool {
    workshop.check().listing().iter().any(|entry| entry.path.ends_with(path.as_bytes()))
}

/// > U10: A collect keeps the base revisions of open transactions, of every user and machine that work on the storage, until they are published or dropped, and names the work that it keeps them for.
#[test]
fn a_collect_keeps_the_base_of_an_open_transaction_until_it_ends() {
    let (workshop, transactions) = (workshop(), tempfile::tempdir().unwrap());
    let folder = transactions.path().join("1");
    let open = begin(&workshop, &folder).unwrap();
    for number in 1..4 {
        publish(&workshop, number);
    }
    let done = collect(&workshop).unwrap();
    assert!(done.deleted.objects > 0, "other revisions go: {done:?}");
    assert_eq!(done.plan.open, std::slice::from_ref(&open.work), "the collect names what it keeps");
    read_base(&workshop, &open).unwrap();
    // It can be published still.
    let mut progress = |_| ();
    let mut publish = PublishUpper {
        upper: open.upper.clone(),
        choices: Default::default(),
        options: options(&mut progress),
    };
    publish.run(&workshop.open(), now()).unwrap();
    workshop.check().assert_clean();
    assert!(has(&workshop, "nested/new"));
    OpenWork::end(&workshop.root(), &open.work.id).unwrap();
    assert!(collect(&workshop).unwrap().deleted.objects > 0, "then the base goes");
    assert!(read_base(&workshop, &open).is_err());
    workshop.check().assert_clean();
}

#[test]
fn the_record_of_a_transaction_that_was_removed_otherwise_keeps_nothing() {
    let (workshop, transactions) = (workshop(), tempfile::tempdir().unwrap());
    let folder = transactions.path().join("all/1");
    begin(&workshop, &folder).unwrap();
    // The tag `trunk-previous` keeps the first one before the head.
    publish(&workshop, 1);
    publish(&workshop, 2);
    // A folder of transactions that is not there, such as a home that is not mounted, tells nothing.
    let (here, away) = (transactions.path().join("all"), transactions.path().join("away"));
    fs::rename(&here, &away).unwrap();
    assert_eq!(collect(&workshop).unwrap().plan.open.len(), 1);
    // Another folder at its place, as on another machine, tells nothing either.
    fs::create_dir_all(&here).unwrap();
    TransactionFolder::of(&here.join("9")).unwrap();
    assert_eq!(collect(&workshop).unwrap().plan.open.len(), 1);
    fs::remove_dir_all(&here).unwrap();
    fs::rename(&away, &here).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let done = collect(&workshop).unwrap();
    assert_eq!(done.plan.open, []);
    assert!(done.deleted.objects > 0, "the base goes");
    assert_eq!(OpenWork::list(&workshop.root()).unwrap(), []);
}

#[test]
fn the_unpublished_base_of_a_template_is_kept_with_the_published_one() {
    let (workshop, transactions) = (workshop(), tempfile::tempdir().unwrap());
    let mut progress = |_| ();
    let (from, to) = (b"/nested".to_vec(), b"/copy".to_vec());
    let staged =
        CopyTree { from, to, options: options(&mut progress) }.stage(&workshop.open(), now()).unwrap();
    let bases = (staged.base, Some(staged.origin));
    let open = begin_on(&workshop, &transactions.path().join("1"), bases, &staged.stored).unwrap();
    publish(&workshop, 1);
    publish(&workshop, 2);
    collect(&workshop).unwrap();
    read_base(&workshop, &open).unwrap();
    let mut publish = PublishUpper {
        upper: open.upper.clone(),
        choices: Default::default(),
        options: options(&mut progress),
    };
    publish.run(&workshop.open(), now()).unwrap();
    workshop.check().assert_clean();
    assert!(has(&workshop, "copy/file"));
}

#[test]
fn a_transaction_does_not_begin_on_a_base_that_is_about_to_be_deleted() {
    let (workshop, transactions) = (workshop(), tempfile::tempdir().unwrap());
    let stale = BaseRevision::published(&workshop.open());
    publish(&workshop, 1);
    publish(&workshop, 2);
    let waits = Collect { grace: DAY, ..at_once(Keep::Tags) };
    assert!(waits.run(&workshop.open(), now()).unwrap().waiting.is_some());
    let refused = begin_on(&workshop, &transactions.path().join("1"), (stale, None), &BTreeSet::new());
    assert!(matches!(refused, Err(RepositoryError::Collected { objects: 1 })), "{:?}", refused.err());
    assert_eq!(OpenWork::list(&workshop.root()).unwrap(), [], "no record is left");
    // A collect that began and ended meanwhile may have deleted a part of it.
    let fresh = BaseRevision::published(&workshop.open());
    at_once(Keep::Tags).run(&workshop.open(), now()).unwrap();
    let refused = begin_on(&workshop, &transactions.path().join("2"), (fresh, None), &BTreeSet::new());
    assert!(matches!(refused, Err(RepositoryError::Collected { .. })), "{:?}", refused.err());
    begin(&workshop, &transactions.path().join("3")).unwrap();
}

#[test]
fn a_record_that_can_not_be_read_stops_the_collect_by_name() {
    let workshop = workshop();
    publish(&workshop, 1);
    let folder = workshop.root().join(".esker/open");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("of-a-later-version.json"), "{\"bases\": 1}").unwrap();
    let error = collect(&workshop).unwrap_err();
    assert!(error.to_string().contains("of-a-later-version"), "{error}");
}
