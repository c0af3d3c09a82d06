//! Raises the limit on open files for tests that open many.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Limit that every caller sets, so that tests that run at the same time don't lower each other's.
const MANY: u64 = 16 * 1024;

/// Raises the limit of open files to at least `count`; ordinary users start with about a thousand, which they may
/// raise.
pub fn allow(count: u64) {
    let limit = getrlimit(Resource::Nofile);
    let many = limit.maximum.map_or(MANY, |maximum| maximum.min(MANY));
    assert!(count <= many, "the test opens {count} files at once, and `ulimit -Hn` allows {many}");
    if limit.current.is_some_and(|current| current < many) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(many), ..limit })
            .unwrap_or_else(|error| panic!("raising the limit on open files to {many}: {error}"));
    }
}
