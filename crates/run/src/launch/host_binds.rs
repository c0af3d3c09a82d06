//! Parts of the host that a container shows, and their targets.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::user::User;
use super::{LaunchOptions, Notice, Notify};
use crate::container::{BindOptions, ContainerError, Devices, Mount, Share, Stage, What, enter_directory};

/// Directories that the kernel fills.
const PROC: &str = "/proc";
const SYS: &str = "/sys";
/// Directories that programs expect to be writable.
const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];
/// Files of the host that give a cluster its names and time.
const SITE_FILES: [&str; 3] = ["/etc/resolv.conf", "/etc/hosts", "/etc/localtime"];
/// Directories that belong to the image: a current directory below one of them is not mounted.
const OF_THE_IMAGE: [&str; 13] =
    ["bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr"];

/// Parts of the host to show, found before namespaces hide it.
pub(super) struct HostBinds {
    home: PathBuf,
    /// Current directory of the command, by the user's path for it, if the container has it.
    current: Option<PathBuf>,
    /// True if the container shows the home directory.
    at_home: bool,
    /// Directory that the user asked for.
    asked: Option<PathBuf>,
    /// Default mounts, which come first so that they cover no others.
    first: Vec<Mount>,
    /// Mounts that are made after those of the account files.
    second: Vec<Mount>,
    notify: Notify,
}

impl HostBinds {
    pub(super) fn new(options: &LaunchOptions, user: &User, notify: Notify) -> Result<Self, ContainerError> {
        let shown = !options.no_bind && options.contained.is_none();
        let mut first: Vec<Mount> = match &options.contained {
            Some(contained) => {
                let devices = Devices::Own { shares_memory: contained.shares(Share::Ipc) };
                vec![
                    Mount::usual(PROC, What::Processes),
                    Mount::usual(SYS, What::System),
                    Mount::usual("/dev", What::Devices(devices)),
                ]
            }
            None => {
                let system = [PROC, SYS].into_iter().filter_map(|path| of_host(Path::new(path), false));
                system.chain([Mount::usual("/dev", What::Devices(Devices::OfHost))]).collect()
            }
        };
        for path in TEMPORARY.map(Path::new) {
            match () {
                () if options.contained.is_some() => first.push(Mount::usual(path, What::Scratch(0o1777))),
                () if shown => first.extend(of_host(path, false)),
                () => {}
            }
        }
        first.extend(SITE_FILES.iter().filter_map(|path| of_host(Path::new(path), true)));
        let mut second = Vec::new();
        let (home, mount) = home(options, user, notify)?;
        second.extend(mount);
        second.extend(options.mounts.iter().cloned());
        let current = Directory::current(notify).filter(|_| shown).and_then(|directory| {
            let mounts: Vec<&Mount> = first.iter().chain(&second).collect();
            match directory.among(&mounts) {
                PathVisibility::Shown => {}
                PathVisibility::Needs(mount) => first.push(mount),
                PathVisibility::Hidden => return None,
            }
            Some(directory.told)
        });
        let at_home = second.iter().chain(&first).any(|mount| mount.target == home || shows(mount, &home));
        Ok(Self { home, current, at_home, asked: options.directory.clone(), first, second, notify })
    }

    pub(super) fn home(&self) -> OsString {
        self.home.clone().into_os_string()
    }

    pub(super) fn mounts(&self, stage: &Stage, user: &User) -> Vec<Mount> {
        let accounts = user.files(stage);
        self.first.iter().cloned().chain(accounts).chain(self.second.iter().cloned()).collect()
    }

    /// Changes to the directory in which the command starts, and returns it: the requested one, or the first
    /// usable default.
    pub(super) fn enter_start(&self, of_image: Option<&Path>) -> Result<PathBuf, ContainerError> {
        if let Some(asked) = &self.asked {
            return enter_directory(&[asked]);
        }
        let home = self.at_home.then_some(&*self.home);
        let usual = self.current.as_deref().or(of_image);
        let all: Vec<&Path> = usual.into_iter().chain(home).chain([Path::new("/")]).collect();
        let entered = enter_directory(&all)?;
        if let Some(wanted) = usual.filter(|wanted| *wanted != entered) {
            (self.notify)(Notice::Text(format!(
                "the command starts in {}, because {} can't be entered in the container",
                entered.display(),
                wanted.display()
            )));
        }
        Ok(entered)
    }
}

/// Returns a bind of the same path of the host, if it exists.
fn of_host(path: &Path, read_only: bool) -> Option<Mount> {
    let from = fs::canonicalize(path).ok()?;
    let options = if read_only { BindOptions::READ_ONLY } else { BindOptions::default() };
    Some(Mount::usual(path, What::Bind { from, options }))
}

/// True if a path of the host is visible at the same path through this mount.
fn shows(mount: &Mount, path: &Path) -> bool {
    match &mount.what {
        What::Bind { from, .. } => path
            .strip_prefix(&mount.target)
            .is_ok_and(|below| fs::canonicalize(path).is_ok_and(|real| real == from.join(below))),
        What::Scratch(_) | What::Devices(_) | What::File(_) | What::Image => false,
        What::Processes | What::System => false,
    }
}

/// Current directory of the command.
struct Directory {
    /// Path by which the shell knows the directory, if that path is correct.
    told: PathBuf,
    /// Path without symbolic links.
    real: PathBuf,
}

