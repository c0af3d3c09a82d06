//! Finds and rewrites paths of the folder in which software was built.
//!
//! Scripts of a Python or conda environment start their interpreter by its absolute path. Published elsewhere, they fail, or run
//! what is in the build folder. Environments are best built where they are published; [`Relocation`] is for those that exist.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use esker_repository::path;
use serde::Deserialize;

use crate::error::PublishError;
use crate::plan::ReadDirectory;
use crate::source::Source;

/// Most bytes of the beginning of a script that are looked at.
pub(crate) const HEAD_MAX: usize = 1024;
/// Maximum size of a text file that is rewritten.
const TEXT_MAX: u64 = 1 << 20;
/// Maximum size of a file of conda that is rewritten, and of what it records about a package.
const RECORDED_MAX: u64 = 256 << 20;
/// Folders of interpreters that belong to the system of the reader.
const SYSTEM: [&[u8]; 6] = [b"", b"/bin", b"/sbin", b"/usr/bin", b"/usr/sbin", b"/usr/local/bin"];

/// Returns folder and name of the interpreter that a script starts; none if that is one of the system.
pub(crate) fn interpreter(script: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut lines = script.split(|byte| *byte == b'\n');
    let first = lines.next()?.strip_prefix(b"#!")?.trim_ascii_start();
    // What installers of Python packages write if the path is too long for the kernel.
    let long = lines.next().and_then(|line| line.strip_prefix(b"'''exec' "));
    let named = long.unwrap_or(first);
    let named = named.strip_prefix(b"\"").unwrap_or(named);
    let end = named.iter().position(|byte| b" \t\r\"".contains(byte)).unwrap_or(named.len());
    let slash = named[..end].iter().rposition(|byte| *byte == b'/')?;
    let (folder, name) = (&named[..slash], &named[slash + 1..end]);
    (folder.starts_with(b"/") && !name.is_empty() && !SYSTEM.contains(&folder)).then_some((folder, name))
}

/// Returns true if a symlink in this directory leads out of the repository, or into the folder from which it is published.
pub(crate) fn leads_out(target: &[u8], directory: &[u8], build_folder: &[u8]) -> bool {
    if target.starts_with(b"/") {
        return !build_folder.is_empty() && path::is_within(target, build_folder);
    }
    let components = |path: &[u8]| path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).count();
    let mut depth = components(directory);
    for name in target.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." if depth == 0 => return true,
            b".." => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}

/// Rewrites the path of the build folder to the place in the repository: in scripts, in `activate*` and `pyvenv.cfg`, in
/// symlinks, and where conda has recorded it.
#[derive(Debug)]
pub(crate) struct Relocation {
    /// Path that the source had when it was built, without a slash at its end.
    from: Vec<u8>,
    /// Path at which clients have it.
    to: Vec<u8>,
    /// Files that name it according to conda. For binary files the length of the path that they have room for.
    recorded: HashMap<Vec<u8>, Option<usize>>,
}

/// Record of conda about an installed package.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Package {
    paths_data: Paths,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Paths {
    paths: Vec<PathRecord>,
}

#[derive(Deserialize)]
struct PathRecord {
    #[serde(rename = "_path")]
    path: String,
    #[serde(default)]
    prefix_placeholder: Option<String>,
    #[serde(default)]
    file_mode: Option<String>,
}

impl Relocation {
    pub(crate) fn new(from: &[u8], to: Vec<u8>) -> Self {
        let from = from.strip_suffix(b"/").unwrap_or(from).to_vec();
        Self { from, to, recorded: HashMap::new() }
    }

