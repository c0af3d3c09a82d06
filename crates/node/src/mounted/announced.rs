//! Registers a mount, before and after it is made.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use esker_cache_share::FileError;

use super::{Content, MountPlan, MountedError};
use crate::control::{self, Listening};
use crate::mounts;
use crate::registry::{Entry, Registration};
use crate::status::seconds;
use crate::takeover;

/// A registry entry and a control socket that is not answered yet.
pub(super) struct PendingMount {
    pub(super) registration: Registration,
    pub(super) listening: Listening,
}

impl PendingMount {
    pub(super) fn new(plan: &MountPlan, content: &Content) -> Result<Self, MountedError> {
        // A command's mount is at no path of the host, and several commands may have the same.
        let key = match &plan.command {
            Some(_) => {
                let run = format!("run of process {}", std::process::id());
                // A command may have several mounts.
                PathBuf::from(run).join(plan.mountpoint.strip_prefix("/").unwrap_or(&plan.mountpoint))
            }
            None => plan.mountpoint.clone(),
        };
        let (mut registration, listening) = match &plan.supervision {
            Some(supervision) if plan.inherits() => takeover::registration(supervision, &plan.runtime, &key)?,
            _ => {
                let registration = Registration::take(&plan.runtime, &key)?;
                let listening = match &plan.helper {
                    Some(helper) => Listening::resume(
                        helper
                            .listen_for_control()
                            .map_err(FileError::on("listen at", registration.socket()))?,
                    ),
                    None => control::listen(&registration.socket())?,
                };
                (registration, listening)
            }
        };
        plan.helper.iter().for_each(|helper| registration.leave_through(Arc::clone(helper)));
        let (repository, url, cache) = content.names();
        // That of the daemon before, whose mount this one serves.
        let before = registration.described().filter(|_| plan.inherits());
        registration.describe(&Entry {
            device: before.as_ref().and_then(|before| before.device),
            departed: before.is_some_and(|before| before.departed),
            mountpoint: plan.mountpoint.clone(),
            command: plan.command.clone(),
            repository,
            url,
            cache,
            pid: std::process::id(),
            started: seconds(SystemTime::now()),
            supervisor: plan
                .supervision
                .as_ref()
                .and(rustix::process::getppid())
                .map(|pid| pid.as_raw_nonzero().get().unsigned_abs()),
        })?;
        Ok(Self { registration, listening })
    }
}

/// Records the device number of a new mount, by which its copies in other namespaces are found.
pub(super) fn with_device(mut registration: Registration, mountpoint: &Path) -> Registration {
    let is_unknown = |entry: &Entry| entry.device.is_none() && !entry.departed && entry.command.is_none();
    let Some(entry) = registration.described().filter(is_unknown) else { return registration };
    if let Ok(Some(line)) = mounts::at(mountpoint)
        && line.is_ours()
    {
        // Without it, place and source tell.
        let _ = registration.describe(&Entry { device: Some(line.device), ..entry });
    }
    registration
}
