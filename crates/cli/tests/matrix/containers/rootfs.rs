//! A small system, made of this machine's own programs.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::test_user::TestUser;

const PROGRAMS: [&str; 19] = [
    "sh",
    "cat",
    "ls",
    "id",
    "env",
    "pwd",
    "echo",
    "true",
    "touch",
    "mkdir",
    "rm",
    "sleep",
    "wc",
    "grep",
    "kill",
    "head",
    "dd",
    "sha256sum",
    "cut",
];

pub(crate) struct Rootfs(PathBuf);

impl Rootfs {
    pub(crate) fn new(at: &Path) -> Rootfs {
        let root = Rootfs(at.to_owned());
        root.add_programs(&PROGRAMS);
        root.write("/made-for-this-test", "a system\n", 0o644);
        root.write("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n", 0o644);
        root
    }

    /// Copies programs of this machine, with the libraries that they need.
    pub(crate) fn add_programs(&self, names: &[&str]) {
        for name in names {
            let program = found(name).unwrap_or_else(|| panic!("this machine has no {name}"));
            self.add(&program, &Path::new("/bin").join(name));
        }
    }

    /// Copies a program of this machine to a place, with the libraries that it needs.
    pub(crate) fn add(&self, program: &Path, to: &Path) {
        self.copy(program, to);
        for library in needed(program)
            .iter()
            .filter(|library| !self.0.join(library.strip_prefix("/").expect("absolute")).exists())
        {
            self.copy(library, library);
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn place(&self, path: &Path) -> PathBuf {
        let place = self.0.join(path.strip_prefix("/").expect("an absolute path"));
        fs::create_dir_all(place.parent().expect("a folder")).expect("a folder");
        place
    }

    fn copy(&self, from: &Path, to: &Path) {
        let place = self.place(to);
        fs::copy(from, &place).unwrap_or_else(|error| panic!("copying {}: {error}", from.display()));
        fs::set_permissions(place, Permissions::from_mode(0o755)).expect("a mode");
    }

    pub(crate) fn write(&self, path: &str, text: &str, mode: u32) {
        let place = self.place(Path::new(path));
        fs::write(&place, text).expect("a file");
        fs::set_permissions(place, Permissions::from_mode(mode)).expect("a mode");
    }

    /// Writes the configuration of a container image into it.
    pub(crate) fn configure(&self, json: &str) {
        self.write("/.esker/config.json", json, 0o644);
    }

    pub(crate) fn give_to(&self, person: TestUser) {
        let all = self.listing().into_iter().map(|path| self.0.join(path)).chain([self.0.clone()]);
        for path in all {
            std::os::unix::fs::lchown(&path, Some(person.uid), Some(person.gid)).expect("giving a file away");
        }
    }

    /// Returns all paths in it.
    pub(crate) fn listing(&self) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        let mut left = vec![self.0.clone()];
        while let Some(folder) = left.pop() {
            for entry in fs::read_dir(folder).expect("a folder") {
                let entry = entry.expect("an entry");
                if entry.file_type().expect("a type").is_dir() {
                    left.push(entry.path());
                }
                found.insert(entry.path().strip_prefix(&self.0).expect("below").to_owned());
            }
        }
        found
    }
}

/// Returns where this machine has a program.
pub(crate) fn found(name: &str) -> Option<PathBuf> {
    let search = std::env::var_os("PATH").expect("PATH");
    let usual = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&search).chain(usual).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Returns the libraries of a program, and its loader.
fn needed(program: &Path) -> BTreeSet<PathBuf> {
    let output = Command::new("ldd").arg(program).output().expect("running ldd");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}
