//! Parses rules for parts of the host that a container needs: libraries of drivers and networks, devices,
//! programs.
//!
//! ```text
//!  lib  PATTERN      libraries of the host's own kind, by name: in $LD_LIBRARY_PATH, the loader's cache, usual folders
//!  dev  PATTERN      devices, or directories of them
//!  bin  NAME         a program in $PATH
//!  path PATTERN      files or directories, shown at their own path
//!  dir  NAME         the directory in this variable of the environment
//!  set  NAME=VALUE   a variable for the command
//! ```
//!
//! One rule a line; `#` begins a comment. `*`, `?` and `[a-z]` match within a name.

mod elf;
mod libraries;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use esker_format::glob::Glob;

/// Error: a line of rules is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: `{text}` is not a rule: lib, dev, bin, path, dir or set with an argument")]
pub struct RuleError {
    line: usize,
    text: String,
}

/// A set of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    libraries: Vec<String>,
    devices: Vec<String>,
    programs: Vec<String>,
    paths: Vec<String>,
    directories: Vec<String>,
    variables: Vec<(String, String)>,
}

/// Parts of the host that match the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostParts {
    /// Libraries by the name under which they are loaded, with their paths.
    pub libraries: Vec<(String, PathBuf)>,
    /// Paths of devices.
    pub devices: Vec<PathBuf>,
    /// Names of programs, and their files.
    pub programs: Vec<(String, PathBuf)>,
    /// Paths of files and directories.
    pub paths: Vec<PathBuf>,
    /// Variables; a rule with only variables counts as not satisfied.
    pub variables: Vec<(String, String)>,
}

impl HostParts {
    /// True if no part of the host matches, variables aside.
    pub fn is_empty(&self) -> bool {
        self.libraries.is_empty()
            && self.devices.is_empty()
            && self.programs.is_empty()
            && self.paths.is_empty()
    }
}

impl Rules {
    /// Parses the rules.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let mut rules = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let wrong = || RuleError { line: number, text: line.to_owned() };
            let (word, about) = line.split_once(char::is_whitespace).ok_or_else(wrong)?;
            let about = about.trim().to_owned();
            let absolute = about.starts_with('/');
            match word {
                "lib" if !about.contains('/') => rules.libraries.push(about),
                "dev" if about.starts_with("/dev/") => rules.devices.push(about),
                "bin" if !about.contains('/') => rules.programs.push(about),
                "path" if absolute => rules.paths.push(about),
                "dir" => rules.directories.push(about),
                "set" => {
                    let (name, value) = about.split_once('=').ok_or_else(wrong)?;
                    rules.variables.push((name.to_owned(), value.to_owned()));
                }
                _ => return Err(wrong()),
            }
        }
        Ok(rules)
    }

    /// Returns a short summary of the rules.
    pub fn summary(&self) -> String {
        let first = |of: &[String]| of.iter().take(3).cloned().collect::<Vec<_>>();
        [first(&self.devices), first(&self.libraries), first(&self.programs), first(&self.paths)]
            .concat()
            .join(", ")
    }

    /// Finds the parts on this host.
    pub fn find(&self) -> HostParts {
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let named = self.directories.iter().filter_map(|name| variable(name));
        let directories = named.filter(|path| path.is_absolute() && path.is_dir());
        let search: Vec<PathBuf> =
            std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
        let program = |name: &String| {
            let file = search.iter().map(|folder| folder.join(name)).find(|file| file.is_file())?;
            Some((name.clone(), fs::canonicalize(file).ok()?))
        };
        HostParts {
            libraries: libraries::find(&self.libraries),
            devices: self.devices.iter().flat_map(|pattern| expand(pattern)).collect(),
            programs: self.programs.iter().filter_map(program).collect(),
            paths: self.paths.iter().flat_map(|pattern| expand(pattern)).chain(directories).collect(),
            variables: self.variables.clone(),
        }
    }
}

/// Returns the paths of this host that match.
fn expand(pattern: &str) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/")];
    for component in Path::new(pattern).components() {
        let Component::Normal(name) = component else { continue };
        let name = name.to_string_lossy();
        found = if !name.contains(['*', '?', '[']) {
            found.into_iter().map(|path| path.join(&*name)).filter(|path| path.exists()).collect()
        } else {
            found.iter().flat_map(|folder| matching(folder, &name)).collect()
        };
    }
    found
}

fn matching(folder: &Path, name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let pattern = Glob::from_bytes(name.as_bytes());
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| pattern.fits(entry.file_name().as_bytes()))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_or_refused() {
        let rules =
            Rules::parse("# one\nlib libc.so*  # two\n\ndev /dev/nul?\nset A=b=c\nbin sh\n").expect("rules");
        assert_eq!(rules.libraries, ["libc.so*"]);
        assert_eq!(rules.variables, [("A".into(), "b=c".into())]);
        for wrong in ["lib", "lib /lib/libc.so", "dev null", "path etc", "set A", "run sh"] {
            assert_eq!(Rules::parse(&format!("\n{wrong}")).expect_err(wrong).line, 2);
        }
    }

    #[test]
    fn existing_parts_of_the_host_are_found() {
        let rules = Rules::parse("dev /dev/nul?\ndev /dev/no-such*\nbin sh\npath /pro*/self").expect("rules");
        let found = rules.find();
        assert_eq!(found.devices, [Path::new("/dev/null")]);
        assert!(found.programs.iter().any(|(name, file)| name == "sh" && file.is_absolute()));
        assert_eq!(found.paths, [Path::new("/proc/self")]);
        assert!(Rules::parse("dev /dev/no-such*").expect("rules").find().is_empty());
    }
}
