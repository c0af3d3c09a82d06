//! Finds the folders in which a path can be made to lead to something else.
//!
//! A rule of Landlock holds a file or folder, not a name. What is exchanged later is covered only by a rule for a folder
//! around both the old and the new one:
//!
//! ```text
//!   a file or folder that is replaced by a rename        the folder that has its name
//!   live/cert.pem -> ../archive/cert1.pem                live/ and archive/
//!   tls.crt -> ..data/tls.crt, ..data -> ..2026_1/       the folder of these links, which has ..2026_2/ later
//! ```

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

/// Folders that hold what belongs to many programs and users. They are not opened for the sake of one entry.
const OF_MANY: [&str; 21] = [
    "/",
    "/dev",
    "/dev/shm",
    "/etc",
    "/etc/cvmfs",
    "/etc/esker",
    "/etc/grid-security",
    "/etc/pki",
    "/etc/ssh",
    "/etc/ssl",
    "/home",
    "/root",
    "/run",
    "/run/user",
    "/tmp",
    "/usr",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/spool",
    "/var/tmp",
];

/// Maximum number of links in one path, as in the kernel.
const LINKS_MAX: usize = 40;

/// Returns the folders in which one of the paths can be exchanged, but for those of many programs and the `private` ones.
pub(crate) fn folders<'p>(paths: impl Iterator<Item = &'p Path>, private: &[PathBuf]) -> BTreeSet<PathBuf> {
    let private: Vec<PathBuf> = private.iter().filter_map(|folder| folder.canonicalize().ok()).collect();
    let mut found = Found::default();
    for path in paths.filter_map(|path| std::path::absolute(path).ok()) {
        found.links = 0;
        let end = found.resolve(PathBuf::from("/"), &path);
        found.add_around(&end);
    }
    let is_of_many = |folder: &Path| {
        OF_MANY.iter().any(|many| folder == Path::new(many))
            || folder.parent() == Some(Path::new("/home"))
            || private.iter().any(|private| private.starts_with(folder))
    };
    found.folders.retain(|folder| !is_of_many(folder));
    found.folders
}

/// Folders that were found, and the links that led there.
#[derive(Default)]
struct Found {
    folders: BTreeSet<PathBuf>,
    links: usize,
}

impl Found {
    /// Returns where a path leads from a folder without links, and notes the folders around all links on its way.
    fn resolve(&mut self, from: PathBuf, path: &Path) -> PathBuf {
        let mut at = from;
        for part in path.components() {
            match part {
                Component::RootDir | Component::Prefix(_) => at = PathBuf::from("/"),
                Component::CurDir => {}
                Component::ParentDir => _ = at.pop(),
                Component::Normal(name) => {
                    let entry = at.join(name);
                    match entry.read_link() {
                        Ok(target) if self.links < LINKS_MAX => {
                            self.links += 1;
                            self.folders.insert(at.clone());
                            at = self.resolve(at, &target);
                            self.add_around(&at);
                        }
                        _ => at = entry,
                    }
                }
            }
        }
        at
    }

    fn add_around(&mut self, path: &Path) {
        self.folders.extend(path.parent().map(Path::to_owned));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn around(folder: &Path, path: &str, private: &[&str]) -> Vec<String> {
        let private: Vec<PathBuf> = private.iter().map(|name| folder.join(name)).collect();
        let found = folders(std::iter::once(folder.join(path).as_path()), &private);
        let below = |path: &PathBuf| path.strip_prefix(folder).ok()?.to_str().map(str::to_owned);
        found.iter().filter_map(below).collect()
    }

    #[test]
    fn folders_around_each_link_and_its_target_are_found() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().canonicalize().unwrap();
        for name in ["live/site", "archive/site", "secret/..2026_1", "disks/one/store", "plain"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        symlink("../../archive/site/cert1.pem", folder.join("live/site/cert.pem")).unwrap();
        symlink("..2026_1", folder.join("secret/..data")).unwrap();
        symlink("..data/tls.crt", folder.join("secret/tls.crt")).unwrap();
        symlink(folder.join("disks/one/store"), folder.join("plain/store")).unwrap();
        for path in ["archive/site/cert1.pem", "secret/..2026_1/tls.crt", "plain/file"] {
            fs::write(folder.join(path), "x").unwrap();
        }
        assert_eq!(around(&folder, "plain/file", &[]), ["plain"]);
        assert_eq!(around(&folder, "live/site/cert.pem", &[]), ["archive/site", "live/site"]);
        assert_eq!(around(&folder, "secret/tls.crt", &[]), ["secret", "secret/..2026_1"]);
        assert_eq!(around(&folder, "plain/store", &[]), ["disks/one", "plain"]);
        // A path that does not exist yet counts as well.
        assert_eq!(around(&folder, "plain/later/file", &[]), ["plain/later"]);
        assert_eq!(around(&folder, "plain/later", &["plain"]), [""; 0]);
        symlink("loop", folder.join("loop")).unwrap();
        assert_eq!(around(&folder, "loop", &[]), [""]);
    }

    #[test]
    fn folders_of_many_are_not_opened() {
        let found = |path: &str| folders(std::iter::once(Path::new(path)), &[]);
        let homes = ["a", "a/store"].map(|path| format!("{}/{path}", "/home"));
        let others = ["/no-such", "/var/lib/no-such", "/tmp/no-such"].map(str::to_owned);
        for path in homes.iter().chain(&others) {
            assert!(found(path).is_empty(), "{path}: {:?}", found(path));
        }
        assert_eq!(found("/srv/no-such"), [PathBuf::from("/srv")].into());
    }
}
