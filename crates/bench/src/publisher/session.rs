//! A transaction of the reference: its client, and an overlay above it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use esker_testkit::waiting;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::getxattr;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::place::{NAME, Place};
use super::reference::{Reference, reflog_checksum, storage, temporary};
use crate::measure::Cost;

/// Longest wait for the end of a client, or for a mount that is busy.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Options of the overlay, as `cvmfs_server` sets them.
const OVERLAY: &str = "xino=off,redirect_dir=off,metacopy=off,index=off";

/// An open transaction of the reference.
pub(super) struct Session<'r> {
    reference: &'r Reference,
    place: &'r Place,
    url: &'r str,
    /// Root catalog of the revision below the overlay.
    base: String,
    folder: PathBuf,
    began: Instant,
    cost: Cost,
    mounted: Vec<PathBuf>,
}

/// Costs of a transaction.
pub(super) struct Costs {
    /// From the changes to the new head.
    pub(super) publish: Cost,
    /// From mounting to unmounting.
    pub(super) whole: Cost,
}

impl<'r> Session<'r> {
    /// Mounts the published revision and an overlay above it.
    pub(super) fn begin(reference: &'r Reference, place: &'r Place, url: &'r str) -> Result<Self> {
        let folder = place.scratch.join("session");
        for name in ["below", "cache"] {
            let path = folder.join(name);
            fs::create_dir_all(&path).with_context(|| format!("can't make {}", path.display()))?;
        }
        // What an earlier transaction left is not part of the time.
        for name in ["above", "work", "all"] {
            let path = folder.join(name);
            if path.exists() {
                fs::remove_dir_all(&path).with_context(|| format!("can't remove {}", path.display()))?;
            }
            fs::create_dir(&path).with_context(|| format!("can't make {}", path.display()))?;
        }
        let base = place.field('C')?.context("the head names no root catalog")?;
        let config = folder.join("config");
        let began = Instant::now();
        let cache = folder.join("cache");
        let key = place.public_key();
        let text = format!(
            "CVMFS_SERVER_URL={url}\nCVMFS_HTTP_PROXY=DIRECT\nCVMFS_PUBLIC_KEY={}\nCVMFS_CACHE_BASE={1}\n\
             CVMFS_RELOAD_SOCKETS={1}\nCVMFS_SHARED_CACHE=no\nCVMFS_CHECK_PERMISSIONS=yes\nCVMFS_CLAIM_OWNERSHIP=no\n\
             CVMFS_USE_GEOAPI=no\nCVMFS_MAGIC_XATTRS_VISIBILITY=never\nCVMFS_ROOT_HASH={base}\n",
            key.display(),
            cache.display(),
        );
        fs::write(&config, text).with_context(|| format!("can't write {}", config.display()))?;
        let cost = Cost { real: 0.0, user: 0.0, sys: 0.0, peak: 0 };
        let mut session = Self { reference, place, url, base, folder, began, cost, mounted: Vec::new() };
        let below = session.folder.join("below");
        let mut client = place.logged(reference.program("cvmfs2"))?;
        client.arg("-o").arg(format!("config={},allow_other", config.display())).arg(NAME).arg(&below);
        session.run(client).context("the reference's client didn't mount")?;
        session.mounted.push(below);
        let union = session.union();
        let path = |name: &str| session.folder.join(name).display().to_string();
        let options = format!(
            "lowerdir={},upperdir={},workdir={},{OVERLAY}",
            path("below"),
            path("above"),
            path("work")
        );
        let options = std::ffi::CString::new(options)?;
        mount("overlay", &union, "overlay", MountFlags::empty(), options.as_c_str())
            .with_context(|| format!("can't mount an overlay at {}", union.display()))?;
        session.mounted.push(union);
        Ok(session)
    }

    /// Returns the writable tree.
    pub(super) fn union(&self) -> PathBuf {
        self.folder.join("all")
    }

    /// Runs a script of `sh` in a directory of the tree.
    pub(super) fn change(&mut self, directory: &str, script: &str) -> Result<()> {
        let mut command = self.place.logged(Command::new("sh"))?;
        command.args(["-ec", script]).current_dir(self.union().join(directory));
        self.run(command).map(|_| ())
    }

