//! Reads and writes recorded profiles.

use std::path::Path;

use esker_format::profile::{self, Profile};
use esker_publish::NamedProfile;
use esker_store::{RealDisk, persist, read_file};

use super::of_operation;
use crate::error::{Context as _, Failure, Kind};

/// Reads a recorded profile.
pub(crate) fn read_profile(path: &Path) -> Result<NamedProfile, Failure> {
    let what = || format!("can't read the profile {}", path.display());
    let text = read_file(&RealDisk::PRIVATE, path, profile::BYTES_MAX as u64)
        .map_err(|error| Failure::new(Kind::Usage, format!("{}: {error}", what())))?
        .ok_or_else(|| {
            Failure::usage(format!("{}: there is no such file", what()))
                .hint("record one with `esker profile record URL -- COMMAND`")
        })?;
    NamedProfile::from_file(path, &text).map_err(|error| of_operation("can't read a profile", &error))
}

/// Writes a recorded profile.
pub(crate) fn write_profile(path: &Path, profile: &Profile) -> Result<(), Failure> {
    let what = format!("can't write the profile {}", path.display());
    persist(&RealDisk::SERVED, path, &profile.to_json()).context(Kind::Failed, what)
}
