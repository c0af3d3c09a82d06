//! Evaluates configuration files, which are shell scripts, without a shell.
//!
//! Assignments, quotes, expansions, `export`, `readonly`, `if`, `case`, tests, and sourced files mean what they mean to
//! `/bin/sh`; the programs that such files use to look at local files and at the machine (`grep`, `cat`, `uname`,
//! `hostname`, `id`) are emulated. Nothing is ever executed: any other statement is reported once for each file, with
//! its line and the names that have no value because of it. Every evaluation is bounded: depth, steps, length of values,
//! bytes of all values, total work.

mod arithmetic;
mod commands;
mod condition;
mod expand;
mod parse;
mod programs;
mod run;
mod syntax;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::{FILE_MAX, Files};
use super::problem::{Problem, ProblemKind, SourceLine};
use expand::{Expanded, NoValue};
use run::Status;
use syntax::{Statement, assigned};

/// Maximum length of a value; a proxy list of a large site has some thousand bytes.
const VALUE_MAX: usize = 64 * 1024;
/// Maximum number of statements run in one file and the files it sources; a site has some hundred.
pub(super) const STEPS_MAX: u32 = 20_000;
/// Maximum depth of sourced files.
const DEPTH_MAX: u32 = 8;
/// Maximum number of problems reported for one load.
const PROBLEMS_MAX: usize = 200;

/// Longest output of commands in bytes, and longest file that a program reads.
const INPUT_MAX: usize = 1024 * 1024;
/// Bytes of all values.
const HELD_MAX: usize = 4 * 1024 * 1024;
/// Maximum number of bytes examined for one file, counting repetitions; reaching it takes some seconds.
const WORK_MAX: u64 = 24 * 1024 * 1024;

/// Function that returns the full name of a host.
pub type FullName = fn(&str) -> Option<String>;

/// Facts for programs like `uname` and `hostname`.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// `uname -m`.
    pub architecture: String,
    /// `uname -r`.
    pub release: String,
    /// `uname -v`.
    pub version: String,
    /// `uname -n`.
    pub host: String,
    /// Lookup of the domain for `hostname -f` of a name that is not in `/etc/hosts`.
    pub full_name: Option<FullName>,
    /// `$$`: the process id.
    pub process: u32,
    /// `id -u`.
    pub user: u32,
    /// `id -g`.
    pub group: u32,
}

impl Machine {
    /// Returns the facts of this machine.
    pub fn this() -> Self {
        let names = rustix::system::uname();
        let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
        Self {
            architecture: text(names.machine()),
            release: text(names.release()),
            version: text(names.version()),
            host: text(names.nodename()),
            full_name: Some(crate::resolve::full_name),
            process: std::process::id(),
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
        }
    }
}

/// A variable of the files.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    /// Value; `None` if it could not be evaluated.
    pub(super) value: Option<String>,
    /// Line that set it; `None` for an inherited value.
    pub(super) place: Option<SourceLine>,
    read_only: bool,
    /// Problem that prevented the evaluation.
    cause: Option<usize>,
}

impl Variable {
    /// Creates a variable that no file has set.
    pub(super) fn inherited(value: String) -> Self {
        Self { value: Some(value), place: None, read_only: false, cause: None }
    }

    /// Returns the variable as one that files can't change.
    pub(super) fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    fn place(&self) -> String {
        self.place.as_ref().map_or_else(|| "the beginning".to_owned(), SourceLine::to_string)
    }
}

/// State of the evaluation of successive files.
pub(super) struct Shell<'a> {
    files: &'a dyn Files,
    machine: &'a Machine,
    /// True for files of others, which might send away what they read.
    pub(super) reads_public_files_only: bool,
    pub(super) variables: BTreeMap<String, Variable>,
    pub(super) problems: Vec<Problem>,
    /// Names that the file has changed.
    pub(super) changed: Vec<String>,
    /// Names that only sourced files have changed.
    changed_below: Vec<String>,
    /// Captured output; `None` where it is discarded.
    output: Option<String>,
    /// `$?`: the last exit status.
    last: u8,
    /// Status of the last command substitution of an assignment.
    substituted: Option<Status>,
    /// Problem of the last command that was not run.
    unknown: Option<usize>,
    /// Report that makes the captured output incomplete.
    tainted: Option<usize>,
    /// Folder of the first file: sourced files are relative to it.
    folder: PathBuf,
    path: Arc<Path>,
    line: u32,
    depth: u32,
    /// Nesting of sourced files.
    sourced: u32,
    steps: u32,
    work: u64,
    /// Bytes of all variables.
    held: usize,
}

