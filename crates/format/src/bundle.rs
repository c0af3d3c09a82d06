//! Bundles: the files that programs read after another one, in a specification next to it.
//!
//! ```text
//! /sw/bin/tool                 the trigger: its catalog entry has the flag BUNDLE_TRIGGER
//! /sw/bin/.cvmfsbundle-tool    { "name": "CVMFS_BUNDLE", "version": "1.0.0", "encoding": "UTF-8",
//!                                "dependencies": ["/sw/lib/a.so", "/sw/lib/b.so"],
//!                                "esker-reads": ["1", "0:0-1048576"] }
//! ```
//!
//! The paths are absolute from the root of the repository, or relative to the specification. The member
//! `esker-reads` is Esker's extension: the order in which the dependencies are read, each as its index in the list
//! with an optional byte range. Other readers ignore the unknown member and fetch the dependencies whole, in the
//! order of the list. Lines before the object that start with `#` are comments.

mod stored;

use std::ops::Range;

use stored::Stored;

/// Prefix of a specification's name; the name of its trigger follows.
pub const PREFIX: &[u8] = b".cvmfsbundle-";
/// Maximum length in bytes of a specification that is read or written.
pub const BYTES_MAX: usize = 4 << 20;
/// Maximum number of files of a bundle; further files are ignored.
pub const FILES_MAX: usize = 65_536;
/// Maximum number of read steps of a bundle; further steps are ignored.
pub const READS_MAX: usize = 131_072;

pub(crate) const NAME: &str = "CVMFS_BUNDLE";
pub(crate) const VERSION: &str = "1.0.0";
pub(crate) const ENCODING: &str = "UTF-8";
pub(crate) const READS: &str = "esker-reads";
/// Maximum length of a path on Linux, and of a name in it, in bytes.
const PATH_MAX: usize = 4096;
const NAME_MAX: usize = 255;
/// Maximum total length of all paths in bytes; a relative path is longer here than in the specification.
const PATHS_MAX: usize = 2 * BYTES_MAX;

/// Files, and the order in which they are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    /// The paths of the files, absolute from the root of the repository.
    pub files: Vec<Vec<u8>>,
    /// Read steps in order; every file has at least one.
    pub reads: Vec<BundleRead>,
    /// Number of dependencies and steps that were invalid or beyond the limits.
    pub left_out: usize,
}

/// One read step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleRead {
    /// Index of the file in [`Bundle::files`].
    pub file: usize,
    /// Byte range of the read; none for the whole file.
    pub range: Option<Range<u64>>,
}

/// Reasons why a specification can't be used.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The specification is larger than [`BYTES_MAX`].
    #[error("it has {0} bytes, {BYTES_MAX} are allowed")]
    TooLarge(usize),
    /// The specification is not JSON, or a member is missing.
    #[error("it is not a bundle specification")]
    Syntax(#[from] serde_json::Error),
    /// A member names an unsupported format.
    #[error("its {member} is `{found}`, which is not supported")]
    Unsupported {
        /// Name of the member.
        member: &'static str,
        /// Value of the member, truncated for messages.
        found: String,
    },
}

/// Returns the name of the specification next to a trigger; none if it would be too long for a file name.
pub fn name_for(trigger: &[u8]) -> Option<Vec<u8>> {
    let name = [PREFIX, trigger].concat();
    (!trigger.is_empty() && name.len() <= NAME_MAX).then_some(name)
}

/// Returns the trigger of the specification with this name; none if it is no specification.
pub fn trigger_of(name: &[u8]) -> Option<&[u8]> {
    name.strip_prefix(PREFIX).filter(|trigger| !trigger.is_empty())
}

impl Bundle {
    /// Parses a specification in a directory of the repository (empty for its root).
    pub fn parse(bytes: &[u8], directory: &[u8]) -> Result<Self, BundleError> {
        if bytes.len() > BYTES_MAX {
            return Err(BundleError::TooLarge(bytes.len()));
        }
        let stored: Stored = serde_json::from_slice(after_comments(bytes))?;
        for (member, found, supported) in [
            ("name", &stored.name, stored.name == NAME),
            ("version", &stored.version, stored.version.starts_with("1.")),
            ("encoding", &stored.encoding, stored.encoding.eq_ignore_ascii_case(ENCODING)),
        ] {
            if !supported {
                return Err(BundleError::Unsupported { member, found: found.chars().take(40).collect() });
            }
        }
        let mut bundle = Self { left_out: stored.dependencies.left_out, ..Self::default() };
        let places = bundle.take_files(&stored.dependencies.items, directory);
        bundle.take_reads(&stored.reads, &places);
        Ok(bundle)
    }

    /// Adds the valid paths; returns the file index of each dependency.
    fn take_files(&mut self, dependencies: &[String], directory: &[u8]) -> Vec<Option<usize>> {
        let mut total = 0;
        let mut place = |path: &String| {
            let path = absolute(path.as_bytes(), directory)?;
            total += path.len();
            (total <= PATHS_MAX).then(|| {
                self.files.push(path);
                self.files.len() - 1
            })
        };
        let places: Vec<Option<usize>> = dependencies.iter().map(&mut place).collect();
        self.left_out += places.iter().filter(|place| place.is_none()).count();
        places
    }

    /// Adds the valid steps, then a step for each file without one.
    fn take_reads(&mut self, steps: &stored::Steps, places: &[Option<usize>]) {
        let mut unread = vec![true; self.files.len()];
        for step in &steps.items {
            let read = stored::parse_step(step).and_then(|(dependency, range)| {
                let file = (*places.get(dependency)?)?;
                *unread.get_mut(file)? = false;
                Some(BundleRead { file, range })
            });
            match read {
                Some(read) => self.reads.push(read),
                None => self.left_out += 1,
            }
        }
        self.left_out += steps.left_out;
        let rest = unread.iter().enumerate().filter(|(_, unread)| **unread);
        self.reads.extend(rest.map(|(file, _)| BundleRead { file, range: None }));
    }
}

/// Returns the text after the lines that start with `#`.
fn after_comments(mut bytes: &[u8]) -> &[u8] {
    while bytes.first() == Some(&b'#') {
        let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
        bytes = bytes.get(end..).unwrap_or_default();
    }
    bytes
}

/// Returns the path from the root of the repository; none if it is not a valid path of a file.
pub(crate) fn absolute(path: &[u8], directory: &[u8]) -> Option<Vec<u8>> {
    let path = match path.strip_prefix(b"/") {
        Some(_) => path.to_vec(),
        None => [directory, b"/", path.strip_prefix(b"./").unwrap_or(path)].concat(),
    };
    let is_name = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && name.len() <= NAME_MAX;
    let sound = path.len() < PATH_MAX && !path.contains(&0);
    (sound && path.split(|byte| *byte == b'/').skip(1).all(is_name)).then_some(path)
}

#[cfg(test)]
mod tests;
