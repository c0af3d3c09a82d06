//! Finds the markers of grafts in directories of a source.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use esker_format::write::catalog::Entry;
use esker_repository::{Settings, path};

use crate::error::PublishError;
use crate::source::{Facts, Source, SourceEntry};

use super::{Graft, MARKER_MAX, PREFIX};

/// Returns the name of the file that a marker of this name grafts.
pub(crate) fn grafted_by(name: &[u8]) -> Option<&[u8]> {
    name.strip_prefix(PREFIX).filter(|name| !name.is_empty())
}

/// Grafts of one directory by device and inode of the file, so that all its hard links are found.
#[derive(Debug, Default)]
pub(crate) struct Grafts(HashMap<(u64, u64), Graft>);

impl Grafts {
    /// Reads the markers of a directory, and takes them out of its entries.
    pub(crate) fn take(
        source: &Source,
        folder: &OwnedFd,
        relative: &[u8],
        entries: &mut Vec<SourceEntry>,
    ) -> Result<Self, PublishError> {
        let is_marker = |entry: &SourceEntry| grafted_by(&entry.name).is_some();
        // Almost no directory has one.
        if !entries.iter().any(is_marker) {
            return Ok(Self::default());
        }
        let (markers, files): (Vec<_>, Vec<_>) = std::mem::take(entries).into_iter().partition(is_marker);
        *entries = files;
        let mut grafts = HashMap::new();
        for marker in markers {
            let at = path::join(relative, &marker.name);
            let refused =
                |reason: &str| PublishError::Graft { path: source.shown(&at), reason: reason.to_owned() };
            if !marker.facts.is_file() || marker.facts.size > MARKER_MAX {
                return Err(refused("it is not a regular file of at most 64 MiB"));
            }
            let name = grafted_by(&marker.name).unwrap_or_default();
            let file = entries.iter().find(|entry| entry.name == name && entry.facts.is_file());
            let file = file.ok_or_else(|| refused("there is no regular file beside it that it grafts"))?;
            let opened = source.open_file(folder, relative, &marker.name)?;
            let text = source.read_whole(&opened, &at, MARKER_MAX)?;
            let graft = Graft::parse(&text).map_err(|reason| refused(&reason))?;
            grafts.insert((file.facts.device, file.facts.inode), graft);
        }
        Ok(Self(grafts))
    }

    /// Returns the graft of a file.
    pub(crate) fn of(&self, facts: &Facts) -> Option<&Graft> {
        self.0.get(&(facts.device, facts.inode)).filter(|_| facts.is_file())
    }

    /// Sets size and content of an entry whose file is grafted. Returns true if it is.
    pub(crate) fn set_in(&self, entry: &mut Entry, facts: &Facts, settings: &Settings) -> bool {
        let graft = self.of(facts);
        graft.into_iter().for_each(|graft| graft.set_in(entry, settings));
        graft.is_some()
    }
}
