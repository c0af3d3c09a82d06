//! Leaves a mount to a successor, and goes on with the mount of a predecessor.

use std::io;
use std::path::Path;
use std::sync::Arc;

use esker_erofs::XattrPolicy;
use esker_fuse::{MEMORY_VERSION, Session, SessionOptions};
use esker_vfs::Tree;

use crate::control::Listening;
use crate::helper_process::Helper;
use crate::layered_mount;
use crate::mount_error::MountedError;
use crate::registry::Registration;
use crate::status::Presentation;
use crate::supervisor::{Inherited, REGISTRATION, Supervision, UPGRADES};

const CONTROL: &str = "control";

/// Facts of a mount that a successor needs.
pub(crate) struct Facts<'a> {
    pub(crate) mountpoint: &'a Path,
    pub(crate) presentation: Presentation,
    pub(crate) mounted: u64,
    pub(crate) fingerprint: Option<String>,
}

/// Gives the supervisor all that a successor needs, and tells it that the mount is served.
pub(crate) fn hand_over(
    (supervision, helper): (&Supervision, &Helper),
    session: &Session,
    (registration, listening): (&Registration, &Listening),
    facts: Facts<'_>,
) -> io::Result<()> {
    if supervision.inherited().is_none() {
        supervision.keep(UPGRADES, helper.listen_for_upgrades()?)?;
        supervision.keep(REGISTRATION, registration.descriptor())?;
        supervision.keep(CONTROL, listening.descriptor())?;
        supervision.keep_session(session)?;
        supervision.describe(&Inherited {
            layout: MEMORY_VERSION,
            mountpoint: facts.mountpoint.to_owned(),
            presentation: facts.presentation,
            mounted: facts.mounted,
            fingerprint: facts.fingerprint,
        })?;
    }
    supervision.serving();
    Ok(())
}

/// Takes the registration and the control socket of the predecessor.
pub(crate) fn registration(
    supervision: &Supervision,
    runtime: &Path,
    mountpoint: &Path,
) -> Result<(Registration, Listening), MountedError> {
    let take = |name| supervision.take(name).ok_or_else(|| missing(name));
    let registration = Registration::resume(runtime, mountpoint, take(REGISTRATION)?)?;
    Ok((registration, Listening::resume(take(CONTROL)?)))
}

/// Serves the mount of the predecessor.
pub(crate) fn resume(
    supervision: &Supervision,
    facts: &Inherited,
    (tree, (source, told)): (Arc<dyn Tree>, (&str, XattrPolicy)),
    options: SessionOptions,
    helper: Option<Arc<Helper>>,
) -> Result<(Session, Presentation), MountedError> {
    let served: Arc<dyn Tree> = match facts.presentation {
        Presentation::Erofs => {
            let image = layered_mount::erofs_tree(Arc::clone(&tree), source, told, Some(supervision));
            Arc::new(image.map_err(|error| MountedError::Takeover(io::Error::other(error)))?)
        }
        _ => Arc::clone(&tree),
    };
    let descriptors = supervision.take_session().map_err(MountedError::Takeover)?;
    let session = Session::resume(descriptors, served, options)?;
    if facts.presentation == Presentation::Overlay {
        session.put_below_overlay();
        helper.into_iter().for_each(|helper| layered_mount::drop_unused_names(&*tree, helper));
    }
    Ok((session, facts.presentation))
}

fn missing(name: &str) -> MountedError {
    MountedError::Takeover(io::Error::new(
        io::ErrorKind::NotFound,
        format!("the supervisor has no descriptor {name}"),
    ))
}
