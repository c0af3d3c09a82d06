//! Evaluates the configuration files of CernVM-FS and Esker to typed client parameters, and checks them.
//!
//! [`Request::load`] evaluates the files in their order, without a shell. [`Parameters`] has every value with the line
//! it comes from, and every line without effect as a [`Problem`]. [`table`] has a row for every parameter, and
//! [`check`] compares a configuration with the machine.
#![forbid(unsafe_code)]

mod attribute_parameters;
mod caches;
pub mod check;
mod client;
mod files;
mod finding;
mod load;
mod problem;
mod process_parameters;
mod reports;
mod resolve;
mod rules;
mod shell;
pub mod table;
#[cfg(test)]
mod tests;
mod toml_file;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

pub use caches::{ConfiguredMemory, ConfiguredTier};
pub use client::{ConfiguredCache, Keys, ParameterError};
pub use files::{Files, Probe, Root, read_file};
pub use finding::{Finding, Severity};
pub use load::{EMULATED_VERSION, Request};
pub use problem::{Problem, ProblemKind, SourceLine};
pub use process_parameters::Tuning;
pub use reports::{SyslogOptions, SyslogTarget, TalkOptions, Telemetry};
pub use shell::{FullName, Machine};
pub use table::State;

/// A value and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The value, with `@fqrn@` and `@org@` filled in.
    pub value: String,
    /// Origin of the value.
    pub origin: Origin,
}

/// Origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of a file.
    File(SourceLine),
    /// A variable of the environment.
    Environment(&'static str),
    /// An option of the command line.
    Option(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File(place) => place.fmt(f),
            Origin::Environment(name) | Origin::Option(name) => f.write_str(name),
        }
    }
}

/// Configuration of a repository, or the common one.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    name: Option<String>,
    values: BTreeMap<String, Setting>,
    problems: Vec<Problem>,
    read: Vec<PathBuf>,
}

impl Parameters {
    /// Returns the name of its repository.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns all settings, by name.
    pub fn all(&self) -> &BTreeMap<String, Setting> {
        &self.values
    }

    /// Returns the lines that don't do what they seem to do.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns the files that were read, in order.
    pub fn files(&self) -> &[PathBuf] {
        &self.read
    }

    /// Returns a parameter by any of its names; empty counts as not set.
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.named(name).map(|(_, setting)| setting)
    }

    /// Returns a parameter and the name that it is set by.
    pub fn named(&self, name: &str) -> Option<(&str, &Setting)> {
        let row = table::row(name);
        let others = row.map_or(&[][..], |row| row.aliases);
        // A row for parameters of named caches stands for many names.
        let own = row.filter(|row| !row.name.contains('<')).map_or(name, |row| row.name);
        // The newer names come first: the reference looks at the older ones only without them.
        let found = others.iter().copied().chain([own]).find_map(|name| self.values.get_key_value(name));
        found.map(|(name, setting)| (name.as_str(), setting)).filter(|(_, setting)| !setting.value.is_empty())
    }

    /// Sets a parameter from the environment or the command line.
    pub fn overrule(&mut self, name: &str, value: String, origin: Origin) {
        self.values.insert(name.to_owned(), Setting { value, origin });
    }

    fn is_required(&self) -> bool {
        let setting = self.get("CVMFS_CONFIG_REPO_REQUIRED");
        setting.is_some_and(|setting| table::switch(&setting.value) == Some(true))
    }
}
