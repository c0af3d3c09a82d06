//! Skips are reported, counted, and forbidden where tests must be complete.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use esker_testkit::promises::{not_proven, tests};
use esker_testkit::{skip, skip_optional, skip_part, skips};

/// Variable with the skip that the tests of this name shall report.
const ASKED: &str = "ESKER_TEST_SKIP";

/// Reports the skip in its environment; without one, the test is empty.
#[test]
fn a_requested_skip_is_reported() {
    match std::env::var(ASKED).as_deref() {
        Ok("whole") => skip!("this machine\nhas no {}", "such thing"),
        Ok("part") => skip_part!("only root does it"),
        Ok("optional") => skip_optional!("a part"),
        _ => {}
    }
}

fn run(skip: &str, report: &Path, forbidden: &str) -> Output {
    Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "skips::a_requested_skip_is_reported", "--nocapture"])
        .env(ASKED, skip)
        .env(skips::FILE, report)
        .env(skips::FORBIDDEN, forbidden)
        .output()
        .expect("running this binary")
}

/// Returns the summary of a run with this report.
fn summary(report: &Path) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let output = Command::new(env!("CARGO_BIN_EXE_esker-skipped")).arg(report).arg(root).output();
    let output = output.expect("running it");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_skip_is_a_line_of_the_report_and_of_the_output() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("skips");
    assert_eq!(summary(&report), "none skipped\n");
    for (skip, line) in [
        ("whole", "esker-testkit::skips::a_requested_skip_is_reported: this machine has no such thing\n"),
        ("part", "esker-testkit::skips::a_requested_skip_is_reported (in part): only root does it\n"),
        ("optional", "esker-testkit::skips::a_requested_skip_is_reported (in part): a part\n"),
    ] {
        fs::write(&report, "").expect("a report");
        for _ in 0..2 {
            let output = run(skip, &report, "0");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() && said.contains(&format!("skipped: {line}")), "{said}");
        }
        assert_eq!(fs::read_to_string(&report).expect("a report"), line.repeat(2));
        let output = run(skip, &report, "1");
        assert_eq!(output.status.success(), skip == "optional", "{output:?}");
        let count = if skip == "whole" { "1 tests" } else { "0 tests, 1 in part" };
        assert_eq!(summary(&report), format!("skipped: {count}\n    {line}"));
    }
}

/// A skip without a report would go unnoticed.
#[test]
fn a_report_that_can_not_be_written_fails_the_test() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run("whole", folder.path(), "");
    assert!(!output.status.success(), "{output:?}");
}

/// A source file; its comments look different, so that they aren't taken for comments of this file.
const SOURCE: &str = "
%%% > A1: One.
%%%
%%% > A2: Two.
#[test]
fn the_first_test_passes() {
    another();
}

// Between.
%%% > A2: Two.
#[test]
#[cfg(unix)]
fn the_second_test_passes() {}

    %%% > A3: Three.
    fn on_kernels(kernel: KernelMask) {
    }
";

#[test]
fn a_promise_is_not_proven_if_all_its_tests_are_skipped() {
    let source = SOURCE.replace('%', "/");
    let tests = tests("crates/store/tests/it/module.rs".as_ref(), &source);
    let names: Vec<(&str, usize)> = tests.iter().map(|test| (test.name.as_str(), test.line)).collect();
    assert_eq!(names, [("the_first_test_passes", 5), ("the_second_test_passes", 12), ("on_kernels", 17)]);
    let open = |report: &[&str]| not_proven(&tests, &report.join("\n")).into_iter().collect::<Vec<_>>();
    let (first, second) = (
        "esker-store::module::the_first_test_passes: x: y",
        "esker-store::module::the_second_test_passes: x",
    );
    assert_eq!(open(&[]), [""; 0]);
    assert_eq!(open(&[first]), ["A1"]);
    assert_eq!(open(&[second]), [""; 0]);
    assert_eq!(open(&[first, second]), ["A1", "A2"]);
    assert_eq!(open(&["esker-store::module::on_kernels::linux_4_18: x"]), ["A3"]);
    for other in [
        "esker-store::module::the_first_test_passes (in part): x",
        "esker-fuse::module::the_first_test_passes: x",
        "esker-store::x::the_first_test_passes: x",
    ] {
        assert_eq!(open(&[other]), [""; 0], "{other}");
    }
}
