//! Limits for the size of files and catalogs: warnings, or errors before anything is stored.

use std::fs;

use esker_publish::{Publish, PublishError, Report};
use esker_repository::Limits;

use crate::ingest::{file, ingest, write};
use crate::upper::publish_upper;
use crate::workshop::{Workshop, now, objects, options};

const LIMITS: Limits =
    Limits { file: Some(1000), root_entries: Some(6), nested_entries: Some(3), enforced: false };

fn workshop(enforced: bool) -> Workshop {
    Workshop::with(|new| new.settings.limits = Limits { enforced, ..LIMITS })
}

fn over(report: &Report) -> Vec<String> {
    report.over_limits.iter().map(|over| format!("{} {} {}", over.path, over.size, over.setting)).collect()
}

#[test]
fn files_and_catalogs_above_a_limit_are_warnings() {
    let workshop = workshop(false);
    let at = |name: &str| workshop.source().join(name);
    fs::create_dir(at("nested")).unwrap();
    for name in [".cvmfscatalog", "a", "b", "c"] {
        fs::write(at("nested").join(name), b"").unwrap();
    }
    fs::write(at("small"), [7; 1000]).unwrap();
    fs::write(at("large"), [7; 1001]).unwrap();
    let mut progress = |_| ();
    let mut publish =
        Publish { source: workshop.source(), target: Vec::new(), options: options(&mut progress) };
    let planned = publish.dry_run(&workshop.open(), now()).unwrap();
    let report = workshop.publish();
    let expected = ["/large 1001 file_size_limit", "/nested 5 nested_catalog_limit"];
    assert_eq!((over(&planned), over(&report)), (expected.map(str::to_owned).to_vec(), over(&planned)));
    let text = "`/large` has 1,001 bytes, more than the limit of 1,000 (file_size_limit)";
    assert_eq!(report.warnings[0], text);
    // Neither changes again: the file has the size that is published, and the catalog is not written.
    fs::set_permissions(at("large"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let report = workshop.publish();
    assert!(report.published && over(&report).is_empty(), "{:?}", report.warnings);
    for number in 0..4 {
        fs::write(at(&format!("more {number}")), b"").unwrap();
    }
    assert_eq!(over(&workshop.publish()), ["/ 8 root_catalog_limit"]);
    workshop.assert_equal();
}

#[test]
fn an_enforced_limit_is_an_error_before_content_is_stored() {
    let workshop = workshop(true);
    let before = objects(&workshop.root());
    let refused = |outcome: Result<Report, PublishError>| match outcome.unwrap_err() {
        PublishError::OverLimit { first, more } => (first.path.clone(), first.setting, more),
        other => panic!("{other}"),
    };
    for name in ["large", "larger"] {
        fs::write(workshop.source().join(name), name.repeat(500)).unwrap();
    }
    let published = workshop.try_publish(&workshop.source(), "");
    assert_eq!(refused(published), ("/large".to_owned(), "file_size_limit", 1));
    let upper = publish_upper(&workshop, |upper| fs::write(upper.join("large"), [1; 2000]).unwrap());
    assert_eq!(refused(upper).0, "/large");
    assert_eq!(objects(&workshop.root()), before, "nothing was stored");
    let mut archive = tar::Builder::new(Vec::new());
    file(&mut archive, "large", &[2; 3000]);
    let archive = write(&workshop, "a.tar", &archive.into_inner().unwrap());
    assert_eq!(refused(ingest(&workshop, &archive, |_| ())).0, "/in/here/large");
    // A catalog that becomes too large.
    for name in ["large", "larger"] {
        fs::remove_file(workshop.source().join(name)).unwrap();
    }
    for number in 0..6 {
        fs::write(workshop.source().join(number.to_string()), b"").unwrap();
    }
    let published = workshop.try_publish(&workshop.source(), "");
    assert_eq!(refused(published), ("/".to_owned(), "root_catalog_limit", 0));
    let findings = workshop.check();
    assert_eq!(findings.assert_clean().revision, 0);
}
