//! Rules for source files.

use std::path::Path;

use super::{files, files_ending, report, root, text};

/// A file may have this many lines of code; more needs a reason in [`LONG_FILES`].
const CODE_LINES_MAX: usize = 500;

/// Files over the limit, the length each may not exceed, and why it is not split.
const LONG_FILES: &[(&str, usize, &str)] = &[];

/// Module names that say nothing about the content.
const JUNK_DRAWERS: &[&str] = &["utils", "util", "common", "misc", "helpers", "helper", "manager", "stuff"];

/// Marks of unfinished or forgotten work. Split, so that this list does not find itself.
const UNFINISHED: &[&str] =
    &[concat!("todo", "!("), concat!("unimplemented", "!("), concat!("FIX", "ME"), concat!("#[ig", "nore")];

fn is_code(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with("//")
}

#[test]
fn files_stay_short() {
    let mut complaints = Vec::new();
    for file in files_ending("rs") {
        let name = file.to_str().expect("our file names are text");
        let lines = text(&file).lines().filter(|line| is_code(line)).count();
        let allowed = LONG_FILES.iter().find(|(path, ..)| *path == name);
        let limit = allowed.map_or(CODE_LINES_MAX, |(_, limit, _)| *limit);
        if lines > limit {
            complaints.push(format!("{name} has {lines} lines of code; {limit} are allowed"));
        }
        if allowed.is_some() && lines <= CODE_LINES_MAX {
            complaints.push(format!("{name} needs no exception any more"));
        }
    }
    report("file sizes", &complaints);
}

#[test]
fn every_crate_limits_unsafe_code() {
    let mut complaints = Vec::new();
    for file in files_ending("rs") {
        let source = text(&file);
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_face = file.parent().is_some_and(|folder| folder.ends_with("src"))
            && (name == "lib.rs" || name == "main.rs")
            && file.starts_with("crates");
        if is_face && !source.contains("#![forbid(unsafe_code)]") && !source.contains("#![deny(unsafe_code)]")
        {
            complaints.push(format!("{} neither forbids nor denies unsafe code", file.display()));
        }
        let in_sys = file.iter().any(|part| part == "sys" || part == "sys.rs");
        let allows = source.lines().any(|line| line.trim().starts_with("#![allow(unsafe_code"));
        if allows && !in_sys {
            complaints.push(format!("{} allows unsafe code outside a module named sys", file.display()));
        }
    }
    report("unsafe code lives in modules named sys", &complaints);
}

#[test]
fn module_names_describe_their_content() {
    let mut complaints = Vec::new();
    for file in files() {
        for part in file.iter().filter_map(|part| Path::new(part).file_stem()?.to_str()) {
            if JUNK_DRAWERS.contains(&part) {
                complaints.push(format!("{} is a junk drawer by name", file.display()));
            }
        }
    }
    report("names", &complaints);
}

#[test]
fn no_code_is_unfinished_and_no_test_waits_by_the_clock() {
    let sleep = concat!("thread::", "sleep");
    let mut complaints = Vec::new();
    for file in files_ending("rs") {
        let source = text(&file);
        let in_tests = file.iter().any(|part| part == "tests");
        let unit_tests = source.find("#[cfg(test)]").unwrap_or(source.len());
        for (at, line) in source.lines().enumerate() {
            let place = format!("{}:{}", file.display(), at + 1);
            for mark in UNFINISHED.iter().filter(|mark| line.contains(**mark)) {
                complaints.push(format!("{place} has {mark}"));
            }
            let offset = line.as_ptr() as usize - source.as_ptr() as usize;
            if line.contains(sleep) && is_code(line) && (in_tests || offset > unit_tests) {
                complaints.push(format!("{place} sleeps in a test; wait for the event instead"));
            }
        }
    }
    report("unfinished code and sleeping tests", &complaints);
}

/// Modules that write to stdout and stderr, each through `esker_node::terminal`, or text of its own escapes.
const WRITERS: &[&str] = &[
    "crates/cli/src/output.rs",
    "crates/cli/src/progress.rs",
    "crates/cli/src/logging.rs",
    "crates/node/src/supervisor/process.rs",
    "crates/server/src/access_log.rs",
];

#[test]
fn text_reaches_terminals_through_few_modules() {
    // Split, so that this test does not find itself.
    let ways =
        [concat!("print", "ln!("), concat!("print", "!("), concat!("std", "out()"), concat!("std", "err()")];
    let mut complaints = Vec::new();
    let mut unused: Vec<_> = WRITERS.to_vec();
    for file in files_ending("rs") {
        let name = file.to_str().expect("our file names are text");
        let is_product = name.starts_with("crates/") && name.contains("/src/") && !name.contains("/tests");
        if !is_product || name.starts_with("crates/bench/") || name.starts_with("crates/testkit/") {
            continue;
        }
        let source = text(&file);
        let product = source.split("#[cfg(test)]").next().unwrap_or_default();
        // To look whether there is a terminal, or how wide it is, writes nothing.
        let writes = |line: &str| {
            let is_question = line.contains("is_terminal") || line.contains("tcgetwinsize");
            is_code(line) && !is_question && ways.iter().any(|way| line.contains(way))
        };
        let lines = product.lines().enumerate().filter(|(_, line)| writes(line));
        match unused.iter().position(|writer| *writer == name) {
            Some(at) if lines.clone().next().is_some() => _ = unused.remove(at),
            Some(_) => {}
            None => complaints.extend(
                lines.map(|(at, _)| format!("{name}:{} writes past crates/cli/src/output.rs", at + 1)),
            ),
        }
    }
    complaints.extend(unused.iter().map(|writer| format!("{writer} writes nothing any more")));
    report("text on terminals", &complaints);
}

#[test]
fn no_path_of_a_developers_machine() {
    // Split, so that this test does not find itself.
    let homes = [concat!("/wo", "rk/"), concat!("/home", "/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];
    let mut complaints = Vec::new();
    for file in files() {
        let Ok(source) = std::fs::read_to_string(root().join(&file)) else { continue };
        for (at, line) in source.lines().enumerate() {
            for home in homes.iter().filter(|home| line.contains(**home)) {
                complaints.push(format!("{}:{} names a path below {home}", file.display(), at + 1));
            }
        }
    }
    report("paths of machines", &complaints);
}

/// Integration tests are one binary a crate, and a module file that no `mod` names would never run.
#[test]
fn every_test_module_is_listed() {
    let mut complaints = Vec::new();
    for file in files_ending("rs") {
        let parts: Vec<&str> = file.iter().filter_map(|part| part.to_str()).collect();
        let ["crates", _, "tests", binary, rest @ ..] = parts.as_slice() else { continue };
        if rest.is_empty() {
            complaints.push(format!("{} is a test binary of its own; make it a module", file.display()));
        }
        let [module] = rest else { continue };
        let Some(module) = module.strip_suffix(".rs").filter(|module| *module != "main") else { continue };
        let main = file.with_file_name("main.rs");
        if !text(&main).contains(&format!("mod {module};")) {
            complaints.push(format!("{} is not listed in its {binary}/main.rs", file.display()));
        }
    }
    report("test modules", &complaints);
}
