//! Mounts a tree at a private place and then presents it at the mountpoint through EROFS or overlayfs, where allowed.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_cache_share::FileError;
use esker_erofs::{ErofsTree, XattrPolicy};
use esker_fuse::mount::{FLAGS, Trusted, image_path, may_mount_images, mount_image, mount_overlay};
use esker_fuse::{Mount, MountOptions, Session, SessionOptions};
use esker_journal::Journal;
use esker_threads::unconfined;
use esker_vfs::{Change, ErrorKind, Tree, TreeError, Watcher};
use rustix::mount::{UnmountFlags, mount_bind, mount_remount, unmount};

use crate::mount_error::MountedError;
use crate::mounts;
use crate::status::Presentation;
use crate::supervisor::Supervision;

/// A tree to present through an overlay or EROFS.
pub(crate) struct LayeredMount<'a> {
    /// Private mount point, a directory that is made for it.
    pub(crate) place: PathBuf,
    pub(crate) tree: Arc<dyn Tree>,
    pub(crate) mountpoint: &'a Path,
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
        let may_be = may_mount_images(self.session.kernel) && !self.session.enforce_acls;
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
        let (behind, device) = PrivateMount::mount(self.place.clone(), self.options)?;
        let session = Session::start(device, Arc::new(tree), self.session.clone())?;
        match mount_image(&behind.place, source, self.mountpoint, self.options.noexec) {
            Ok(()) => Ok(Ok(session)),
            Err(refused) => {
                drop(behind);
                session.wait();
                Ok(Err(refused.to_string()))
            }
        }
    }

    fn with_overlay(self) -> Result<(Session, Presentation), MountedError> {
        let (behind, device) = PrivateMount::mount(self.place, self.options)?;
        let session = Session::start(device, self.tree.clone(), self.session)?;
        // The overlay's mount would lose the flag when it is remounted to drop names.
        if self.options.noexec {
            behind.show_as_it_is(self.mountpoint)?;
            return Ok((session, Presentation::Fuse));
        }
        if let Err(refused) =
            mount_overlay(&behind.place, self.mountpoint, &self.options.source, self.trusted)
        {
            tracing::warn!("mounted without an overlay: {refused}");
            behind.show_as_it_is(self.mountpoint)?;
            return Ok((session, Presentation::Fuse));
        }
        session.put_below_overlay();
        drop_unused_names(&*self.tree, self.mountpoint);
        Ok((session, Presentation::Overlay))
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

/// A mount at a private path, which is unmounted on drop.
struct PrivateMount {
    place: PathBuf,
}

impl PrivateMount {
    /// Mounts at `place`, a directory that is made for it.
    fn mount(place: PathBuf, options: &MountOptions) -> Result<(Self, OwnedFd), MountedError> {
        let behind = Self { place };
        // A daemon killed at the wrong moment may have left one.
        behind.clear();
        fs::create_dir(&behind.place).map_err(FileError::on("create", &behind.place))?;
        let device = Mount::direct(&behind.place, options)?.into_device();
        Ok((behind, device))
    }

    fn show_as_it_is(&self, mountpoint: &Path) -> Result<(), MountedError> {
        let (place, target) = (self.place.clone(), mountpoint.to_owned());
        let shown = unconfined::run("mounting", move || mount_bind(&place, &target).map_err(io::Error::from));
        Ok(shown.flatten().map_err(FileError::on("mount on", mountpoint))?)
    }

    fn clear(&self) {
        // The mount and what the overlay left above it; an error says that nothing is mounted there any more.
        let place = self.place.clone();
        let detach = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        let _ = unconfined::run("mounting", move || while unmount(&place, detach).is_ok() {});
        // It may not exist.
        let _ = fs::remove_dir(&self.place);
    }
}

/// Makes the overlay at `mountpoint` drop unused names after each change of the tree.
pub(crate) fn drop_unused_names(tree: &dyn Tree, mountpoint: &Path) {
    tree.watch(Arc::new(Overlay { mountpoint: mountpoint.to_owned() }));
}

/// Makes an overlay drop unused dentries, so that the tree's own counts are right: otherwise every file ever looked up
/// would count as held, and the cache could evict nothing.
struct Overlay {
    mountpoint: PathBuf,
}

impl Watcher for Overlay {
    fn changed(&self, _: &[Change]) {
        // It may be gone, with another mount in its place.
        if mounts::at(&self.mountpoint).is_ok_and(|line| line.is_some_and(|line| line.is_own_overlay())) {
            // To remount a file system drops its unused names; if that is refused, less can be evicted.
            let mountpoint = self.mountpoint.clone();
            let _ = unconfined::run("mounting", move || mount_remount(&mountpoint, FLAGS, c""));
        }
    }
}

impl Drop for PrivateMount {
    fn drop(&mut self) {
        self.clear();
    }
}
