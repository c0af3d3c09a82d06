//! Resolves paths as a program inside the image would.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{PROC_SUPER_MAGIC, statfs};

/// Limit of links, as in Linux.
const LINKS: usize = 40;

/// Resolves `path` below `root`, as if `root` were the root directory: absolute links start there and `..` ends there.
/// A missing path is returned too, with its links resolved as far as it exists.
pub(crate) fn within(root: &Path, path: &Path) -> io::Result<PathBuf> {
    walk(root, path, |_| Ok(()))
}

/// Fails if a link of `/proc` that leads to an open file, the program or the root of a process is on the way to a path.
/// Such a link leads out of a container if the process still has something of the host.
pub(crate) fn without_process_links(path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let refuse = |link: &Path| {
        let is_plain = link.file_name().is_some_and(|name| name == "self" || name == "thread-self");
        let folder = link.parent().unwrap_or(link);
        let is_of_processes = statfs(folder).is_ok_and(|facts| facts.f_type == PROC_SUPER_MAGIC);
        if is_of_processes && !is_plain {
            let text =
                format!("{} is a link of a process, which may lead out of the container", link.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(())
    };
    walk(Path::new("/"), &path, refuse).map(drop)
}

/// Resolves `path` below `root`; `check` is called with each link on the way.
fn walk(root: &Path, path: &Path, check: impl Fn(&Path) -> io::Result<()>) -> io::Result<PathBuf> {
    let mut found = root.to_owned();
    let mut depth = 0usize;
    let mut links = 0;
    let mut left: VecDeque<OsString> = VecDeque::new();
    push_front(&mut left, path);
    while let Some(name) = left.pop_front() {
        if name == ".." {
            if depth > 0 {
                found.pop();
                depth -= 1;
            }
            continue;
        }
        let next = found.join(&name);
        let is_link = fs::symlink_metadata(&next).is_ok_and(|meta| meta.is_symlink());
        if !is_link {
            found = next;
            depth += 1;
            continue;
        }
        check(&next)?;
        links += 1;
        if links > LINKS {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        let target = fs::read_link(&next)?;
        if target.is_absolute() {
            found = root.to_owned();
            depth = 0;
        }
        push_front(&mut left, &target);
    }
    Ok(found)
}

fn push_front(left: &mut VecDeque<OsString>, path: &Path) {
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => left.push_front(name.to_owned()),
            Component::ParentDir => left.push_front("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_stay_within_the_root() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        fs::create_dir_all(root.join("run/inner")).expect("a folder");
        fs::create_dir(root.join("var")).expect("a folder");
        symlink("/run", root.join("var/run")).expect("a link");
        symlink("../../../../run/stub", root.join("var/dangling")).expect("a link");
        symlink("loop", root.join("loop")).expect("a link");
        let within = |path: &str| within(root, Path::new(path));
        let found =
            |path: &str| within(path).expect("resolved").strip_prefix(root).expect("within").to_owned();
        assert_eq!(found("/var/run/inner/new"), Path::new("run/inner/new"));
        assert_eq!(found("/var/dangling"), Path::new("run/stub"));
        assert_eq!(found("/../../etc/./passwd"), Path::new("etc/passwd"));
        assert_eq!(found("/missing/../run"), Path::new("run"));
        assert_eq!(found("/"), Path::new(""));
        assert!(without_process_links(Path::new("/proc/self/../self/status")).is_ok());
        for link in ["/proc/self/exe", "/proc/thread-self/cwd/bin", "/proc/self/fd/0"] {
            assert!(without_process_links(Path::new(link)).is_err(), "{link}");
        }
        symlink("/proc/self/cwd/x", root.join("var/out")).expect("a link");
        assert!(without_process_links(&root.join("var/out")).is_err());
        assert_eq!(within("/loop").expect_err("a loop").raw_os_error(), Some(libc::ELOOP));
    }
}
