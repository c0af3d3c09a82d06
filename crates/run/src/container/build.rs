//! Builds the root of one command: the image, the mounts in it, and their mount points.

use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, StatVfsMountFlags, statvfs};
use rustix::mount::{
    MountFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_remount, unmount,
};

use rustix::process::umask;

use super::{
    ContainerError, LeftOut, Mount, Need, Plan, Stage, WORK, What, devices, kernel, mapped, resolve, step,
};
use crate::root::{self, Leaf, Owner, Wanted};

/// Options of a tmpfs for mount points and small files; a writable root may fill half of the memory, as a tmpfs does.
const SMALL: &str = "mode=0755,size=16m";
const LARGE: &str = "mode=0755";
/// Maximum size of a file of the host that is copied into a writable root.
const COPY_MAX: u64 = 16 << 20;

impl What {
    fn leaf(&self, stage: &Stage) -> io::Result<Leaf> {
        Ok(match self {
            What::Bind { from, .. } if fs::metadata(stage.host(from))?.is_dir() => Leaf::Directory,
            What::Scratch(_) | What::Devices(_) | What::Image => Leaf::Directory,
            What::Processes | What::System => Leaf::Directory,
            What::Bind { .. } | What::File(_) => Leaf::File,
        })
    }

    fn describe(&self) -> String {
        match self {
            What::Bind { from, .. } => from.display().to_string(),
            What::Scratch(_) => "an empty directory".into(),
            What::Devices(_) => "devices".into(),
            What::File(_) => "a file made for it".into(),
            What::Image => "the image".into(),
            What::Processes => "the list of processes".into(),
            What::System => "the facts of the system".into(),
        }
    }
}

pub(super) fn build(stage: &Stage, plan: &Plan) -> Result<Vec<LeftOut>, ContainerError> {
    // What is made here is for all users of the container, and not writable by them.
    let before = umask(Mode::from_raw_mode(0o022));
    let built = make(stage, plan);
    umask(before);
    built
}

fn make(stage: &Stage, plan: &Plan) -> Result<Vec<LeftOut>, ContainerError> {
    let size = if plan.writable { LARGE } else { SMALL };
    mount_tmpfs(Path::new(WORK), size).map_err(step("mount a tmpfs for the command's root"))?;
    let root = Path::new(WORK).join("root");
    stage.owner.make_dir(&root).map_err(step("make the command's root"))?;
    let shown = if plan.of_host { stage.host(Path::new("/")) } else { stage.image().to_owned() };
    let mut left_out = Vec::new();
    let mut mounts: Vec<(&Mount, Leaf)> = Vec::new();
    for wanted in &plan.mounts {
        match wanted.what.leaf(stage) {
            Ok(leaf) => mounts.push((wanted, leaf)),
            Err(error) => {
                let error = step(format!("bind {}", wanted.what.describe()))(error);
                leave_out(wanted, error, &mut left_out)?;
            }
        }
    }
    if plan.writable {
        overlay(&shown, &root, stage.owner)?;
    } else {
        show_image(&shown, &root, &mounts, stage.owner)?;
    }
    let mut placing = Placing { stage, root: &root, writable: plan.writable, done: Vec::new() };
    for (number, (wanted, leaf)) in mounts.into_iter().enumerate() {
        if let Err(error) = placing.place(wanted, leaf, number) {
            leave_out(wanted, error, &mut left_out)?;
        }
    }
    close_scratch(&placing.done).map_err(step("protect the command's own files"))?;
    enter(&root).map_err(step("make the image the root directory"))?;
    Ok(left_out)
}

/// Skips a mount, if that is possible.
fn leave_out(
    wanted: &Mount,
    error: ContainerError,
    left_out: &mut Vec<LeftOut>,
) -> Result<(), ContainerError> {
    match wanted.need {
        Need::Asked => Err(error),
        Need::Usual => {
            left_out.push(LeftOut { target: wanted.target.clone(), error });
            Ok(())
        }
    }
}

/// Mounts a list of mounts into a root, in order.
struct Placing<'p> {
    stage: &'p Stage,
    root: &'p Path,
    writable: bool,
    /// Mounts made so far, with their targets.
    done: Vec<(PathBuf, &'p What)>,
}