/// Visibility of a path in the container.
#[derive(Debug, PartialEq, Eq)]
enum PathVisibility {
    Shown,
    /// The path is visible if this mount is made below the others.
    Needs(Mount),
    /// The path is covered by another mount, or must not be mounted.
    Hidden,
}

impl Directory {
    fn current(notify: Notify) -> Option<Self> {
        let real = std::env::current_dir().ok()?;
        if let Err(error) = accessat(CWD, &real, Access::EXEC_OK, AtFlags::EACCESS) {
            notify(Notice::Text(format!(
                "the command doesn't start in the current directory {}, which this user can't enter: {}",
                real.display(),
                std::io::Error::from(error)
            )));
            return None;
        }
        let told = std::env::var_os("PWD").map(PathBuf::from);
        let right =
            |told: &PathBuf| told.is_absolute() && fs::canonicalize(told).is_ok_and(|path| path == real);
        Some(Self { told: told.filter(right).unwrap_or_else(|| real.clone()), real })
    }

    /// Returns the visibility of a path given these mounts, of which later ones cover earlier ones.
    fn among(&self, mounts: &[&Mount]) -> PathVisibility {
        for path in [&self.told, &self.real] {
            let mount = mounts.iter().rev().find(|mount| path.starts_with(&mount.target));
            match mount {
                None => {
                    let mount = of_host(path, false).filter(|_| may_be_shown(path));
                    return mount.map_or(PathVisibility::Hidden, PathVisibility::Needs);
                }
                Some(mount) if shows(mount, path) => return PathVisibility::Shown,
                // A link in it leads to the same place as on the host.
                Some(mount) if shows(mount, &mount.target) => {}
                Some(_) => return PathVisibility::Hidden,
            }
        }
        PathVisibility::Hidden
    }
}

fn may_be_shown(current: &Path) -> bool {
    match current.components().nth(1) {
        Some(Component::Normal(name)) => !OF_THE_IMAGE.iter().any(|known| OsStr::new(known) == name),
        _ => false,
    }
}

/// Returns the home directory in the container, and its mount.
fn home(
    options: &LaunchOptions,
    user: &User,
    notify: Notify,
) -> Result<(PathBuf, Option<Mount>), ContainerError> {
    let usual = PathBuf::from(&user.account.home);
    if let Some((from, target)) = options.home.clone() {
        let target = target.unwrap_or(usual);
        if !target.is_absolute() || target == Path::new("/") {
            let target = target.display();
            return Err(ContainerError::Usage {
                what: format!(
                    "--home: {target} can't be a home directory: it is not absolute, or the root directory"
                ),
                remedy: Some("as in --home /scratch/me:/users/me".to_owned()),
            });
        }
        let what = What::Bind { from, options: BindOptions::default() };
        return Ok((target.clone(), Some(Mount::asked(target, what))));
    }
    let nowhere = usual == Path::new("/") || !usual.is_absolute();
    if options.no_home || options.no_bind || nowhere {
        return Ok((usual, None));
    }
    if options.contained.is_some() {
        return Ok((usual.clone(), Some(Mount::usual(usual, What::Scratch(0o700)))));
    }
    let mount = of_host(&usual, false);
    if mount.is_none() {
        notify(Notice::Text(format!(
            "the home directory {} is not on this host, so the command doesn't see it",
            usual.display()
        )));
    }
    Ok((usual, mount))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_directories_are_those_of_the_image() {
        for (path, shown) in [("/", false), ("/usr/lib", false), ("/project/x", true), ("/opt/work", true)] {
            assert_eq!(may_be_shown(Path::new(path)), shown, "{path}");
        }
    }

    #[test]
    fn the_last_mount_above_a_directory_decides() {
        let folder = tempfile::tempdir().expect("a folder");
        let base = fs::canonicalize(folder.path()).expect("its path");
        let at = |name: &str| base.join(name);
        fs::create_dir_all(at("home/project")).expect("folders");
        fs::create_dir_all(at("far/data")).expect("folders");
        fs::create_dir_all(at("other")).expect("a folder");
        std::os::unix::fs::symlink(at("far/data"), at("home/link")).expect("a link");
        let bind = |from: &str, target: &str| {
            Mount::usual(at(target), What::Bind { from: at(from), options: BindOptions::READ_ONLY })
        };
        let same = |path: &str| bind(path, path);
        let sight = |told: &str, mounts: &[Mount]| {
            let directory = Directory { told: at(told), real: fs::canonicalize(at(told)).expect("it") };
            directory.among(&mounts.iter().collect::<Vec<_>>())
        };
        let needs = |path: &str| PathVisibility::Needs(of_host(&at(path), false).expect("it"));
        for (told, mounts, expected) in [
            ("home/project", vec![], needs("home/project")),
            ("home/project", vec![same("home/project/")], PathVisibility::Shown),
            ("home/project", vec![same(""), bind("other", "home")], PathVisibility::Hidden),
            ("home/project", vec![bind("other", "home"), same("home/project")], PathVisibility::Shown),
            ("home/project", vec![same("home/project"), bind("other", "home")], PathVisibility::Hidden),
            ("home", vec![bind("other", "home/project")], needs("home")),
            ("home/link", vec![], needs("home/link")),
            ("home/link", vec![same("home")], needs("far/data")),
            ("home/link", vec![same("home"), same("far")], PathVisibility::Shown),
            ("home/link", vec![same("home"), bind("other", "far/data")], PathVisibility::Hidden),
        ] {
            assert_eq!(sight(told, &mounts), expected, "{told}: {mounts:?}");
        }
    }
}
