//! Holds the files of a source in memory, as if they were in `/etc/cvmfs` and `/etc/esker` of a machine.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use esker_config::{Files, Probe, read_file};
use esker_format::name::RepositoryName;
use esker_publish::{ArchiveLimits, files_of_archive};

use super::Scope;
use crate::error::{Context, Failure, Kind};

/// Maximum size of a source file or archive in bytes.
pub(super) const SOURCE_MAX: u64 = 16 << 20;
/// Longest single file of configuration, or key.
const FILE_MAX: u64 = 256 << 10;
/// Maximum total size of the relevant files in bytes.
const ALL_MAX: u64 = 8 << 20;
/// Maximum number of relevant files.
const FILES_MAX: usize = 2000;
/// Maximum number of members of an archive; whole software repositories are packed with their configuration.
const MEMBERS_MAX: usize = 50_000;
const PLAIN_MAX: u64 = 256 << 20;
/// Greatest depth of folders with keys.
const DEPTH_MAX: usize = 4;

/// Description of valid sources.
pub(crate) const WANTED: &str = "a source is a configuration repository, a folder or a tar archive with domain.d/*.conf \
     and keys/ in it, or a file DOMAIN.conf or DOMAIN.toml";

/// Folders of a source that contain its files.
const FOLDERS: [&str; 4] = ["default.d", "domain.d", "config.d", "keys"];

/// The files of a source, by their paths below its folder of configuration.
pub(crate) struct Tree {
    source: String,
    files: BTreeMap<String, Vec<u8>>,
    /// A single file of this machine: the keys that it names are files of this machine as well.
    beside: Option<PathBuf>,
}

impl Tree {
    /// Returns the source as the user named it.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Reads a folder of this machine: a configuration repository, or the folder with its files.
    pub(super) fn of_folder(folder: &Path) -> Result<Self, Failure> {
        let source = folder.display().to_string();
        let roots = [folder.join("etc/cvmfs"), folder.join("etc/esker"), folder.to_owned()];
        let is_root = |root: &&PathBuf| FOLDERS[1..].iter().any(|name| root.join(name).is_dir());
        let root = roots
            .iter()
            .find(is_root)
            .ok_or_else(|| Failure::usage(format!("{source} has no configuration in it")).hint(WANTED))?;
        let root = fs::canonicalize(root).context(Kind::Usage, format!("can't read {source}"))?;
        let mut tree = Self { source, files: BTreeMap::new(), beside: None };
        tree.add_folder(&root, "", 0)?;
        Ok(tree)
    }

    fn add_folder(&mut self, root: &Path, below: &str, depth: usize) -> Result<(), Failure> {
        let folder = root.join(below);
        let failed =
            |path: &Path, error: io::Error| Failure::usage(format!("can't read {}: {error}", path.display()));
        let mut names = Vec::new();
        for entry in fs::read_dir(&folder).map_err(|error| failed(&folder, error))? {
            names.extend(entry.map_err(|error| failed(&folder, error))?.file_name().into_string());
        }
        names.sort();
        for name in names {
            let inner = if below.is_empty() { name } else { format!("{below}/{name}") };
            let path = root.join(&inner);
            let enters = (depth > 0 || FOLDERS.contains(&inner.as_str())) && depth < DEPTH_MAX;
            // A link may be to another file of the source, and to nothing else of this machine.
            let Ok(real) = fs::canonicalize(&path) else { continue };
            let is_folder = real.is_dir();
            if !(is_folder && enters || !is_folder && is_wanted(&inner)) {
                continue;
            }
            if !real.starts_with(root) {
                return Err(Failure::usage(format!("{} leads out of {}", path.display(), root.display()))
                    .hint("put the file itself there"));
            }
            if is_folder {
                self.add_folder(root, &inner, depth + 1)?;
            } else {
                let bytes = read_file(&real, FILE_MAX).map_err(|error| failed(&path, error))?;
                self.files.insert(inner, bytes);
                self.check_size()?;
            }
        }
        Ok(())
    }

    fn check_size(&self) -> Result<(), Failure> {
        if let Some(path) = self.files.keys().find(|path| path.contains(char::is_control)) {
            let message = format!("{} has a file with a name that can't be shown: {path:?}", self.source);
            return Err(Failure::usage(message));
        }
        let bytes: usize = self.files.values().map(Vec::len).sum();
        if self.files.len() > FILES_MAX || bytes as u64 > ALL_MAX {
            let message = format!("{} has more files than a configuration has", self.source);
            return Err(Failure::usage(message).hint(WANTED));
        }
        Ok(())
    }