    /// Reads what conda has recorded about the files of these directories.
    pub(crate) fn read_records(
        &mut self,
        source: &Source,
        directories: &[ReadDirectory],
    ) -> Result<(), PublishError> {
        for directory in directories {
            let Some((prefix, b"conda-meta")) = path::split(&directory.relative) else { continue };
            let folder = source.open_directory(&directory.relative)?;
            for file in directory.files.iter().filter(|file| file.name.ends_with(b".json")) {
                let at = path::join(&directory.relative, &file.name);
                let opened = source.open_file(&folder, &directory.relative, &file.name)?;
                let text = source.read_whole(&opened, &at, RECORDED_MAX)?;
                let Ok(package) = serde_json::from_slice::<Package>(&text) else { continue };
                for PathRecord { path, prefix_placeholder, file_mode } in package.paths_data.paths {
                    if let Some(placeholder) = prefix_placeholder {
                        let room = (file_mode.as_deref() == Some("binary")).then_some(placeholder.len());
                        self.recorded.insert(path::join(prefix, path.as_bytes()), room);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the content of a file with the other path; none if the file is no candidate.
    pub(crate) fn content(
        &self,
        source: &Source,
        (file, size): (&OwnedFd, u64),
        at: &[u8],
    ) -> Result<Option<Vec<u8>>, PublishError> {
        let recorded = self.recorded.get(at).copied();
        let limit = if recorded.is_some() { RECORDED_MAX } else { TEXT_MAX };
        let (directory, name) = path::split(at).unwrap_or_default();
        let is_named =
            name == b"pyvenv.cfg" || name.starts_with(b"activate") || directory.ends_with(b"/conda-meta");
        if size > limit || recorded.is_none() && !is_named && !is_script(file) {
            return Ok(None);
        }
        let content = source.read_whole(file, at, limit)?;
        let rewritten = match recorded {
            Some(Some(room)) => self
                .in_binary(&content, room)
                .map_err(|reason| PublishError::Refused { path: source.shown(at), reason })?,
            _ => self.in_text(&content),
        };
        Ok(Some(rewritten.unwrap_or(content)))
    }

    /// Returns a text or path with the other path; none if it doesn't name the build folder.
    pub(crate) fn in_text(&self, text: &[u8]) -> Option<Vec<u8>> {
        let mut rewritten = Vec::new();
        let mut rest = text;
        while let Some(at) = self.find(rest, text.len() - rest.len(), text) {
            rewritten.extend_from_slice(&rest[..at]);
            rewritten.extend_from_slice(&self.to);
            rest = &rest[at + self.from.len()..];
        }
        (rest.len() < text.len()).then(|| {
            rewritten.extend_from_slice(rest);
            rewritten
        })
    }

    /// Returns where the build folder is named next in the rest of a text, which begins at an offset.
    fn find(&self, rest: &[u8], offset: usize, text: &[u8]) -> Option<usize> {
        let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-+~@".contains(byte);
        let len = self.from.len();
        let mut from = 0;
        while let Some(found) = rest[from..].windows(len).position(|window| window == self.from) {
            let at = from + found;
            let before = (offset + at).checked_sub(1).and_then(|before| text.get(before));
            if !before.is_some_and(is_of_name) && !rest.get(at + len).is_some_and(is_of_name) {
                return Some(at);
            }
            from = at + 1;
        }
        None
    }

    /// Returns a binary file with the other path. Strings end in NUL, with room for a path of `room` bytes in place of each; what
    /// the other path leaves free is NUL.
    fn in_binary(&self, content: &[u8], room: usize) -> Result<Option<Vec<u8>>, String> {
        let mut rewritten = content.to_vec();
        let mut start = 0;
        let mut is_changed = false;
        while start < content.len() {
            let end =
                content[start..].iter().position(|byte| *byte == 0).map_or(content.len(), |len| start + len);
            if let Some(string) = self.in_text(&content[start..end]) {
                let grown = string.len().saturating_sub(end - start);
                let free = content[end..].iter().take_while(|byte| **byte == 0).count();
                if self.to.len() > room || grown >= free.max(1) {
                    return Err(format!(
                        "conda left room for a path of {room} bytes in it, and {} has {}",
                        String::from_utf8_lossy(&self.to),
                        self.to.len()
                    ));
                }
                rewritten[start..end.max(start + string.len())].fill(0);
                rewritten[start..start + string.len()].copy_from_slice(&string);
                is_changed = true;
            }
            start = end + 1;
        }
        Ok(is_changed.then_some(rewritten))
    }
}

/// Returns true if a file begins as a script does.
fn is_script(file: &OwnedFd) -> bool {
    let mut head = [0; 2];
    rustix::io::pread(file, &mut head, 0).is_ok_and(|len| len == 2 && &head == b"#!")
}
