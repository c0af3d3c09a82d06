//! Prints the tests that a run skipped: `esker-skipped REPORT ROOT`.
//!
//! REPORT is the file that [`esker_testkit::skips`] wrote, ROOT the source tree. A promise is listed if all tests that
//! quote it were skipped.
#![allow(clippy::print_stdout, reason = "the result")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use esker_testkit::promises::{not_proven, tests};
use esker_testkit::skips::IN_PART;

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [report, root] = &arguments[..] else {
        println!("usage: esker-skipped REPORT ROOT");
        return ExitCode::from(2);
    };
    let report = fs::read_to_string(report).unwrap_or_default();
    let lines: BTreeSet<&str> = report.lines().collect();
    if lines.is_empty() {
        println!("none skipped");
        return ExitCode::SUCCESS;
    }
    let names: BTreeSet<&str> = lines.iter().filter_map(|line| Some(line.split_once(": ")?.0)).collect();
    let in_part = names.iter().filter(|name| name.ends_with(IN_PART)).count();
    let more = if in_part == 0 { String::new() } else { format!(", {in_part} in part") };
    println!("skipped: {} tests{more}", names.len() - in_part);
    lines.iter().for_each(|line| println!("    {line}"));
    let mut sources = Vec::new();
    collect(&root.join("crates"), root, &mut sources);
    let all: Vec<_> = sources
        .iter()
        .flat_map(|file| tests(file, &fs::read_to_string(root.join(file)).unwrap_or_default()))
        .collect();
    let open: Vec<&str> = not_proven(&all, &report).into_iter().collect();
    if !open.is_empty() {
        println!("not proven: {}", open.join(", "));
    }
    ExitCode::SUCCESS
}

/// Adds the source files of a folder, relative to the root.
fn collect(folder: &Path, root: &Path, sources: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, root, sources);
        } else if path.extension().is_some_and(|end| end == "rs")
            && let Ok(relative) = path.strip_prefix(root)
        {
            sources.push(relative.to_owned());
        }
    }
}
