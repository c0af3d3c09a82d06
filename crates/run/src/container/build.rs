//! The root of one command: the image, what is mounted into it, and what it needs for that.

use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::mount::{
    MountFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_remount, unmount,
};

use super::{ContainerError, Mount, Plan, Stage, WORK, What, devices, resolve, step};
use crate::root::{self, Leaf, Wanted};

/// Mount points and small files need no more; a root that is written may fill half of the memory, as a tmpfs does.
const SMALL: &str = "mode=0755,size=16m";
const LARGE: &str = "mode=0755";

impl What {
    fn leaf(&self, stage: &Stage) -> io::Result<Leaf> {
        Ok(match self {
            What::Bind { from, .. } if fs::metadata(stage.host(from))?.is_dir() => Leaf::Directory,
            What::Scratch(_) | What::Devices(_) => Leaf::Directory,
            What::Bind { .. } | What::File(_) => Leaf::File,
        })
    }

    fn describe(&self) -> String {
        match self {
            What::Bind { from, .. } => from.display().to_string(),
            What::Scratch(_) => "an empty directory".into(),
            What::Devices(_) => "devices".into(),
            What::File(_) => "a file made for it".into(),
        }
    }
}

pub(super) fn build(stage: &Stage, plan: &Plan) -> Result<(), ContainerError> {
    let size = if plan.writable { LARGE } else { SMALL };
    mount_tmpfs(Path::new(WORK), size).map_err(step("mount a tmpfs for the command's root"))?;
    let root = Path::new(WORK).join("root");
    fs::create_dir(&root).map_err(step("make the command's root"))?;
    let mut leaves = Vec::new();
    for wanted in &plan.mounts {
        let asked = || format!("bind {}", wanted.what.describe());
        leaves.push(wanted.what.leaf(stage).map_err(step(asked()))?);
    }
    if plan.writable {
        overlay(stage.image(), &root)?;
    } else {
        show_image(stage.image(), &root, &plan.mounts, &leaves)?;
    }
    let mut done: Vec<(PathBuf, &What)> = Vec::new();
    for (number, (wanted, leaf)) in plan.mounts.iter().zip(leaves).enumerate() {
        let target = resolved(&root, &wanted.target)?;
        provide(&target, leaf, wanted, &done)?;
        let failed = || format!("mount {} on {}", wanted.what.describe(), wanted.target.display());
        attach(stage, &target, &wanted.what, number).map_err(step(failed()))?;
        done.push((target, &wanted.what));
    }
    close_scratch(&done).map_err(step("close what was made for the command"))?;
    enter(&root).map_err(step("make the image the root directory"))
}

fn resolved(root: &Path, target: &Path) -> Result<PathBuf, ContainerError> {
    resolve::within(root, target).map_err(step(format!("find {} in the image", target.display())))
}

fn mount_tmpfs(target: &Path, options: &str) -> io::Result<()> {
    let options = CString::new(options)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount("esker", target, "tmpfs", flags, Some(options.as_c_str()))?)
}

/// Shows the image at `root`, with all mount points that it has to provide.
fn show_image(image: &Path, root: &Path, mounts: &[Mount], leaves: &[Leaf]) -> Result<(), ContainerError> {
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut missing: Vec<(Vec<OsString>, Leaf)> = Vec::new();
    for (wanted, leaf) in mounts.iter().zip(leaves) {
        let target = resolved(image, &wanted.target)?;
        if seen.iter().any(|above| target.starts_with(above)) {
            continue; // it lies in what is mounted before it
        }
        if fs::symlink_metadata(&target).is_err() {
            missing.push((root::names(target.strip_prefix(image).unwrap_or(&target)), *leaf));
        }
        seen.push(target);
    }
    let failed = || "show the image as the command's root";
    if missing.is_empty() {
        return mount_bind_recursive(image, root).map_err(|error| step(failed())(error.into()));
    }
    // A mount of its own, so that it can become the root.
    mount_bind(root, root).map_err(|error| step(failed())(error.into()))?;
    let wanted: Vec<Wanted> = missing.iter().map(|(names, kind)| Wanted { names, kind: *kind }).collect();
    root::mirror(image, root, &wanted).map_err(step(failed()))?;
    read_only(root).map_err(step(failed()))
}