impl<'p> Placing<'p> {
    fn place(&mut self, wanted: &'p Mount, leaf: Leaf, number: usize) -> Result<(), ContainerError> {
        let target = spot(self.root, wanted, leaf)?;
        let is_own = self.writable && wanted.need == Need::Usual && !self.is_of_host(&target);
        // A mount on a file can't be renamed over, as programs replace files.
        if !(is_own && leaf == Leaf::File && self.copy(&target, &wanted.what).is_ok()) {
            if is_own && is_in_the_way(&target, leaf) {
                remove(&target).map_err(step(format!("replace {}", wanted.target.display())))?;
            }
            provide(&target, leaf, wanted, &self.done, self.stage.owner)?;
            attach(self.stage, &target, &wanted.what, number).map_err(|error| refused(wanted, error))?;
        }
        self.done.push((target, &wanted.what));
        Ok(())
    }

    /// True if `target` belongs to the host.
    fn is_of_host(&self, target: &Path) -> bool {
        let below = self.done.iter().rev().find(|(above, _)| target.starts_with(above));
        below.is_some_and(|(_, what)| matches!(what, What::Bind { .. }))
    }

    /// Writes a file into a root that can be written.
    fn copy(&self, target: &Path, what: &What) -> io::Result<()> {
        let content = match what {
            What::File(content) => content.clone(),
            What::Bind { from, .. } => {
                let from = self.stage.host(from);
                let meta = fs::metadata(&from)?;
                if !meta.is_file() || meta.len() > COPY_MAX {
                    return Err(io::ErrorKind::FileTooLarge.into());
                }
                fs::read(from)?
            }
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        remove(target)?;
        target.parent().map_or(Ok(()), |parent| self.stage.owner.make_dirs(parent))?;
        // Only memory: nothing here has to survive anything.
        io::Write::write_all(&mut fs::File::create_new(target)?, &content)?;
        self.stage.owner.take(target)?;
        fs::set_permissions(target, fs::Permissions::from_mode(0o644))
    }
}

fn remove(target: &Path) -> io::Result<()> {
    match fs::symlink_metadata(target) {
        Err(_) => Ok(()),
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(target),
        Ok(_) => fs::remove_file(target),
    }
}

fn refused(wanted: &Mount, error: io::Error) -> ContainerError {
    let target = wanted.target.display();
    match &wanted.what {
        What::Bind { options, .. } if options.mapped => {
            let what = format!("can't map the owners of the files at {target}: {error}");
            let remedy = "the option idmap is for root with --contain, and for file systems that can map owners \
                          (ext4, xfs, btrfs and others, from Linux 5.12 on); without it, give the files to the \
                          container's users"
                .into();
            ContainerError::Impossible { what, remedy }
        }
        What::Bind { from, options } if options.single && error.raw_os_error() == Some(libc::EINVAL) => {
            let what = format!(
                "can't mount {} on {target} without the mounts below it: for users other than root the kernel binds them only together",
                from.display()
            );
            ContainerError::Impossible { what, remedy: "remove the option bind, or use rbind".into() }
        }
        what => step(format!("mount {} on {target}", what.describe()))(error),
    }
}

/// Returns the target of a mount below `root`. A mount of the user goes where links of the image lead. A standard
/// mount replaces a file or directory in its way, and a file replaces a link, so that it is not shown somewhere else,
/// too.
fn spot(root: &Path, wanted: &Mount, leaf: Leaf) -> Result<PathBuf, ContainerError> {
    let found = resolve::within(root, &wanted.target);
    let failed = || step(format!("find {} in the image", wanted.target.display()));
    let (Need::Usual, Some(parent), Some(name)) =
        (wanted.need, wanted.target.parent(), wanted.target.file_name())
    else {
        return found.map_err(failed());
    };
    let entry = resolve::within(root, parent).map_err(failed())?.join(name);
    let is_file_link = leaf == Leaf::File && fs::symlink_metadata(&entry).is_ok_and(|meta| meta.is_symlink());
    Ok(found.ok().filter(|target| !is_file_link && !is_in_the_way(target, leaf)).unwrap_or(entry))
}

/// True if the file at `target` is of another kind.
fn is_in_the_way(target: &Path, leaf: Leaf) -> bool {
    let there = fs::symlink_metadata(target);
    there.is_ok_and(|meta| meta.is_symlink() || meta.is_dir() != (leaf == Leaf::Directory))
}

/// Mounts an empty file system in memory.
pub(super) fn mount_tmpfs(target: &Path, options: &str) -> io::Result<()> {
    let options = CString::new(options)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount("esker", target, "tmpfs", flags, Some(options.as_c_str()))?)
}

