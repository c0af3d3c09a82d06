//! Chooses mounts whose daemons are to be replaced, and names the outcomes.

use std::path::{Path, PathBuf};
use std::time::Instant;

use esker_node::mounts;
use esker_node::supervised::{Target, targets};
use esker_node::supervisor::{Replacement, UpgradeError};

use crate::error::{Context, Failure, Kind, chain};
use crate::settings::Settings;

/// Result for a mount. The names are an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// `--dry-run` was given.
    Planned,
    Upgraded,
    Reloaded,
    /// The settings are the ones that the mount has.
    Unchanged,
    /// The new daemon didn't serve the mount, and the one before does.
    RolledBack,
    /// The mount has no supervisor.
    Skipped,
    Failed,
}

impl Outcome {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Upgraded => "upgraded",
            Self::Reloaded => "reloaded",
            Self::Unchanged => "unchanged",
            Self::RolledBack => "rolled back",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
        }
    }
}

/// Result of a replacement: the new process id, or the reason of a failure.
pub(crate) type Replaced = Result<u32, (Outcome, String)>;

/// Returns the reason why the daemon of a mount can't be replaced, if it has no supervisor.
pub(crate) fn refusal(target: &Target) -> Option<String> {
    let why = "it was mounted without a supervisor; unmount it and mount it again";
    (!target.is_supervised()).then(|| why.to_owned())
}

/// Has the supervisor of a mount replace the daemon.
pub(crate) fn replace(target: &Target, replacement: &Replacement, deadline: Instant) -> Replaced {
    target.replace(replacement, deadline).map_err(|error| match error {
        UpgradeError::RolledBack(why) => (Outcome::RolledBack, why),
        error => (Outcome::Failed, chain(&error)),
    })
}

/// Returns the mounts that the arguments name, or all.
pub(crate) fn chosen(
    named: &[PathBuf],
    all_users: bool,
    settings: &Settings,
) -> Result<Vec<Target>, Failure> {
    if all_users && !settings.root {
        return Err(Failure::usage("--all-users is for root").hint("leave it out to act on your own mounts"));
    }
    let mut all = targets(all_users, &settings.runtime).context(Kind::Failed, "can't look up the mounts")?;
    if named.is_empty() {
        return Ok(all);
    }
    let mut is_named = vec![false; all.len()];
    for name in named {
        let path = mounts::canonical(name).unwrap_or_else(|_| name.clone());
        let mut found = false;
        for (one, is_named) in all.iter().zip(&mut is_named) {
            if one.entry.mountpoint == path || Path::new(&one.entry.repository) == name {
                (found, *is_named) = (true, true);
            }
        }
        if !found {
            let failure = Failure::failed(format!("{} is no mount of yours", name.display()));
            return Err(failure.hint("`esker status` lists all that are"));
        }
    }
    let mut is_named = is_named.into_iter();
    all.retain(|_| is_named.next().unwrap_or(false));
    Ok(all)
}
