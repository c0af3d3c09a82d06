//! Provides `/dev` for a container from devices of the host.

use std::fs;
use std::io::{self, IsTerminal};
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::mount::{MountFlags, mount, mount_bind_recursive};

use super::Stage;
use super::build::mount_tmpfs;

/// Devices of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Devices {
    /// The usual devices, the terminals and the shared memory of the host.
    OfHost,
    /// The usual devices, and own terminals; own shared memory unless the host's is shared.
    Own {
        /// True if shared memory and message queues are the host's.
        shares_memory: bool,
    },
}

/// Devices that every program may use.
const USUAL: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// A device that mounts images in the container.
const FUSE: &str = "fuse";
/// Shared memory, and message queues.
const MEMORY: [&str; 2] = ["shm", "mqueue"];

/// Links in `/dev` to files of `/proc`, as Linux has them.
const LINKS: [(&str, &str); 4] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// Fills `target` with devices.
pub(super) fn provide(stage: &Stage, target: &Path, devices: Devices) -> io::Result<()> {
    let owner = stage.owner.of_tmpfs();
    mount_tmpfs(target, &format!("mode=0755,size=4m{owner}"))?;
    let of_host = |name: &str| bind(&stage.host(&Path::new("/dev").join(name)), &target.join(name));
    USUAL.into_iter().try_for_each(of_host)?;
    match devices {
        Devices::OfHost => {
            of_host(FUSE)?;
            MEMORY.into_iter().try_for_each(of_host)?;
            provide_terminals(stage, target)?;
        }
        Devices::Own { shares_memory } => {
            own_terminals(target)?;
            console(stage, target)?;
            if shares_memory {
                MEMORY.into_iter().try_for_each(of_host)?;
            } else {
                let queues = target.join("mqueue");
                fs::create_dir(&queues)?;
                let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
                // A kernel without message queues has none to show.
                if mount("mqueue", &queues, "mqueue", flags, c"").is_err() {
                    fs::remove_dir(&queues)?;
                }
            }
        }
    }
    let shared = target.join("shm");
    if !shared.exists() {
        fs::create_dir(&shared)?;
        mount_tmpfs(&shared, &format!("mode=1777{owner}"))?;
    }
    for (name, of) in LINKS {
        symlink(of, target.join(name))?;
    }
    Ok(())
}

/// Provides terminals: those of the host if the command uses one, otherwise new ones. The kernel opens no
/// terminal by a `ptmx` that was bound alone.
fn provide_terminals(stage: &Stage, target: &Path) -> io::Result<()> {
    let has_terminal = io::stdin().is_terminal() || io::stdout().is_terminal() || io::stderr().is_terminal();
    if !has_terminal {
        if own_terminals(target).is_ok() {
            return Ok(());
        }
        fs::remove_dir(target.join("pts"))?;
    }
    bind(&stage.host(Path::new("/dev/pts")), &target.join("pts"))?;
    bind(&stage.host(Path::new("/dev/ptmx")), &target.join("ptmx"))
}

/// Provides new terminals, which no process outside has.
fn own_terminals(target: &Path) -> io::Result<()> {
    let terminals = target.join("pts");
    fs::create_dir(&terminals)?;
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("devpts", &terminals, "devpts", flags, c"newinstance,ptmxmode=0666,mode=0620")?;
    symlink("pts/ptmx", target.join("ptmx"))
}

/// Shows the terminal that the command is started from, if there is one, by the usual name of it in a container.
fn console(stage: &Stage, target: &Path) -> io::Result<()> {
    let Some(number) = [0, 1, 2].into_iter().find(|number| is_terminal(*number)) else { return Ok(()) };
    let name = fs::read_link(stage.host(Path::new(&format!("/proc/self/fd/{number}"))));
    let terminal = name.ok().filter(|name| name.starts_with("/dev"));
    // Without a name the command still has the descriptor.
    terminal.map_or(Ok(()), |terminal| bind(&stage.host(&terminal), &target.join("console")))
}

fn is_terminal(number: i32) -> bool {
    match number {
        0 => io::stdin().is_terminal(),
        1 => io::stdout().is_terminal(),
        _ => io::stderr().is_terminal(),
    }
}

/// Binds a device or a directory of devices. A device that the host lacks is skipped.
fn bind(from: &Path, to: &Path) -> io::Result<()> {
    let Ok(meta) = fs::metadata(from) else { return Ok(()) };
    if fs::symlink_metadata(to).is_ok() {
        return Ok(());
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    if meta.is_dir() {
        fs::create_dir(to)?;
    } else {
        fs::File::create(to)?;
    }
    Ok(mount_bind_recursive(from, to)?)
}
