//! Mounts a tree at a private place and then presents it at the mountpoint through EROFS or overlayfs, where allowed.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use esker_erofs::{ErofsTree, XattrPolicy};
use esker_fuse::{Session, SessionOptions};
use esker_journal::Journal;
use esker_kernel_mount::{MountError, MountOptions};
use esker_kernel_mount::{Trusted, image_path, may_mount_images};
use esker_vfs::{Change, ErrorKind, Tree, TreeError, Watcher};

use crate::helper_process::Helper;
use crate::mount_error::MountedError;
use crate::status::Presentation;
use crate::supervisor::Supervision;

/// A tree to present through an overlay or EROFS.
pub(crate) struct LayeredMount<'a> {
    /// Process that mounts.
    pub(crate) helper: Arc<Helper>,
    pub(crate) tree: Arc<dyn Tree>,
    pub(crate) options: &'a MountOptions,
    pub(crate) session: SessionOptions,
    /// Attributes in `trusted.` that root sees.
    pub(crate) trusted: Trusted,
    /// Extended attributes for an EROFS image of it.
    pub(crate) told: XattrPolicy,
    /// Supervisor that keeps what a successor needs.
    pub(crate) supervision: Option<&'a Supervision>,
}

impl LayeredMount<'_> {
    /// Mounts, serves and presents it through `wanted`, or the next best file system that the kernel accepts; the log
    /// has the reason.
    pub(crate) fn show(self, wanted: Presentation) -> Result<(Session, Presentation), MountedError> {
        // The kernel doesn't enforce access control lists of an image.
        let may_be = may_mount_images(self.session.kernel.minor()) && !self.session.enforce_acls;
        if wanted == Presentation::Erofs && may_be {
            match self.with_erofs()? {
                Ok(session) => return Ok((session, Presentation::Erofs)),
                Err(refused) => tracing::warn!("mounted without EROFS: {refused}"),
            }
        }
        self.with_overlay()
    }

    /// Returns the session, or the reason of the kernel's refusal.
    fn with_erofs(&self) -> Result<Result<Session, String>, MountedError> {
        let source = &self.options.source;
        let tree = match erofs_tree(self.tree.clone(), source, self.told, self.supervision) {
            Ok(tree) => tree,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let (behind, device) = self.behind()?;
        let session = Session::start(device, Arc::new(tree), self.session.clone())?;
        match self.helper.show_image() {
            Ok(()) => Ok(Ok(session)),
            Err(refused) => {
                drop(behind);
                session.wait();
                Ok(Err(refused.to_string()))
            }
        }
    }

    fn with_overlay(self) -> Result<(Session, Presentation), MountedError> {
        let (_behind, device) = self.behind()?;
        let session = Session::start(device, self.tree.clone(), self.session)?;
        // The overlay's mount would lose the flag when it is remounted to drop names.
        if self.options.noexec {
            self.helper.show_tree()?;
            return Ok((session, Presentation::Fuse));
        }
        if let Err(refused) = self.helper.show_overlay(self.trusted == Trusted::Shown) {
            tracing::warn!("mounted without an overlay: {refused}");
            self.helper.show_tree()?;
            return Ok((session, Presentation::Fuse));
        }
        session.put_below_overlay();
        drop_unused_names(&*self.tree, self.helper);
        Ok((session, Presentation::Overlay))
    }

    /// Mounts the tree at its private place; returns the device to serve.
    fn behind(&self) -> Result<(PrivateMount, OwnedFd), MountError> {
        let device = self.helper.mount_behind()?;
        Ok((PrivateMount(Arc::clone(&self.helper)), device))
    }
}

/// Name of the record of an EROFS image's positions among the descriptors that the supervisor keeps.
const POSITIONS: &str = "positions";

/// Makes the EROFS image of a tree, for a supervised mount with the positions that an earlier daemon recorded.
pub(crate) fn erofs_tree(
    tree: Arc<dyn Tree>,
    source: &str,
    told: XattrPolicy,
    supervision: Option<&Supervision>,
) -> Result<ErofsTree, TreeError> {
    let path = image_path(source);
    let Some(supervision) = supervision else { return ErofsTree::new(tree, path.as_bytes(), told) };
    let journal = || match supervision.take(POSITIONS) {
        Some(file) => Journal::attach(file),
        None => {
            let journal = Journal::new()?;
            supervision.keep(POSITIONS, journal.descriptor()?)?;
            Ok(journal)
        }
    };
    let journal = journal().map_err(|error| TreeError::on(ErrorKind::Local, "a record").because(error))?;
    ErofsTree::recorded(tree, path.as_bytes(), told, Arc::new(journal))
}

/// A mount at a private place, which is unmounted on drop.
struct PrivateMount(Arc<Helper>);

impl Drop for PrivateMount {
    fn drop(&mut self) {
        self.0.clear_behind();
    }
}

/// Makes the overlay at the mount point drop unused names after each change of the tree.
pub(crate) fn drop_unused_names(tree: &dyn Tree, helper: Arc<Helper>) {
    tree.watch(Arc::new(Overlay(helper)));
}

/// Makes an overlay drop unused dentries, so that the tree's own counts are right: otherwise every file ever looked up
/// would count as held, and the cache could evict nothing.
struct Overlay(Arc<Helper>);

impl Watcher for Overlay {
    fn changed(&self, _: &[Change]) {
        self.0.drop_names();
    }
}
