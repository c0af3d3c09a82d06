//! Makes profiles from a trace, as `esker profile record` does, for `esker profile add`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use esker_format::name::RepositoryName;
use esker_format::profile::{Profile, ProfileFile};

use super::report::Report;
use crate::error::{Context, Failure, Kind, warn};
use crate::mounting::first_reads::Recorded;
use crate::publisher::{now, write_profile};

/// Writes the profile of the repository from which the command read most.
pub(super) fn write(output: &Path, report: &Report) -> Result<(), Failure> {
    let collected = &report.collected;
    let profiles =
        collected.mounts.iter().enumerate().filter(|(_, mount)| !mount.start.image).map(|(number, mount)| {
            let about = |path: &String| {
                let found = std::fs::symlink_metadata(collected.full_path(number, path)).ok()?;
                let (size, program) = (found.len(), found.permissions().mode() & 0o111 != 0);
                found.is_file().then(|| ProfileFile { path: path.clone(), size, program })
            };
            (mount, mount.first_reads.recorded(None, about))
        });
    let most = profiles.max_by_key(|(_, recorded)| recorded.files.len());
    let Some((mount, Recorded { files, reads, .. })) = most.filter(|(_, most)| !most.files.is_empty()) else {
        return Err(Failure::failed(
            "there is nothing for a profile: the command read no file of a repository",
        )
        .hint("read them from the kernel's cache no more: mount anew, or use `esker profile record`"));
    };
    let repository = RepositoryName::parse(&mount.start.repository)
        .context(Kind::Failed, "the name of the repository is not valid")?;
    let profile = Profile {
        repository,
        revision: mount.start.revision,
        command: report.watched.name.clone(),
        recorded: now(),
        triggers: Vec::new(),
        files,
        reads,
    };
    write_profile(output, &profile)?;
    if collected.mounts.iter().any(|mount| mount.dropped > 0) {
        warn(Some(&format!("{} lacks the reads that came too fast", output.display())));
    }
    Ok(())
}