    /// Reads an archive, or a single configuration file for `name` or its own name.
    pub(super) fn of_bytes(
        source: &str,
        path: &Path,
        bytes: Vec<u8>,
        name: Option<String>,
        beside: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let mut tree = Self { source: source.to_owned(), files: BTreeMap::new(), beside };
        let text = |part: Option<&std::ffi::OsStr>| {
            part.and_then(|part| part.to_str()).unwrap_or_default().to_owned()
        };
        let kind = text(path.extension());
        if matches!(kind.as_str(), "conf" | "local" | "toml") {
            let kind = if kind == "toml" { "toml" } else { "conf" };
            let name = name.unwrap_or_else(|| text(path.file_stem()));
            check_name(&name)
                .map_err(|failure| failure.hint("give its domain: `esker setup import FILE DOMAIN`"))?;
            if bytes.len() as u64 > FILE_MAX {
                return Err(Failure::usage(format!("{source} has more than {FILE_MAX} bytes")));
            }
            // Both are read; which of them it is, its servers will say.
            tree.files.insert(format!("domain.d/{name}.{kind}"), bytes);
            return Ok(tree);
        }
        let limits = ArchiveLimits { plain: PLAIN_MAX, members: MEMBERS_MAX, file: FILE_MAX, taken: ALL_MAX };
        let files = files_of_archive(&bytes, limits, is_wanted).map_err(|error| {
            Failure::usage(format!("{source}: {}", crate::error::chain(&error))).hint(WANTED)
        })?;
        let root = root_of(files.keys())
            .ok_or_else(|| Failure::usage(format!("{source} has no configuration in it")).hint(WANTED))?;
        let below = |path: &str| path.strip_prefix(&root).map(str::to_owned);
        tree.files = files.into_iter().filter_map(|(path, bytes)| Some((below(&path)?, bytes))).collect();
        tree.check_size()?;
        Ok(tree)
    }

    /// Returns the domains and repositories that it has files for.
    pub(super) fn scopes(&self) -> Vec<Scope> {
        let mut found = Vec::new();
        for (folder, of) in
            [("domain.d/", Scope::Domain as fn(String) -> Scope), ("config.d/", Scope::Repository)]
        {
            for path in self.files.keys() {
                let name = path.strip_prefix(folder).and_then(|file| file.rsplit_once('.'));
                let Some((name, "conf" | "local" | "toml")) = name else { continue };
                let scope = of(name.to_owned());
                if check_name(name).is_ok() && !found.contains(&scope) {
                    found.push(scope);
                }
            }
        }
        found
    }

    /// Returns the public keys at a path of the configuration, with their places: a file, or a folder of files.
    pub(super) fn keys(&self, path: &Path, domain: &str) -> io::Result<Vec<(String, Vec<u8>)>> {
        if let Some(inner) = inside(path) {
            if let Some(bytes) = self.files.get(&inner) {
                return Ok(vec![(inner, bytes.clone())]);
            }
            let of = |folder: String| -> Vec<(String, Vec<u8>)> {
                let all = self.files.iter().filter(|(path, _)| path.ends_with(".pub"));
                let within =
                    all.filter(|(path, _)| path.rsplit_once('/').is_some_and(|(parent, _)| parent == folder));
                within.map(|(path, bytes)| (path.clone(), bytes.clone())).collect()
            };
            let own = format!("{inner}/{domain}.pub");
            let found = [
                of(format!("{inner}/{domain}")),
                self.files.get(&own).map(|bytes| (own.clone(), bytes.clone())).into_iter().collect(),
                of(inner),
            ];
            if let Some(found) = found.into_iter().find(|found| !found.is_empty()) {
                return Ok(found);
            }
        }
        match &self.beside {
            Some(_) if path.is_absolute() => {
                Ok(vec![(path.display().to_string(), read_file(path, FILE_MAX)?)])
            }
            _ => Err(io::Error::new(io::ErrorKind::NotFound, "it is not in the source")),
        }
    }
}

fn check_name(name: &str) -> Result<(), Failure> {
    RepositoryName::parse(name)
        .map(drop)
        .context(Kind::Usage, format!("{name:?} can't be the name of a domain"))
}

