//! Tags and messages of revisions, with and without a difference.

use std::fs;

use esker_format::history::{History, Tag};
use esker_publish::{Publish, PublishError, Report};
use esker_repository::{RepositoryError, Settings};
use esker_testkit::object::inflate;

use crate::workshop::{Workshop, now, options};

fn publish(workshop: &Workshop, tag: Option<&str>, message: &str) -> Result<Report, PublishError> {
    let mut progress = |_| ();
    let mut options = options(&mut progress);
    options.tag.name = tag.map(str::to_owned);
    options.tag.description = message.to_owned();
    Publish { source: workshop.source(), target: Vec::new(), options }.run(&workshop.open(), now())
}

fn dry_run(workshop: &Workshop, tag: Option<&str>, message: &str) -> Result<Report, PublishError> {
    let mut progress = |_| ();
    let mut options = options(&mut progress);
    options.tag.name = tag.map(str::to_owned);
    options.tag.description = message.to_owned();
    Publish { source: workshop.source(), target: Vec::new(), options }.dry_run(&workshop.open(), now())
}

/// The history that the published head names.
fn history(workshop: &Workshop) -> History {
    let name = workshop.open().head().history().expect("the head names a history");
    let stored = fs::read(workshop.root().join(name.path())).unwrap();
    History::parse(&inflate(&stored)).unwrap()
}

fn tag(workshop: &Workshop, name: &str) -> Tag {
    history(workshop).find(name).unwrap_or_else(|| panic!("there is no tag {name}")).clone()
}

#[test]
fn a_tag_without_a_difference_names_the_published_revision() {
    let workshop = Workshop::new();
    fs::write(workshop.source().join("file"), "content").unwrap();
    let first = publish(&workshop, None, "").unwrap();
    let trunk = tag(&workshop, "trunk");
    let signed = workshop.open().head().timestamp();

    let foreseen = dry_run(&workshop, Some("v1"), "the first").unwrap();
    assert_eq!((foreseen.published, foreseen.tag.as_deref()), (false, Some("v1")));
    assert!(history(&workshop).find("v1").is_none(), "a dry run makes no tag");

    let report = publish(&workshop, Some("v1"), "the first").unwrap();
    assert!(!report.published && report.objects_stored == 0, "{report:?}");
    assert_eq!((report.tag.as_deref(), report.revision, &report.root), (Some("v1"), 1, &first.root));
    let made = tag(&workshop, "v1");
    let Tag { root_catalog, size, revision, timestamp, description, .. } = &made;
    assert_eq!((root_catalog.to_string(), *revision), (first.root, 1));
    assert_eq!((*size, *timestamp), (trunk.size, trunk.timestamp), "as the catalog has them");
    assert_eq!(description, "the first");
    // The tags of the newest revision and the one before stay where they are.
    assert_eq!(tag(&workshop, "trunk"), trunk);
    assert_eq!(workshop.open().head().revision(), 1);
    assert!(workshop.open().head().timestamp() >= signed);
    workshop.assert_equal();

    let again = publish(&workshop, Some("v1"), "").unwrap_err();
    assert!(matches!(again, PublishError::Repository(RepositoryError::Tag(_))), "{again}");
    assert!(dry_run(&workshop, Some("v1"), "").is_err(), "a dry run finds it, too");

    fs::write(workshop.source().join("file"), "other").unwrap();
    let next = publish(&workshop, Some("v2"), "").unwrap();
    assert_eq!((next.published, next.revision), (true, 2));
    assert_eq!((tag(&workshop, "v1").revision, tag(&workshop, "v2").revision), (1, 2));
    workshop.assert_equal();
}

#[test]
fn a_message_describes_the_automatic_tag() {
    let workshop = Workshop::new();
    fs::write(workshop.source().join("file"), "content").unwrap();
    let report = publish(&workshop, None, "what is new").unwrap();
    let name = report.tag.expect("an automatic tag");
    assert!(name.starts_with("generic-"), "{name}");
    assert_eq!(tag(&workshop, &name).description, "what is new");
    // Without a new revision there is no automatic tag.
    for report in [publish(&workshop, None, "more").unwrap(), dry_run(&workshop, None, "more").unwrap()] {
        assert_eq!((report.published, &report.tag), (false, &None));
        assert!(report.warnings[0].contains("message is not stored"), "{:?}", report.warnings);
    }
    assert!(publish(&workshop, None, "").unwrap().warnings.is_empty());
}

#[test]
fn a_message_without_any_tag_is_refused() {
    let settings = Settings { automatic_tags: false, ..Settings::default() };
    let workshop = Workshop::with(|new| new.settings = settings);
    fs::write(workshop.source().join("file"), "content").unwrap();
    let error = publish(&workshop, None, "what is new").unwrap_err();
    assert!(matches!(error, PublishError::MessageWithoutTag), "{error}");
    assert_eq!(workshop.open().head().revision(), 0, "nothing is published");
    assert_eq!(publish(&workshop, Some("v1"), "what is new").unwrap().tag.as_deref(), Some("v1"));
    assert_eq!(tag(&workshop, "v1").description, "what is new");
}