impl<'a> Shell<'a> {
    pub(super) fn new(files: &'a dyn Files, machine: &'a Machine) -> Self {
        Self {
            files,
            machine,
            reads_public_files_only: false,
            variables: BTreeMap::new(),
            problems: Vec::new(),
            changed: Vec::new(),
            changed_below: Vec::new(),
            output: None,
            last: 0,
            substituted: None,
            unknown: None,
            tainted: None,
            folder: PathBuf::new(),
            path: Arc::from(Path::new("")),
            line: 0,
            depth: 0,
            sourced: 0,
            steps: STEPS_MAX,
            work: WORK_MAX,
            held: 0,
        }
    }

    /// Evaluates one file of the configuration in a shell of its own, which inherits the variables.
    ///
    /// As in the reference, names that only a sourced file sets are gone with that shell; returns them.
    pub(super) fn file(&mut self, path: &Path, bytes: &[u8]) -> Vec<String> {
        self.changed.clear();
        self.changed_below.clear();
        (self.output, self.last, self.tainted) = (None, 0, None);
        // Each file has its own budget, so that an expensive file of a configuration repository doesn't affect the
        // next.
        (self.steps, self.work) = (STEPS_MAX, WORK_MAX);
        self.folder = path.parent().unwrap_or(Path::new("/")).to_owned();
        self.path = Arc::from(path);
        let before = self.variables.clone();
        self.held = before.iter().map(|(name, variable)| size(name, Some(variable))).sum();
        let statements = self.parsed(bytes);
        // Ending a file early is its own business.
        let _ = self.statements(&statements.0);
        self.complain(statements.1);
        for variable in self.variables.values_mut() {
            variable.read_only = false;
        }
        let own = assigned(&statements.0);
        let mut gone = std::mem::take(&mut self.changed_below);
        gone.retain(|name| !self.changed.contains(name));
        let (taken, gone): (Vec<_>, Vec<_>) = gone.into_iter().partition(|name| own.contains(name));
        self.changed.extend(taken);
        for name in &gone {
            match before.get(name) {
                Some(variable) => self.variables.insert(name.clone(), variable.clone()),
                None => self.variables.remove(name),
            };
        }
        gone
    }

    /// Returns the statements of a file, and its syntax error.
    fn parsed(&mut self, bytes: &[u8]) -> (Vec<Statement>, Option<words::SyntaxError>) {
        let mut text = String::from_utf8_lossy(bytes).into_owned();
        if text.contains('\u{fffd}') && std::str::from_utf8(bytes).is_err() {
            self.report(1, ProblemKind::NotText);
        }
        if let Some(at) = text.find("\r\n") {
            let line = text[..at].matches('\n').count() + 1;
            self.report(u32::try_from(line).unwrap_or(u32::MAX), ProblemKind::CarriageReturn);
            text = text.replace("\r\n", "\n");
        }
        parse::parse(&text)
    }

    fn complain(&mut self, error: Option<words::SyntaxError>) {
        if let Some(error) = error {
            self.report(error.line, ProblemKind::Syntax { what: error.what });
        }
    }

