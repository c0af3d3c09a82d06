//! Reads the files that Apptainer adds to its images.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::path::Path;

use crate::container::environment::PREFIX;
use crate::container::{Environment, Stage};

/// Folder of scripts in an image, which Apptainer sources before every command.
const SCRIPTS: &str = "/.singularity.d/env";
/// Script for a container without a command.
pub(super) const RUN: &str = "/.singularity.d/runscript";

/// Returns a script that lets the image's scripts set their variables before `line` runs. They count as the
/// image's variables do.
pub(super) fn source(line: &mut Vec<OsString>, stage: &Stage, environment: &mut Environment) {
    let has = |path: &str| stage.has(Path::new(path));
    if line.is_empty() || !has(SCRIPTS) || !has("/bin/sh") {
        return;
    }
    let script = script(environment).into();
    line.splice(0..0, ["/bin/sh".into(), "-c".into(), script, "sh".into()]);
}

/// Protected values are passed in variables, because all users of the node see arguments.
fn script(environment: &mut Environment) -> String {
    let mut script = format!(
        "for esker_file in {SCRIPTS}/*.sh; do [ ! -f \"$esker_file\" ] || . \"$esker_file\"; done; unset esker_file; "
    );
    let insisted: Vec<(String, OsString)> = environment
        .insisted()
        .filter_map(|(name, value)| Some((variable(name)?.to_owned(), value.to_owned())))
        .collect();
    for (name, value) in insisted {
        let told = format!("{PREFIX}{name}");
        // By `command`, the shell goes on where a variable is its own, like UID.
        let _ = write!(script, "command export {name}=\"${told}\"; unset {told}; ");
        environment.set(&told, value);
    }
    for (name, directory) in environment.front() {
        let _ = write!(script, "export {name}=\"{directory}${{{name}:+:${name}}}\"; ");
    }
    script.push_str("exec \"$@\"");
    script
}

/// Returns a name that is valid in shells; shells pass other variables on unchanged.
fn variable(name: &OsStr) -> Option<&str> {
    let name = name.to_str()?;
    let is_word = name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric());
    (is_word && !name.starts_with(|first: char| first.is_ascii_digit()) && !name.is_empty()).then_some(name)
}