/// True if a file can be relevant, by its name.
fn is_wanted(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let kind = name.rsplit_once('.').map_or("", |(_, kind)| kind);
    matches!(kind, "conf" | "local" | "pub" | "toml") && !name.starts_with('.')
}

/// Returns the configuration folder among the paths of an archive, with a slash at its end. That is the folder
/// nearest to the root; among equals, the one with the name that it has on a machine.
fn root_of<'p>(paths: impl Iterator<Item = &'p String>) -> Option<String> {
    let mut roots: Vec<&str> = Vec::new();
    for path in paths {
        for folder in &FOLDERS[1..] {
            let whole = format!("/{path}");
            if let Some(at) = whole.find(&format!("/{folder}/")) {
                roots.push(&path[..at]);
            }
        }
    }
    let nearest = roots.into_iter().min_by_key(|root| {
        let is_named = ["etc/cvmfs/", "etc/esker/"].iter().any(|name| root.ends_with(name));
        (root.matches('/').count(), !is_named, root.len())
    })?;
    Some(nearest.to_owned())
}

/// Returns the part of a path below a configuration folder, wherever that is.
fn inside(path: &Path) -> Option<String> {
    let text = path.to_str()?;
    let inner = ["/etc/cvmfs/", "/etc/esker/"]
        .iter()
        .filter_map(|folder| text.rfind(folder).map(|at| &text[at + folder.len()..]))
        .min_by_key(|inner| inner.len())?;
    let plain = Path::new(inner).components().all(|part| matches!(part, Component::Normal(_)));
    plain.then(|| inner.trim_matches('/').to_owned())
}

impl Files for Tree {
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let bytes = inside(path).and_then(|inner| self.files.get(&inner)).ok_or(io::ErrorKind::NotFound)?;
        if bytes.len() as u64 > limit {
            return Err(io::Error::other(format!("it has more than {limit} bytes")));
        }
        Ok(bytes.clone())
    }

    /// Returns true: nothing of this machine is in it.
    fn is_public(&self, _: &Path) -> io::Result<bool> {
        Ok(true)
    }

    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        // The configuration repository that a source may name is not looked into.
        let own = ["/etc/cvmfs/", "/etc/esker/"].iter().find_map(|own| folder.to_str()?.strip_prefix(own));
        let own = own.ok_or(io::ErrorKind::NotFound)?;
        let file = |path: &String| Some(path.strip_prefix(own)?.strip_prefix('/')?.to_owned());
        Ok(self.files.keys().filter_map(file).filter(|name| !name.contains('/')).collect())
    }

    fn probe(&self, path: &Path, probe: Probe) -> bool {
        let Some(inner) = inside(path) else { return false };
        let file = self.files.get(&inner);
        let folder = || {
            self.files.keys().any(|path| path.strip_prefix(&inner).is_some_and(|rest| rest.starts_with('/')))
        };
        match probe {
            Probe::File | Probe::Readable => file.is_some(),
            Probe::NotEmpty => file.is_some_and(|bytes| !bytes.is_empty()),
            Probe::Folder => folder(),
            Probe::Exists => file.is_some() || folder(),
            Probe::Link | Probe::Writable | Probe::Executable => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_an_archive_is_found() {
        let root =
            |paths: &[&str]| root_of(paths.iter().map(|path| path.to_string()).collect::<Vec<_>>().iter());
        assert_eq!(root(&["domain.d/a.conf"]), Some(String::new()));
        let deep = ["x-1.0/test/deep/domain.d/z.conf", "x-1.0/etc/cvmfs/keys/a.pub", "x-1.0/README.conf"];
        assert_eq!(root(&deep), Some("x-1.0/etc/cvmfs/".into()));
        assert_eq!(root(&["mydomain.d/a.conf", "keys.pub"]), None);
    }

    #[test]
    fn paths_of_a_configuration_are_found_below_any_folder() {
        let inside = |path: &str| inside(Path::new(path));
        assert_eq!(inside("/etc/cvmfs/keys/a.pub"), Some("keys/a.pub".into()));
        assert_eq!(inside("/cvmfs/config.test/etc/cvmfs/keys/"), Some("keys".into()));
        assert_eq!(inside("/etc/cvmfs/../shadow"), None);
        assert_eq!(inside("/etc/shadow"), None);
    }
}
