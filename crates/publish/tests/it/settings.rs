//! Settings of a repository, changed by name.

use std::fs;
use std::path::PathBuf;

use esker_format::manifest::Manifest;
use esker_format::name::RepositoryName;
use esker_repository::{Disks, Repository, RepositoryError, SettingsChange, SettingsChanged, SettingsError};
use esker_testkit::disk::{FaultDisk, Plan};

use crate::workshop::{NAME, Workshop, disks, now};

fn change(pairs: &[(&str, Option<&str>)]) -> SettingsChange {
    let pair = |(name, value): &(&str, Option<&str>)| ((*name).to_owned(), value.map(str::to_owned));
    SettingsChange { values: pairs.iter().map(pair).collect() }
}

fn set_on(
    disks: &Disks,
    workshop: &Workshop,
    pairs: &[(&str, Option<&str>)],
) -> Result<SettingsChanged, SettingsError> {
    let open = || {
        let name = RepositoryName::parse(NAME).unwrap();
        Repository::open((disks, &*workshop.root()), &name, workshop.keys(), now())
    };
    change(pairs).run((disks, &*workshop.root()), open, now())
}

fn set(workshop: &Workshop, pairs: &[(&str, Option<&str>)]) -> Result<SettingsChanged, SettingsError> {
    set_on(&Disks::default(), workshop, pairs)
}

fn head(workshop: &Workshop) -> Manifest {
    Manifest::parse(&fs::read(workshop.root().join(".cvmfspublished")).unwrap()).unwrap()
}

fn value(workshop: &Workshop, name: &str) -> String {
    let all = SettingsChange::list(&workshop.root()).unwrap();
    all.into_iter().find(|setting| setting.name == name).unwrap().value.unwrap()
}

#[test]
fn a_changed_setting_is_kept_and_used_by_the_next_publish() {
    let workshop = Workshop::new();
    let before = fs::read(workshop.root().join(".cvmfspublished")).unwrap();
    let pairs = [("compression", Some("none")), ("Automatic-Tags", Some("no")), ("xattrs", Some("on"))];
    let told = change(&pairs).dry_run(&workshop.root()).unwrap();
    assert_eq!(value(&workshop, "compression"), "zlib", "a dry run changes nothing");
    let done = set(&workshop, &pairs).unwrap();
    assert_eq!(done, told);
    let names: Vec<_> = done.changed.iter().map(|setting| setting.name).collect();
    assert_eq!((names, done.signs_head), (vec!["compression", "automatic_tags"], false));
    assert_eq!(fs::read(workshop.root().join(".cvmfspublished")).unwrap(), before);
    fs::write(workshop.source().join("file"), "stored as it is").unwrap();
    assert_eq!(workshop.publish().tag, None);
    let findings = workshop.assert_equal();
    drop(findings);
    let data = workshop.root().join("data");
    let is_plain = |path: PathBuf| fs::read(path).is_ok_and(|bytes| bytes == b"stored as it is");
    let folders =
        fs::read_dir(data).unwrap().flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
    assert!(folders.map(|object| object.unwrap().path()).any(is_plain));
    let back = set(&workshop, &[("compression", None), ("automatic_tags", None)]).unwrap();
    assert_eq!(back.changed.len(), 2);
    assert_eq!(value(&workshop, "compression"), "zlib");
}

#[test]
fn a_changed_ttl_is_in_the_next_revision() {
    let workshop = Workshop::new();
    let before = fs::read(workshop.root().join(".cvmfspublished")).unwrap();
    let done = set(&workshop, &[("ttl", Some("60"))]).unwrap();
    assert_eq!((done.changed.len(), done.signs_head), (1, false));
    assert_eq!(fs::read(workshop.root().join(".cvmfspublished")).unwrap(), before);
    assert_eq!(value(&workshop, "ttl"), "60");
    for content in ["one", "two"] {
        fs::write(workshop.source().join("file"), content).unwrap();
        workshop.publish();
        assert_eq!(head(&workshop).ttl, 60);
        workshop.assert_equal();
    }
    assert_eq!(set(&workshop, &[("ttl", Some("60"))]).unwrap(), SettingsChanged::default());
}

#[test]
fn a_changed_term_of_the_head_is_signed_at_once() {
    let workshop = Workshop::new();
    let before = head(&workshop);
    assert!(set(&workshop, &[("garbage_collectable", Some("off"))]).unwrap().signs_head);
    let after = head(&workshop);
    // The reflog has the time of the signature, too.
    let Manifest { timestamp, reflog, .. } = after;
    let expected = Manifest { garbage_collectable: false, timestamp, reflog, ..before.clone() };
    assert_eq!(after, expected);
    assert!(after.timestamp >= before.timestamp);
    workshop.check().assert_clean();
    fs::write(workshop.source().join("file"), "content").unwrap();
    workshop.publish();
    assert!(!head(&workshop).garbage_collectable);
    workshop.assert_equal();
}

#[test]
fn unknown_names_and_wrong_values_change_nothing() {
    let workshop = Workshop::new();
    let refused = set(&workshop, &[("xattrs", Some("off")), ("compresion", Some("none"))]).unwrap_err();
    assert!(
        matches!(&refused, SettingsError::UnknownSetting { closest: Some("compression"), .. }),
        "{refused}"
    );
    let refused = set(&workshop, &[("xattrs", Some("off")), ("ttl", Some("0"))]).unwrap_err();
    assert!(matches!(&refused, SettingsError::Setting { values: "SECONDS", .. }), "{refused}");
    assert_eq!(value(&workshop, "xattrs"), "on");
    let nowhere = change(&[("ttl", Some("1"))]).dry_run(&workshop.root().join("no")).unwrap_err();
    let is_absent = matches!(nowhere, SettingsError::Repository(RepositoryError::NoRepository(_)));
    assert!(is_absent, "{nowhere}");
    let _publishing = esker_store::LocalSink::open(workshop.root()).lock().unwrap();
    let refused = set(&workshop, &[("xattrs", Some("off"))]).unwrap_err();
    let is_locked = matches!(refused, SettingsError::Repository(RepositoryError::Locked { .. }));
    assert!(is_locked, "{refused}");
}

/// After a failure of any disk operation, the repository is whole, with the old or the new settings.
#[test]
fn operations_may_fail_while_settings_change() {
    let workshop = Workshop::new();
    for at in 1.. {
        let wanted = if at % 2 == 0 { "on" } else { "off" };
        let pairs = [("garbage_collectable", Some(wanted)), ("xattrs", Some(wanted))];
        let disk = FaultDisk::new(workshop.folder.path(), Plan::Fail { at, ever: false, errno: 28 });
        let outcome = set_on(&disks(&disk), &workshop, &pairs);
        workshop.check().assert_whole(&format!("operation {at}"));
        if disk.struck() == 0 {
            assert!(at > 10 && outcome.is_ok(), "{at} {outcome:?}");
            break;
        }
        // A repeated change completes it.
        set(&workshop, &pairs).unwrap();
        assert_eq!(head(&workshop).garbage_collectable, wanted == "on", "operation {at}");
        assert_eq!(value(&workshop, "xattrs"), wanted, "operation {at}");
    }
}
