//! Reports tests that can't run on this machine, completely or in part.
//!
//! A test that needs root, a device or a program that the machine lacks calls [`skip!`](crate::skip), which reports and
//! returns; one that leaves out a part calls [`skip_part!`](crate::skip_part) and goes on. The file that the variable
//! `ESKER_SKIPS` names gets a line for each, `make test` ends with these lines, and where `ESKER_NO_SKIPS=1` says that
//! tests must be complete, the test fails instead.

use std::fs::OpenOptions;
use std::io::Write;

/// The environment variable that names the file of reports.
pub const FILE: &str = "ESKER_SKIPS";
/// The environment variable that forbids skips, if it is `1`.
pub const FORBIDDEN: &str = "ESKER_NO_SKIPS";
/// Suffix of the name of a test of which a part is skipped.
pub const IN_PART: &str = " (in part)";

/// Extent of a skip: a whole test or a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// The whole test is skipped.
    Whole,
    /// The test continues without something that `scripts/needs.sh` demands.
    Part,
    /// The test continues without something optional, which is reported and never forbidden.
    Optional,
}

/// Reports a skip on standard error and in the file of reports, and panics if skips are forbidden.
///
/// `place` is the path of the function that reports, `package` its package; [`skip!`](crate::skip) knows them. A test is
/// named after its thread, because helpers of tests report too; the only thread of a run has no such name.
#[allow(clippy::print_stderr, reason = "the developer sees why a test did nothing")]
pub fn report(package: &str, place: &str, extent: Extent, reason: &str) {
    let thread = std::thread::current();
    let name = match thread.name() {
        Some(name) if name != "main" => name,
        _ => test_of(place),
    };
    let part = if extent == Extent::Whole { "" } else { IN_PART };
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    let name = format!("{package}::{name}{part}");
    eprintln!("skipped: {name}: {reason}");
    if let Some(file) = std::env::var_os(FILE).filter(|file| !file.is_empty()) {
        let mut opened = OpenOptions::new().append(true).create(true).open(&file);
        // In one write, so that lines of tests that run at once don't mix.
        let written = opened.as_mut().map(|open| open.write_all(format!("{name}: {reason}\n").as_bytes()));
        assert!(matches!(written, Ok(Ok(()))), "writing to {}: {written:?}", file.display());
    }
    let is_forbidden = std::env::var_os(FORBIDDEN).is_some_and(|value| value == "1");
    assert!(
        !is_forbidden || extent == Extent::Optional,
        "{FORBIDDEN} is set, and {name} is skipped: {reason}"
    );
}

/// Returns the path of a function below its crate, from the name of the type of an item inside of it.
fn test_of(place: &str) -> &str {
    let function = place.strip_suffix("::here").unwrap_or(place).trim_end_matches("::{{closure}}");
    function.split_once("::").map_or(function, |(_, below)| below)
}

/// Reports that the calling test is skipped for this reason, and returns from the function, with its default value.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        $crate::report_skip!($crate::skips::Extent::Whole, $($reason)+);
        return Default::default();
    }};
}

/// Reports that the calling test omits a part for this reason.
#[macro_export]
macro_rules! skip_part {
    ($($reason:tt)+) => {
        $crate::report_skip!($crate::skips::Extent::Part, $($reason)+)
    };
}

/// Reports that the calling test omits a part, for lack of something optional.
#[macro_export]
macro_rules! skip_optional {
    ($($reason:tt)+) => {
        $crate::report_skip!($crate::skips::Extent::Optional, $($reason)+)
    };
}

/// Reports a skip of an extent by the calling function.
#[doc(hidden)]
#[macro_export]
macro_rules! report_skip {
    ($extent:expr, $($reason:tt)+) => {{
        fn here() {}
        let place = std::any::type_name_of_val(&here);
        $crate::skips::report(env!("CARGO_PKG_NAME"), place, $extent, &format!($($reason)+));
    }};
}
