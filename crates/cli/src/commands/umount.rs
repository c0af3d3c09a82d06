use std::path::{Path, PathBuf};
use std::time::Duration;

use esker_kernel_mount::Unmount;
use esker_node::control::{self, Request, Response};
use esker_node::mounts;
use esker_node::registry::{self, Departure, Registered};

use crate::error::{Context, Failure, Kind, warn};
use crate::mounting::held;
use crate::settings::Settings;

/// Unmounts a repository, and returns once its daemon has ended.
///
/// Example: esker umount /mnt/sw
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Mount point
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,

    /// Detach the mount at once even if programs use it; it ends once the last program has closed it
    #[arg(long)]
    lazy: bool,
}

/// Time limit for a daemon to unmount: it may wait for the disk of its cache.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn run(args: Args, settings: &Settings) -> Result<(), Failure> {
    let named = &args.mountpoint;
    let mountpoint =
        mounts::canonical(named).context(Kind::Failed, format!("can't unmount {}", named.display()))?;
    let found =
        registry::find(&settings.runtime, &mountpoint).context(Kind::Failed, "can't look up mounts")?;
    match found {
        Some(registered) if registered.alive => ask(&registered, args.lazy),
        left => {
            unmount_orphan(&mountpoint, args.lazy, left.is_some())?;
            if let Some(left) = left {
                left.forget();
            }
            Ok(())
        }
    }
}

fn ask(registered: &Registered, lazy: bool) -> Result<(), Failure> {
    let place = registered.entry.mountpoint.display();
    let pid = registered.entry.pid;
    let stuck = |why: String| {
        Failure::failed(format!("can't unmount {place}: {why}")).hint(format!(
            "if it stays like this, end the daemon with `kill -9 {pid}` and repeat `esker umount {place}`"
        ))
    };
    match control::ask(&registered.socket, &Request::Unmount { lazy }, TIMEOUT) {
        Ok(Response::Done) => {}
        Ok(Response::Busy { message }) => {
            return Err(of_inner(&registered.entry.mountpoint).unwrap_or_else(|| {
                Failure::failed(message).hint(format!(
                    "close the programs that use it (`fuser -vm {place}` lists them), or unmount with --lazy"
                ))
            }));
        }
        Ok(Response::Failed { message }) => return Err(Failure::failed(message)),
        Ok(_) => return Err(stuck(format!("the daemon (process {pid}) misunderstood"))),
        // It may have ended just before it was asked.
        Err(_) if registered.wait_until_gone(Duration::ZERO) => {}
        Err(error) => return Err(stuck(crate::error::chain(&error))),
    }
    if lazy {
        return Ok(());
    }
    match registered.wait_until_free(TIMEOUT) {
        Departure::Gone => Ok(()),
        Departure::Elsewhere(holders) => {
            for holder in &holders {
                let (text, advice) = (held::text(holder), held::advice(holder));
                warn(Some(&format!("{place} is unmounted here, but {text}; {advice}")));
            }
            Ok(())
        }
        Departure::Here => Err(stuck(format!(
            "it is unmounted, but the daemon (process {pid}) is still there after {} s",
            TIMEOUT.as_secs()
        ))),
    }
}

/// Reports that a mount is busy because another mount is inside it.
fn of_inner(mountpoint: &Path) -> Option<Failure> {
    // The last one may have been mounted in others.
    let lines = mounts::all().ok()?.into_iter().rev();
    let mut inner =
        lines.filter(|line| line.mountpoint != mountpoint && line.mountpoint.starts_with(mountpoint));
    let inner = inner.next()?.mountpoint;
    let (place, inner) = (mountpoint.display(), inner.display());
    let failure = Failure::failed(format!("can't unmount {place}: {inner} is mounted in it"));
    Some(failure.hint(format!("unmount {inner} first, or all of it with --lazy")))
}

/// Unmounts a mount whose daemon is gone.
fn unmount_orphan(mountpoint: &Path, lazy: bool, registered: bool) -> Result<(), Failure> {
    let place = mountpoint.display();
    let mounted = mounts::at(mountpoint).context(Kind::Failed, "can't read the list of mounts")?;
    match mounted {
        Some(line) if line.is_ours() => {
            // The mount is unusable, but programs may still have it open.
            let how = if lazy || registered { Unmount::Lazy } else { Unmount::IfUnused };
            esker_kernel_mount::unmount(mountpoint, how).map_err(|error| {
                of_inner(mountpoint).unwrap_or_else(|| Failure::failed(crate::error::chain(&error)))
            })
        }
        _ if registered => Ok(()),
        Some(line) => {
            Err(Failure::usage(format!("{place} is not a mount of esker but of type {}", line.kind))
                .hint("`esker status` lists the mounts of esker"))
        }
        None => {
            Err(Failure::failed(format!("{place} is not mounted"))
                .hint("`esker status` lists what is mounted"))
        }
    }
}
