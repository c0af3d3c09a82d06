//! Configuration files are written for a shell; here they are evaluated without one.
//!
//! Assignments, quotes, expansions, `export` and its like, `if`, `case`, `for`, tests, and files that are sourced mean
//! what they mean to `/bin/sh`. Nothing is ever executed: what would need it (a pipeline, a function, a command) is
//! reported with file, line and the names that stay as they were, and so is everything that depends on it. Every walk
//! has a bound: depth, steps, length of values.

mod arithmetic;
mod condition;
mod expand;
mod parse;
mod pattern;
mod run;
mod syntax;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::{FILE_MAX, Files};
use super::problem::{Place, Problem, ProblemKind};
use run::Status;

/// Longest value; a proxy list of a large site has some thousand bytes.
const VALUE_MAX: usize = 64 * 1024;
/// Statements run in one load; a site has some hundred.
pub(super) const STEPS_MAX: u32 = 20_000;
/// Files source each other at most so deep.
const DEPTH_MAX: u32 = 8;
/// Problems told in one load; whoever has more knows enough.
const PROBLEMS_MAX: usize = 200;

/// What `uname` and `hostname` say.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// `uname -m`.
    pub architecture: String,
    /// `uname -r`.
    pub release: String,
    /// `uname -n`.
    pub host: String,
}

impl Machine {
    /// This machine.
    pub fn this() -> Self {
        let names = rustix::system::uname();
        let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
        Self {
            architecture: text(names.machine()),
            release: text(names.release()),
            host: text(names.nodename()),
        }
    }
}

/// A variable of the files.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    /// `None` where it could not be evaluated.
    pub(super) value: Option<String>,
    /// Where it was set; `None` for what was there before.
    pub(super) place: Option<Place>,
    read_only: bool,
}

impl Variable {
    /// A variable that no file has set.
    pub(super) fn inherited(value: String) -> Self {
        Self { value: Some(value), place: None, read_only: false }
    }

    fn place(&self) -> String {
        self.place.as_ref().map_or_else(|| "the beginning".to_owned(), Place::to_string)
    }
}

/// The state in which one file after the other is evaluated.
pub(super) struct Shell<'a> {
    files: &'a dyn Files,
    machine: &'a Machine,
    pub(super) variables: BTreeMap<String, Variable>,
    pub(super) problems: Vec<Problem>,
    /// The names that the file has changed.
    pub(super) changed: Vec<String>,
    /// Of the file that is read first: what it sources is found from there.
    folder: PathBuf,
    path: Arc<Path>,
    line: u32,
    depth: u32,
    steps: u32,
}

impl<'a> Shell<'a> {
    pub(super) fn new(files: &'a dyn Files, machine: &'a Machine) -> Self {
        Self {
            files,
            machine,
            variables: BTreeMap::new(),
            problems: Vec::new(),
            changed: Vec::new(),
            folder: PathBuf::new(),
            path: Arc::from(Path::new("")),
            line: 0,
            depth: 0,
            steps: STEPS_MAX,
        }
    }

    /// Evaluates one file of the configuration.
    pub(super) fn file(&mut self, path: &Path, bytes: &[u8]) {
        self.changed.clear();
        self.folder = path.parent().unwrap_or(Path::new("/")).to_owned();
        self.path = Arc::from(path);
        // Ending a file early is its own business.
        let _ = self.text(bytes);
        for variable in self.variables.values_mut() {
            // Each file has a shell of its own, for which nothing is read-only yet.
            variable.read_only = false;
        }
    }

    fn text(&mut self, bytes: &[u8]) -> Result<Status, run::Stop> {
        let mut text = String::from_utf8_lossy(bytes).into_owned();
        if matches!(text, ref text if text.contains('\u{fffd}')) && std::str::from_utf8(bytes).is_err() {
            self.report(1, ProblemKind::NotText);
        }
        if let Some(at) = text.find("\r\n") {
            let line = text[..at].matches('\n').count() + 1;
            self.report(u32::try_from(line).unwrap_or(u32::MAX), ProblemKind::CarriageReturn);
            text = text.replace("\r\n", "\n");
        }
        let (statements, error) = parse::parse(&text);
        let outcome = self.statements(&statements);
        if let Some(error) = error {
            self.report(error.line, ProblemKind::Syntax { what: error.what });
        }
        outcome
    }

    /// `. path`.
    fn source(&mut self, path: &str, line: u32) -> Result<Status, run::Stop> {
        let full = self.folder.join(path);
        if self.depth >= DEPTH_MAX {
            self.report(line, ProblemKind::Endless);
            return Ok(Status::Unknown);
        }
        let bytes = match self.files.read(&full, FILE_MAX) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.report(line, ProblemKind::Unsourced { path: full, why: error.to_string() });
                return Ok(Status::Unknown);
            }
        };
        let outer = std::mem::replace(&mut self.path, Arc::from(full));
        self.depth += 1;
        // A `return` in there ends only that file.
        let status = self.text(&bytes).unwrap_or(Status::True);
        self.depth -= 1;
        self.path = outer;
        Ok(status)
    }

    fn report(&mut self, line: u32, kind: ProblemKind) {
        if self.problems.len() < PROBLEMS_MAX {
            let place = Place { path: self.path.clone(), line };
            self.problems.push(Problem { place: Some(place), kind });
        }
    }

    fn place(&self, line: u32) -> Option<Place> {
        Some(Place { path: self.path.clone(), line })
    }

    fn set(&mut self, name: &str, value: Option<String>, line: u32) {
        if self.variables.get(name).is_some_and(|variable| variable.read_only) {
            return self.report(line, ProblemKind::ReadOnly { name: name.to_owned() });
        }
        let place = self.place(line);
        self.variables.insert(name.to_owned(), Variable { value, place, read_only: false });
        self.note(name);
    }

    fn unset(&mut self, name: &str, line: u32) {
        if self.variables.get(name).is_some_and(|variable| variable.read_only) {
            return self.report(line, ProblemKind::ReadOnly { name: name.to_owned() });
        }
        self.variables.remove(name);
        self.note(name);
    }

    fn protect(&mut self, name: &str) {
        if let Some(variable) = self.variables.get_mut(name) {
            variable.read_only = true;
        }
    }

    fn note(&mut self, name: &str) {
        if !self.changed.iter().any(|changed| changed == name) {
            self.changed.push(name.to_owned());
        }
    }
}