    /// Runs `. path`.
    fn source(&mut self, path: &str, line: u32) -> run::ShellResult {
        let full = self.folder.join(path);
        if self.depth >= DEPTH_MAX {
            self.report(line, ProblemKind::Endless);
            return Ok(Status::Unknown);
        }
        let bytes = match self.bytes_of(&full, FILE_MAX) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.unknown =
                    self.report(line, ProblemKind::Unsourced { path: full, why: error.to_string() });
                return Ok(Status::Unknown);
            }
        };
        if let Err(obstacle) = self.charge(bytes.len()) {
            return Ok(self.left_out(obstacle, []));
        }
        let outer = std::mem::replace(&mut self.path, Arc::from(full));
        self.depth += 1;
        self.sourced += 1;
        let (statements, error) = self.parsed(&bytes);
        let outcome = self.statements(&statements);
        self.complain(error);
        self.sourced -= 1;
        self.depth -= 1;
        self.path = outer;
        match outcome {
            // A `return` ends only the sourced file.
            Err(run::Stop::Return) => Ok(Status::Known(self.last)),
            outcome => outcome,
        }
    }

    fn bytes_of(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        if self.reads_public_files_only && !self.files.is_public(path)? {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "not every user may read it"));
        }
        self.files.read(path, limit)
    }

    /// Charges bytes to the work limit.
    fn charge(&mut self, bytes: usize) -> Expanded<()> {
        let left = self.work.checked_sub(u64::try_from(bytes).unwrap_or(u64::MAX));
        match left {
            Some(left) => {
                self.work = left;
                Ok(())
            }
            None => {
                self.work = 0;
                Err(NoValue::new("a configuration that takes so much work"))
            }
        }
    }

    /// Returns the text of a file; `None` if it can't be read.
    fn content(&mut self, path: &str) -> Expanded<Option<String>> {
        if path == "/dev/null" {
            return Ok(Some(String::new()));
        }
        let full = self.folder.join(path);
        match self.bytes_of(&full, INPUT_MAX as u64) {
            Ok(bytes) => {
                self.charge(bytes.len())?;
                let text = String::from_utf8(bytes);
                text.map(Some).map_err(|_| NoValue::new(format!("{}, which is not text", full.display())))
            }
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::NotFound
                        | std::io::ErrorKind::NotADirectory
                        | std::io::ErrorKind::PermissionDenied
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(NoValue::new(format!("{}, which can't be read ({error})", full.display()))),
        }
    }

    /// Adds a problem; returns its number.
    fn report(&mut self, line: u32, kind: ProblemKind) -> Option<usize> {
        if self.problems.len() >= PROBLEMS_MAX {
            return None;
        }
        let place = SourceLine { path: self.path.clone(), line };
        self.problems.push(Problem { place: Some(place), kind });
        Some(self.problems.len() - 1)
    }

    /// Reports a statement that is not evaluated; a repeated report only adds names.
    fn not_evaluated(&mut self, obstacle: NoValue, line: u32, names: Vec<String>) -> Status {
        let path = self.path.clone();
        let known = obstacle.cause.filter(|at| *at < self.problems.len()).or_else(|| {
            self.problems.iter().position(|problem| {
                let here = problem.place.as_ref().is_some_and(|place| place.path == path);
                here && matches!(&problem.kind, ProblemKind::NotEvaluated { what, .. } if *what == obstacle.what)
            })
        });
        let at = known.or_else(|| {
            let kind = ProblemKind::NotEvaluated { what: obstacle.what, names: Vec::new() };
            self.report(line, kind)
        });
        for name in names {
            self.forget(&name, line, at);
            if let Some(ProblemKind::NotEvaluated { names: known, .. }) =
                at.and_then(|at| self.problems.get_mut(at)).map(|problem| &mut problem.kind)
                && !known.contains(&name)
            {
                known.push(name);
            }
        }
        self.unknown = Some(at.unwrap_or(usize::MAX));
        self.tainted = self.unknown;
        Status::Unknown
    }

    fn place(&self, line: u32) -> Option<SourceLine> {
        Some(SourceLine { path: self.path.clone(), line })
    }

    /// Leaves a variable without a value, rather than with an old one.
    fn forget(&mut self, name: &str, line: u32, cause: Option<usize>) {
        if self.variables.get(name).is_none_or(|variable| !variable.read_only) {
            let variable = Variable { value: None, place: self.place(line), read_only: false, cause };
            let fits = self.held + size(name, Some(&variable)) <= HELD_MAX;
            self.restore(name, Some(variable).filter(|_| fits));
            self.note(name);
        }
    }

    fn set(&mut self, name: &str, value: String, line: u32) {
        if self.variables.get(name).is_some_and(|variable| variable.read_only) {
            self.report(line, ProblemKind::ReadOnly { name: name.to_owned() });
            return;
        }
        let variable =
            Variable { value: Some(value), place: self.place(line), read_only: false, cause: None };
        let size = size(name, Some(&variable)).saturating_sub(size(name, self.variables.get(name)));
        if self.held + size > HELD_MAX {
            self.not_evaluated(
                NoValue::new(format!("a value, of which all together have more than {HELD_MAX} bytes")),
                line,
                vec![name.to_owned()],
            );
            return;
        }
        self.restore(name, Some(variable));
        self.note(name);
    }

    /// Restores a variable.
    fn restore(&mut self, name: &str, variable: Option<Variable>) {
        self.held += size(name, variable.as_ref());
        self.held = self.held.saturating_sub(size(name, self.variables.get(name)));
        match variable {
            Some(variable) => self.variables.insert(name.to_owned(), variable),
            None => self.variables.remove(name),
        };
    }

    fn unset(&mut self, name: &str, line: u32) {
        if self.variables.get(name).is_some_and(|variable| variable.read_only) {
            self.report(line, ProblemKind::ReadOnly { name: name.to_owned() });
            return;
        }
        self.restore(name, None);
        self.note(name);
    }

    fn protect(&mut self, name: &str) {
        if let Some(variable) = self.variables.get_mut(name) {
            variable.read_only = true;
        }
    }

    fn note(&mut self, name: &str) {
        let names = if self.sourced == 0 { &mut self.changed } else { &mut self.changed_below };
        if !names.iter().any(|changed| changed == name) {
            names.push(name.to_owned());
        }
    }
}

/// Returns the bytes that a variable takes.
fn size(name: &str, variable: Option<&Variable>) -> usize {
    const ENTRY: usize = 128;
    variable.map_or(0, |variable| ENTRY + name.len() + variable.value.as_ref().map_or(0, String::len))
}
