//! Tags come newest first and are found by name and time; references of a reflog come newest first.

use esker_format::history::{DEFAULT_BRANCH, History};
use esker_format::reflog::Reflog;
use esker_format::time::UnixTime;

use super::within;

/// Checks any bytes.
pub fn check(bytes: &[u8]) {
    if let Ok(history) = within(bytes, 64, || History::parse(bytes)) {
        check_history(&history);
    }
    if let Ok(reflog) = within(bytes, 64, || Reflog::parse(bytes)) {
        let references = reflog.references();
        assert!(references.is_sorted_by_key(|reference| std::cmp::Reverse(reference.timestamp)));
        if let Some(newest) = references.first() {
            assert!(reflog.before(newest.timestamp).all(|other| other.timestamp < newest.timestamp));
        }
    }
}

fn check_history(history: &History) {
    let tags = history.tags();
    assert!(tags.is_sorted_by_key(|tag| std::cmp::Reverse((tag.timestamp, tag.revision))));
    for tag in tags.iter().take(100) {
        assert_eq!(history.find(&tag.name).map(|found| &found.name), Some(&tag.name));
        let head = history.branch_head(&tag.branch).expect("a branch with a tag has a head");
        assert!(head.revision >= tag.revision);
        if tag.branch == DEFAULT_BRANCH {
            let found = history.at(tag.timestamp).expect("this tag at least");
            assert!(found.timestamp <= tag.timestamp && found.revision >= tag.revision);
        }
    }
    assert!(history.at(UnixTime(i64::MIN)).is_none_or(|tag| tag.timestamp.0 == i64::MIN));
}