    /// Publishes the changes with a tag and a signature, as `cvmfs_server publish` does, and unmounts.
    pub(super) fn publish(mut self) -> Result<Costs> {
        let (place, url) = (self.place, self.url);
        let (storage, manifest) = (storage(place), self.folder.join("manifest"));
        let (temporary, reflog) = (temporary(place)?, reflog_checksum(place)?);
        let start = self.cost;
        let began = Instant::now();
        let mut sync =
            self.knife(&["sync", "-f", "overlayfs", "-e", "sha1", "-p", "-k", "-j", "-N", NAME])?;
        sync.arg("-u").arg(self.union()).arg("-s").arg(self.folder.join("above"));
        sync.arg("-c").arg(self.folder.join("below")).arg("-t").arg(&temporary).arg("-b").arg(&self.base);
        sync.arg("-r")
            .arg(&storage)
            .arg("-w")
            .arg(url)
            .arg("-o")
            .arg(&manifest)
            .arg("-K")
            .arg(place.public_key());
        self.run(sync)?;
        let mut tag = self.knife(&["tag_edit", "-x", "-e", "sha1", "-f", NAME, "-r", &storage, "-w", url])?;
        tag.arg("-t").arg(&temporary).arg("-m").arg(&manifest).arg("-p").arg(place.public_key());
        tag.arg("-b").arg(&self.base).arg("-a").arg(self.tag()?);
        self.run(tag)?;
        let mut sign = self.knife(&["sign", "-g", "-n", NAME, "-u", url, "-r", &storage])?;
        sign.arg("-c").arg(place.key("crt")).arg("-k").arg(place.key("key"));
        sign.arg("-m").arg(&manifest).arg("-t").arg(&temporary).arg("-R").arg(&reflog);
        self.run(sign)?;
        let mut publish = since(self.cost, start);
        publish.real = began.elapsed().as_secs_f64();
        let head = place.field('C')?;
        ensure!(head.as_deref() != Some(&*self.base), "the reference published no new revision");
        self.unmount()?;
        let whole = Cost { real: self.began.elapsed().as_secs_f64(), ..self.cost };
        Ok(Costs { publish, whole })
    }

    /// Returns a tag for the next revision, as `cvmfs_server` makes one for each.
    fn tag(&self) -> Result<String> {
        Ok(format!("generic-after-{}", self.place.field('S')?.context("the head has no revision")?))
    }

    fn knife(&self, words: &[&str]) -> Result<Command> {
        self.reference.knife(self.place, words)
    }

    fn run(&mut self, command: Command) -> Result<()> {
        let cost = self.place.run(command)?;
        self.cost.user += cost.user;
        self.cost.sys += cost.sys;
        self.cost.peak = self.cost.peak.max(cost.peak);
        Ok(())
    }

    /// Unmounts, and waits until the client has ended: the next one uses its cache.
    fn unmount(&mut self) -> Result<()> {
        let client = self.client();
        while let Some(mounted) = self.mounted.last() {
            let is_gone = waiting::until(TIMEOUT, || unmount(mounted, UnmountFlags::empty()).is_ok());
            ensure!(is_gone, "can't unmount {}", mounted.display());
            self.mounted.pop();
        }
        let Some(client) = client else { return Ok(()) };
        // A client that is gone already has no descriptor.
        let Ok(ended) = pidfd_open(client, PidfdFlags::empty()) else { return Ok(()) };
        let limit = Timespec { tv_sec: TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&limit))?;
        ensure!(ready == 1, "the reference's client doesn't end");
        Ok(())
    }

    /// Returns the process of the client, as the mount reports it.
    fn client(&self) -> Option<Pid> {
        let mut value = [0u8; 32];
        let len = getxattr(self.folder.join("below"), "user.pid", &mut value).ok()?;
        Pid::from_raw(std::str::from_utf8(&value[..len]).ok()?.trim_end_matches('\0').trim().parse().ok()?)
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        for mounted in self.mounted.drain(..).rev() {
            // A failed measurement reports its own error.
            let _ = unmount(&mounted, UnmountFlags::DETACH);
        }
    }
}

/// Returns the processor time since an earlier state.
fn since(now: Cost, start: Cost) -> Cost {
    Cost { real: 0.0, user: now.user - start.user, sys: now.sys - start.sys, peak: now.peak }
}
