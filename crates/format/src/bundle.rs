//! Bundles: the files that are read after another one, in a specification that lies beside it.
//!
//! ```text
//! /sw/bin/tool                 the trigger: its catalog entry has the flag BUNDLE_TRIGGER
//! /sw/bin/.cvmfsbundle-tool    { "name": "CVMFS_BUNDLE", "version": "1.0.0", "encoding": "UTF-8",
//!                                "dependencies": ["/sw/lib/a.so", "/sw/lib/b.so"],
//!                                "esker-reads": ["1", "0:0-1048576"] }
//! ```
//!
//! The paths are absolute from the root of the repository, or relative to the specification. The member
//! `esker-reads` is ours: in which order the dependencies are read, each by its number in the list and perhaps a
//! range of bytes. Readers of the form find members by name and pass it by; whoever doesn't know it takes the
//! dependencies whole, in the order they are listed. Lines before the object that start with `#` are comments.

mod stored;

use std::ops::Range;

use stored::Stored;

/// What the name of a specification starts with; the name of its trigger follows.
pub const PREFIX: &[u8] = b".cvmfsbundle-";
/// The largest specification that is read or written.
pub const BYTES_MAX: usize = 4 << 20;
/// The most files of one bundle; those after it are left out.
pub const FILES_MAX: usize = 65_536;
/// The most steps in which they are read; those after it are left out.
pub const READS_MAX: usize = 131_072;

pub(crate) const NAME: &str = "CVMFS_BUNDLE";
pub(crate) const VERSION: &str = "1.0.0";
pub(crate) const ENCODING: &str = "UTF-8";
pub(crate) const READS: &str = "esker-reads";
/// The longest path that Linux takes, and the longest name in one.
const PATH_MAX: usize = 4096;
const NAME_MAX: usize = 255;
/// The most bytes of all paths together; a relative path is longer here than in the specification.
const PATHS_MAX: usize = 2 * BYTES_MAX;

/// Files, and the order in which they are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    /// The paths of the files, absolute from the root of the repository.
    pub files: Vec<Vec<u8>>,
    /// What of them is read, in order. Every file is in it.
    pub reads: Vec<BundleRead>,
    /// How many dependencies and steps make no sense, or are too many.
    pub left_out: usize,
}

/// One step of the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleRead {
    /// The number of the file in [`Bundle::files`].
    pub file: usize,
    /// Which bytes are read; none if all are.
    pub range: Option<Range<u64>>,
}

/// Why a specification can't be used.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// It is larger than any that is of use.
    #[error("it has {0} bytes, {BYTES_MAX} are allowed")]
    TooLarge(usize),
    /// It is not JSON, or lacks a member.
    #[error("it is not a bundle specification")]
    Syntax(#[from] serde_json::Error),
    /// It says that it is something else.
    #[error("its {member} is `{found}`, which is not supported")]
    Unsupported {
        /// Which member says so.
        member: &'static str,
        /// What it says, cut to a printable length.
        found: String,
    },
}

/// The name of the specification beside a trigger; none if it would be too long for a file name.
pub fn name_for(trigger: &[u8]) -> Option<Vec<u8>> {
    let name = [PREFIX, trigger].concat();
    (!trigger.is_empty() && name.len() <= NAME_MAX).then_some(name)
}

/// The name of the trigger of the specification with this name; none if it is the name of anything else.
pub fn trigger_of(name: &[u8]) -> Option<&[u8]> {
    name.strip_prefix(PREFIX).filter(|trigger| !trigger.is_empty())
}

impl Bundle {
    /// Reads a specification that lies in a directory of the repository (empty for its root).
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

    /// Takes the paths that make sense; for each dependency, which file it became.
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

    /// Takes the steps that make sense, and after them the files that none of them reads.
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

/// What follows the lines that start with `#`.
fn after_comments(mut bytes: &[u8]) -> &[u8] {
    while bytes.first() == Some(&b'#') {
        let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
        bytes = bytes.get(end..).unwrap_or_default();
    }
    bytes
}

/// The path from the root of the repository; none if it is no path of a file in there.
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