/// Shows the image at `root`, with all required mount points.
fn show_image(
    image: &Path,
    root: &Path,
    mounts: &[(&Mount, Leaf)],
    owner: Owner,
) -> Result<(), ContainerError> {
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut missing: Vec<(Vec<OsString>, Leaf)> = Vec::new();
    for (wanted, leaf) in mounts {
        let target = match spot(image, wanted, *leaf) {
            Err(error) if wanted.need == Need::Asked => return Err(error),
            Err(_) => continue,
            Ok(target) => target,
        };
        if seen.iter().any(|above| target.starts_with(above)) {
            continue; // it lies in what is mounted before it
        }
        let is_replaced = wanted.need == Need::Usual && is_in_the_way(&target, *leaf);
        if is_replaced || fs::symlink_metadata(&target).is_err() {
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
    root::mirror(image, root, &wanted, owner).map_err(step(failed()))?;
    read_only(root).map_err(step(failed()))
}

/// Puts an overlay above the image whose upper layer is in memory.
fn overlay(image: &Path, root: &Path, owner: Owner) -> Result<(), ContainerError> {
    let upper = Path::new(WORK).join("upper");
    let moving = Path::new(WORK).join("moving");
    for folder in [&upper, &moving] {
        owner.make_dir(folder).map_err(step("make a layer to write to"))?;
    }
    // By the working directory: the path of an image may contain the separators of layers and options.
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

/// Makes `target` a mount point. Nothing is created on the host.
fn provide(
    target: &Path,
    leaf: Leaf,
    wanted: &Mount,
    done: &[(PathBuf, &What)],
    owner: Owner,
) -> Result<(), ContainerError> {
    let place = wanted.target.display();
    if let Ok(meta) = fs::symlink_metadata(target) {
        if meta.is_symlink() {
            let what = format!("can't mount {} on {place}: that is a link", wanted.what.describe());
            return Err(ContainerError::Impossible { what, remedy: "name another destination".into() });
        }
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
        Leaf::Directory => owner.make_dirs(target),
        Leaf::File => owner.make_file(target),
    };
    made.map_err(step(format!("make the mount point {place}")))
}

fn attach(stage: &Stage, target: &Path, what: &What, number: usize) -> io::Result<()> {
    match what {
        What::Bind { from, options } if options.mapped => {
            mapped::bind(stage.users.as_ref(), &stage.host(from), target, !options.single)?;
            options.apply(target, stage)
        }
        What::Bind { from, options } if options.single => {
            mount_bind(stage.host(from), target)?;
            options.apply(target, stage)
        }
        What::Bind { from, options } => {
            mount_bind_recursive(stage.host(from), target)?;
            options.apply(target, stage)
        }
        What::Image => Ok(mount_bind_recursive(stage.image(), target)?),
        What::Processes => kernel::processes(stage, target),
        What::System => kernel::system(stage, target),
        What::Scratch(mode) => mount_tmpfs(target, &format!("mode={mode:o}{}", stage.owner.of_tmpfs())),
        What::Devices(devices) => devices::provide(stage, target, *devices),
        What::File(content) => {
            let made = Path::new(WORK).join(format!("file-{number}"));
            // Only memory: nothing here has to survive anything.
            io::Write::write_all(&mut fs::File::create(&made)?, content)?;
            stage.owner.take(&made)?;
            fs::set_permissions(&made, fs::Permissions::from_mode(0o644))?;
            mount_bind(&made, target)?;
            read_only(target)
        }
    }
}

/// Makes the directories of devices read-only, once all of them are made.
fn close_scratch(done: &[(PathBuf, &What)]) -> io::Result<()> {
    done.iter()
        .filter(|(_, what)| matches!(what, What::Devices(_)))
        .try_for_each(|(target, _)| read_only(target))
}

/// Makes a mount read-only.
pub(crate) fn read_only(target: &Path) -> io::Result<()> {
    let flags = MountFlags::BIND | MountFlags::RDONLY | kept_flags(target)?;
    Ok(mount_remount(target, flags, c"")?)
}

/// Returns the restrictions of a mount: in a user namespace the kernel refuses a remount that drops one of them.
pub(super) fn kept_flags(target: &Path) -> io::Result<MountFlags> {
    let now = statvfs(target)?.f_flag;
    let mut kept = MountFlags::empty();
    for (is, flag) in [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
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

/// Makes `root` the root directory, and unmounts everything else.
fn enter(root: &Path) -> io::Result<()> {
    std::env::set_current_dir(root)?;
    // The old root lands on top of the new one, where it can be let go of.
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    std::env::set_current_dir("/")
}