/// Puts an overlay above the image whose upper layer is in memory.
fn overlay(image: &Path, root: &Path) -> Result<(), ContainerError> {
    let upper = Path::new(WORK).join("upper");
    let moving = Path::new(WORK).join("moving");
    for folder in [&upper, &moving] {
        fs::create_dir(folder).map_err(step("make a layer to write to"))?;
    }
    // By the working directory: the path of an image may hold what separates layers and options.
    std::env::set_current_dir(image).map_err(step("change to the image"))?;
    let layers = format!("lowerdir=.,upperdir={},workdir={}", upper.display(), moving.display());
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let mut refused = io::Error::from_raw_os_error(libc::EINVAL);
    // Without root its marks must be extended attributes that users may set; root on an old kernel knows no such option.
    for options in [format!("{layers},userxattr"), layers] {
        let options = CString::new(options).unwrap_or_default();
        match mount("esker", root, "overlay", flags, Some(options.as_c_str())) {
            Ok(()) => return Ok(()),
            Err(error) => refused = error.into(),
        }
    }
    let what = format!("this kernel puts no overlay above the image ({refused})");
    let remedy =
        "without root that needs Linux 5.11; older ones run the image without --writable-tmpfs, with --bind \
                  for the directories that are written"
            .into();
    Err(ContainerError::Impossible { what, remedy })
}

/// Sees that `target` can be mounted on. Nothing is created on the host.
fn provide(
    target: &Path,
    leaf: Leaf,
    wanted: &Mount,
    done: &[(PathBuf, &What)],
) -> Result<(), ContainerError> {
    let place = wanted.target.display();
    if let Ok(meta) = fs::metadata(target) {
        if meta.is_dir() == (leaf == Leaf::Directory) {
            return Ok(());
        }
        let (there, here) = if meta.is_dir() { ("directory", "file") } else { ("file", "directory") };
        let what =
            format!("can't mount {} on {place}: that is a {there}, this a {here}", wanted.what.describe());
        return Err(ContainerError::Impossible { what, remedy: "name another destination".into() });
    }
    let below = done.iter().rev().find(|(above, _)| target.starts_with(above));
    if let Some((_, What::Bind { from, .. })) = below {
        let what =
            format!("there is no {place} to mount on, and it would lie in {} of the host", from.display());
        return Err(ContainerError::Impossible {
            what,
            remedy: "create it first, or name another destination".into(),
        });
    }
    let made = match leaf {
        Leaf::Directory => fs::create_dir_all(target),
        Leaf::File => target
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::File::create(target).map(drop)),
    };
    made.map_err(step(format!("make the mount point {place}")))
}

fn attach(stage: &Stage, target: &Path, what: &What, number: usize) -> io::Result<()> {
    match what {
        What::Bind { from, read_only: wanted } => {
            mount_bind_recursive(stage.host(from), target)?;
            if *wanted { read_only(target) } else { Ok(()) }
        }
        What::Scratch(mode) => mount_tmpfs(target, &format!("mode={mode:o}")),
        What::Devices(more) => devices::provide(stage, target, more),
        What::File(content) => {
            let made = Path::new(WORK).join(format!("file-{number}"));
            // Only memory: nothing here has to survive anything.
            io::Write::write_all(&mut fs::File::create(&made)?, content)?;
            fs::set_permissions(&made, fs::Permissions::from_mode(0o644))?;
            mount_bind(&made, target)?;
            read_only(target)
        }
    }
}

/// Directories with devices stay as they were made.
fn close_scratch(done: &[(PathBuf, &What)]) -> io::Result<()> {
    done.iter()
        .filter(|(_, what)| matches!(what, What::Devices(_)))
        .try_for_each(|(target, _)| read_only(target))
}

fn read_only(target: &Path) -> io::Result<()> {
    let flags = MountFlags::BIND | MountFlags::RDONLY | kept_flags(target)?;
    Ok(mount_remount(target, flags, c"")?)
}

/// What a mount forbids already: in a user namespace the kernel refuses a change that forgets one of them.
pub(super) fn kept_flags(target: &Path) -> io::Result<MountFlags> {
    let now = statvfs(target)?.f_flag;
    let mut kept = MountFlags::empty();
    for (is, flag) in [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        kept.set(flag, now.contains(is));
    }
    Ok(kept)
}

/// Makes `root` the root directory, and lets go of everything else.
fn enter(root: &Path) -> io::Result<()> {
    std::env::set_current_dir(root)?;
    // The old root lands on top of the new one, where it can be let go of.
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    std::env::set_current_dir("/")
}
