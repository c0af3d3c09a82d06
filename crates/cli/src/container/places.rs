//! What of the host a container shows, and where.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use esker_run::container::{ContainerError, Mount, Stage, What};

use super::person::Person;
use super::{ContainerArgs, say};
use crate::exit::{Context, Failure, Kind};

/// Directories of the host that show nothing of it but what the image may not have.
const SYSTEM: [&str; 2] = ["/proc", "/sys"];
/// Where programs expect to be allowed to write.
const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];
/// Names and times are those of the cluster.
const SITE_FILES: [&str; 3] = ["/etc/resolv.conf", "/etc/hosts", "/etc/localtime"];
/// In these the image's files count: the current directory isn't shown if it lies in one.
const OF_THE_IMAGE: [&str; 13] =
    ["bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr"];

/// What is to be shown, found on the host before namespaces hide it.
pub(super) struct Wishes {
    home: PathBuf,
    /// Where the command is started, as the user sees it, if the container shows that.
    current: Option<PathBuf>,
    /// Whether the container shows the home directory.
    at_home: bool,
    pwd: Option<PathBuf>,
    /// What nobody asked for, so that it covers nothing else.
    first: Vec<Mount>,
    /// After the files of accounts.
    second: Vec<Mount>,
}

impl Wishes {
    pub(super) fn new(args: &ContainerArgs, person: &Person) -> Result<Self, Failure> {
        let shown = !args.no_bind && !args.contain;
        let mut first: Vec<Mount> =
            SYSTEM.iter().filter_map(|path| of_host(Path::new(path), false)).collect();
        first.push(Mount { target: "/dev".into(), what: What::Devices(Vec::new()) });
        for path in TEMPORARY.map(Path::new) {
            match () {
                () if args.contain => first.push(Mount { target: path.into(), what: What::Scratch(0o1777) }),
                () if shown => first.extend(of_host(path, false)),
                () => {}
            }
        }
        first.extend(SITE_FILES.iter().filter_map(|path| of_host(Path::new(path), true)));
        let mut second = Vec::new();
        let (home, mount) = home(args, person)?;
        second.extend(mount);
        for wish in &args.bind {
            second.push(bind(wish)?);
        }
        let directory = Directory::current().filter(|_| shown);
        let current = directory.and_then(|directory| {
            let mounts: Vec<&Mount> = first.iter().chain(&second).collect();
            match directory.among(&mounts) {
                Sight::Shown => {}
                Sight::Needs(mount) => first.push(mount),
                Sight::Hidden => return None,
            }
            Some(directory.told)
        });
        let at_home = second.iter().chain(&first).any(|mount| mount.target == home || shows(mount, &home));
        Ok(Self { home, current, at_home, pwd: args.pwd.clone(), first, second })
    }

    pub(super) fn home(&self) -> OsString {
        self.home.clone().into_os_string()
    }

    pub(super) fn mounts(&self, stage: &Stage, person: &Person) -> Result<Vec<Mount>, ContainerError> {
        let accounts = person.files(stage);
        Ok(self.first.iter().cloned().chain(accounts).chain(self.second.iter().cloned()).collect())
    }

    /// Where the command starts.
    pub(super) fn start(&self, of_image: Option<&Path>) -> PathBuf {
        let home = self.at_home.then_some(&*self.home);
        let wanted = self.pwd.as_deref().or(self.current.as_deref()).or(of_image).or(home);
        wanted.unwrap_or(Path::new("/")).to_owned()
    }
}

/// The same path of the host, if it is there.
fn of_host(path: &Path, read_only: bool) -> Option<Mount> {
    let from = fs::canonicalize(path).ok()?;
    Some(Mount { target: path.to_owned(), what: What::Bind { from, read_only } })
}

/// Whether a path of the host can be seen at the same place through this mount.
fn shows(mount: &Mount, path: &Path) -> bool {
    match &mount.what {
        What::Bind { from, .. } => path
            .strip_prefix(&mount.target)
            .is_ok_and(|below| fs::canonicalize(path).is_ok_and(|real| real == from.join(below))),
        What::Scratch(_) | What::Devices(_) | What::File(_) => false,
    }
}

/// Where the command is started.
struct Directory {
    /// The path by which the shell knows it, if that is right.
    told: PathBuf,
    /// Without links.
    real: PathBuf,
}

/// Whether the command sees it.
#[derive(Debug, PartialEq, Eq)]
enum Sight {
    Shown,
    /// With this mount, below the others.
    Needs(Mount),
    /// Something else is mounted there, or nothing may be.
    Hidden,
}

impl Directory {
    fn current() -> Option<Self> {
        let real = std::env::current_dir().ok()?;
        let told = std::env::var_os("PWD").map(PathBuf::from);
        let right =
            |told: &PathBuf| told.is_absolute() && fs::canonicalize(told).is_ok_and(|path| path == real);
        Some(Self { told: told.filter(right).unwrap_or_else(|| real.clone()), real })
    }

    /// What these mounts, of which later ones cover earlier ones, make of it.
    fn among(&self, mounts: &[&Mount]) -> Sight {
        for path in [&self.told, &self.real] {
            let mount = mounts.iter().rev().find(|mount| path.starts_with(&mount.target));
            match mount {
                None => {
                    let mount = of_host(path, false).filter(|_| may_be_shown(path));
                    return mount.map_or(Sight::Hidden, Sight::Needs);
                }
                Some(mount) if shows(mount, path) => return Sight::Shown,
                // A link in it leads to the same place as on the host.
                Some(mount) if shows(mount, &mount.target) => {}
                Some(_) => return Sight::Hidden,
            }
        }
        Sight::Hidden
    }
}

