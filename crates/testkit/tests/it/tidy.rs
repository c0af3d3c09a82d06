//! The source tree keeps its own rules: crate edges, owners of dependencies, file sizes, words, links.

mod circles;
mod claims;
mod documents;
mod manifests;
mod sources;

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the root of the source tree")
}

/// Returns every file that is or would be committed, relative to the root.
///
/// Without git (an unpacked archive of the source) it walks the tree and leaves out build results.
fn files() -> Vec<PathBuf> {
    let listed = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output();
    let files: Vec<PathBuf> = match listed {
        Ok(output) if output.status.success() => output
            .stdout
            .split(|byte| *byte == 0)
            .filter(|path| !path.is_empty())
            .map(|path| PathBuf::from(String::from_utf8(path.to_vec()).expect("our file names are text")))
            .filter(|path| root().join(path).exists())
            .collect(),
        _ => walk(),
    };
    assert!(files.len() > 50, "the source tree has files");
    files
}

fn walk() -> Vec<PathBuf> {
    let top = root();
    let mut files = Vec::new();
    let mut folders = vec![top.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() && !["target", ".git", "corpus", "artifacts"].contains(&name) {
                folders.push(path);
            } else if path.is_file() {
                files.push(path.strip_prefix(&top).expect("below the root").to_owned());
            }
        }
    }
    files
}

fn files_ending(extension: &str) -> Vec<PathBuf> {
    files().into_iter().filter(|path| path.extension().is_some_and(|e| e == extension)).collect()
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("reading {}: {e}", path.display()))
}

/// Returns the cells of every table row of a Markdown text whose first cell is not a heading or a rule.
fn rows(markdown: &str) -> Vec<Vec<String>> {
    markdown
        .lines()
        .filter(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect())
        .collect()
}

/// Panics with all complaints at once, because one at a time wears people out.
#[track_caller]
fn report(rule: &str, complaints: &[String]) {
    assert!(complaints.is_empty(), "{rule}:\n  {}", complaints.join("\n  "));
}