fn may_be_shown(current: &Path) -> bool {
    match current.components().nth(1) {
        Some(Component::Normal(name)) => !OF_THE_IMAGE.iter().any(|known| OsStr::new(known) == name),
        _ => false,
    }
}

/// The home directory in the container, and what is mounted there.
fn home(args: &ContainerArgs, person: &Person) -> Result<(PathBuf, Option<Mount>), Failure> {
    let usual = PathBuf::from(&person.account.home);
    if let Some(wish) = &args.home {
        let (from, to) = halves(wish.as_bytes());
        let from = existing("--home", Path::new(from))?;
        let target = to.map_or(usual, PathBuf::from);
        let target = absolute("--home", target)?;
        return Ok((target.clone(), Some(Mount { target, what: What::Bind { from, read_only: false } })));
    }
    let nowhere = usual == Path::new("/") || !usual.is_absolute();
    if args.no_home || args.no_bind || nowhere {
        return Ok((usual, None));
    }
    if args.contain {
        return Ok((usual.clone(), Some(Mount { target: usual, what: What::Scratch(0o700) })));
    }
    let mount = of_host(&usual, false);
    if mount.is_none() {
        say(format!(
            "the home directory {} is not on this host, so the command doesn't see it",
            usual.display()
        ));
    }
    Ok((usual, mount))
}

fn bind(wish: &OsString) -> Result<Mount, Failure> {
    let (rest, read_only) = match wish.as_bytes() {
        text if text.ends_with(b":ro") => (text.strip_suffix(b":ro").unwrap_or(text), true),
        text => (text.strip_suffix(b":rw").unwrap_or(text), false),
    };
    let (source, target) = halves(rest);
    let from = existing("--bind", Path::new(source))?;
    let target = match target {
        Some(target) => absolute("--bind", PathBuf::from(target))?,
        None => std::path::absolute(source).context(Kind::Usage, format!("--bind {}", source.display()))?,
    };
    Ok(Mount { target, what: What::Bind { from, read_only } })
}

/// `SRC:DST`.
fn halves(text: &[u8]) -> (&OsStr, Option<&OsStr>) {
    match text.iter().position(|byte| *byte == b':') {
        Some(at) => {
            let (source, target) = text.split_at(at);
            (OsStr::from_bytes(source), target.get(1..).map(OsStr::from_bytes))
        }
        None => (OsStr::from_bytes(text), None),
    }
}

fn existing(option: &str, path: &Path) -> Result<PathBuf, Failure> {
    fs::canonicalize(path).map_err(|error| {
        Failure::failed(format!("{option} {}: {error}", path.display())).hint("name what is on this host")
    })
}

fn absolute(option: &str, target: PathBuf) -> Result<PathBuf, Failure> {
    if target.is_absolute() {
        return Ok(target);
    }
    Err(Failure::usage(format!("{option}: the destination {} is not absolute", target.display()))
        .hint("as in --bind /scratch/data:/data:ro"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binds_are_read_as_they_are_written() {
        let read = |text: &str| bind(&OsString::from(text));
        let mount = |from: &str, target: &str, read_only| Mount {
            target: target.into(),
            what: What::Bind { from: from.into(), read_only },
        };
        assert_eq!(read("/proc").expect("a bind"), mount("/proc", "/proc", false));
        assert_eq!(read("/proc:ro").expect("a bind"), mount("/proc", "/proc", true));
        assert_eq!(read("/proc:/p:rw").expect("a bind"), mount("/proc", "/p", false));
        assert_eq!(read("/proc/../proc:/p:ro").expect("a bind"), mount("/proc", "/p", true));
        assert_eq!(read("/proc:p").expect_err("relative").code(), 2);
        assert!(read("/no/such/place").expect_err("missing").message.contains("/no/such/place"));
    }

    #[test]
    fn system_directories_stay_the_image_s() {
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
        let bind = |from: &str, target: &str| Mount {
            target: at(target),
            what: What::Bind { from: at(from), read_only: true },
        };
        let same = |path: &str| bind(path, path);
        let sight = |told: &str, mounts: &[Mount]| {
            let directory = Directory { told: at(told), real: fs::canonicalize(at(told)).expect("it") };
            directory.among(&mounts.iter().collect::<Vec<_>>())
        };
        let needs = |path: &str| Sight::Needs(of_host(&at(path), false).expect("it"));
        for (told, mounts, expected) in [
            ("home/project", vec![], needs("home/project")),
            ("home/project", vec![same("home/project/")], Sight::Shown),
            ("home/project", vec![same(""), bind("other", "home")], Sight::Hidden),
            ("home/project", vec![bind("other", "home"), same("home/project")], Sight::Shown),
            ("home/project", vec![same("home/project"), bind("other", "home")], Sight::Hidden),
            ("home", vec![bind("other", "home/project")], needs("home")),
            ("home/link", vec![], needs("home/link")),
            ("home/link", vec![same("home")], needs("far/data")),
            ("home/link", vec![same("home"), same("far")], Sight::Shown),
            ("home/link", vec![same("home"), bind("other", "far/data")], Sight::Hidden),
        ] {
            assert_eq!(sight(told, &mounts), expected, "{told}: {mounts:?}");
        }
    }
}
