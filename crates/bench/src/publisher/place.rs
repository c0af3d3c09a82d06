//! A repository of Esker for a measurement.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::packages::Packages;
use crate::measure::{self, Cost};
use crate::tree_size::size;

/// Name of the repository.
pub(super) const NAME: &str = "publisher.bench.test";

/// Lines of the log that an error quotes.
const QUOTED: usize = 20;

/// A repository with its keys, and the commands of Esker for it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    esker: PathBuf,
    /// Folder of the storage, which has the repository below its name.
    pub(super) storage: PathBuf,
    keys: PathBuf,
    /// Folder for everything else.
    pub(super) scratch: PathBuf,
}

impl Place {
    /// Returns a repository below a folder, not made yet.
    pub(super) fn new(esker: &Path, folder: &Path) -> Self {
        Self {
            esker: esker.to_owned(),
            storage: folder.join("www"),
            keys: folder.join("keys"),
            scratch: folder.to_owned(),
        }
    }

    /// Creates the repository with these options of `esker repo create`.
    pub(super) fn create(&self, options: &[&str]) -> Result<()> {
        let mut create = self.command(&["repo", "create", NAME])?;
        create.args(options);
        self.run(create).map(|_| ())
    }

    /// Returns a command of Esker for the repository.
    pub(super) fn command(&self, words: &[&str]) -> Result<Command> {
        let mut command = self.logged(Command::new(&self.esker))?;
        command.args(words).arg("--storage").arg(&self.storage).arg("--keys").arg(&self.keys);
        // The cache of this user may have anything in it.
        command.env("ESKER_CACHE", self.scratch.join("cache"));
        Ok(command)
    }

    /// Returns a transaction that runs a script of `sh` in a directory, as root or not.
    pub(super) fn transaction(&self, directory: &str, script: &str) -> Result<Command> {
        let mut command = self.command(&["transaction", NAME, directory, "--create", "--quiet"])?;
        command.arg("--transactions").arg(self.scratch.join("transactions"));
        command.args(["--", "sh", "-ec", script]);
        Ok(command)
    }

    /// Returns a command that ingests an archive at the top.
    pub(super) fn ingest(&self, archive: &Path) -> Result<Command> {
        let mut command = self.command(&["ingest", NAME, "--to", "/", "--quiet"])?;
        command.arg(archive);
        Ok(command)
    }

    /// Publishes packages, and returns the path of their archive.
    pub(super) fn publish(&self, packages: &Packages) -> Result<PathBuf> {
        let archive = self.scratch.join("tree.tar");
        packages.write(&archive)?;
        self.run(self.ingest(&archive)?)?;
        Ok(archive)
    }

    /// Returns a check of the head that looks for all objects and reads none.
    pub(super) fn check(&self) -> Result<Command> {
        let mut command = self.logged(Command::new(&self.esker))?;
        command.arg("check").arg(self.root()).arg("--quiet").arg("--public-key").arg(self.public_key());
        Ok(command)
    }

    /// Adds the errors of a command to the log.
    pub(super) fn logged(&self, mut command: Command) -> Result<Command> {
        let path = self.log();
        let log = File::options().create(true).append(true).open(&path);
        command.stderr(Stdio::from(log.with_context(|| format!("can't write {}", path.display()))?));
        Ok(command)
    }

    /// Runs a logged command; a failure quotes the log.
    pub(super) fn run(&self, command: Command) -> Result<Cost> {
        measure::run(command).with_context(|| {
            let log = fs::read(self.log()).unwrap_or_default();
            let log = String::from_utf8_lossy(&log).into_owned();
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(QUOTED)..].join("\n")
        })
    }

    fn log(&self) -> PathBuf {
        self.scratch.join("log")
    }

    /// Returns the folder of the repository.
    pub(super) fn root(&self) -> PathBuf {
        self.storage.join(NAME)
    }

    pub(super) fn key(&self, ending: &str) -> PathBuf {
        self.keys.join(format!("{NAME}.{ending}"))
    }

    pub(super) fn public_key(&self) -> PathBuf {
        self.key("pub")
    }

    /// Returns the number of stored objects, and their bytes.
    pub(super) fn objects(&self) -> Result<(u64, u64)> {
        size(&self.root().join("data"))
    }

    /// Returns a field of the head by its letter.
    pub(super) fn field(&self, letter: char) -> Result<Option<String>> {
        let path = self.root().join(".cvmfspublished");
        let head = fs::read(&path).with_context(|| format!("can't read {}", path.display()))?;
        let text = String::from_utf8_lossy(&head).into_owned();
        let mut lines = text.lines().take_while(|line| *line != "--");
        Ok(lines.find_map(|line| line.strip_prefix(letter).map(str::to_owned)))
    }

    /// Copies the repository below another folder. The copy shares the objects, which never change, as hard links.
    pub(super) fn copy(&self, folder: &Path) -> Result<Place> {
        let copy = Place { keys: self.keys.clone(), ..Place::new(&self.esker, folder) };
        fs::create_dir_all(copy.root()).with_context(|| format!("can't make {}", copy.root().display()))?;
        for entry in fs::read_dir(self.root())? {
            let entry = entry?;
            let mut command = self.logged(Command::new("cp"))?;
            command.arg(if entry.file_name() == "data" { "-al" } else { "-a" });
            command.arg(entry.path()).arg(copy.root());
            self.run(command)?;
        }
        Ok(copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_head_end_at_the_signature() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = Place::new(Path::new("esker"), folder.path());
        fs::create_dir_all(place.root()).expect("a folder");
        fs::write(place.root().join(".cvmfspublished"), b"Cabc\nGyes\n--\nYnone\n\xff").expect("a head");
        assert_eq!(place.field('C').expect("a head").as_deref(), Some("abc"));
        assert_eq!(place.field('Y').expect("a head"), None);
    }

    #[test]
    fn a_copy_shares_objects_and_nothing_else() {
        use std::os::unix::fs::MetadataExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let place = Place::new(Path::new("esker"), folder.path());
        fs::create_dir_all(place.root().join("data/ab")).expect("a folder");
        fs::write(place.root().join("data/ab/c"), b"object").expect("a file");
        fs::write(place.root().join("head"), b"head").expect("a file");
        let copy = place.copy(&folder.path().join("copy")).expect("a copy");
        let links = |file: &str| copy.root().join(file).metadata().expect("a file").nlink();
        assert_eq!((links("data/ab/c"), links("head")), (2, 1));
        assert_eq!(copy.objects().expect("a count"), (1, 6));
    }

    #[test]
    fn a_failure_quotes_the_log() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = Place::new(Path::new("esker"), folder.path());
        let command = place.logged(measure::shell("echo the reason >&2; exit 1")).expect("a log");
        let error = place.run(command).expect_err("it failed");
        assert!(format!("{error:#}").contains("the reason"), "{error:#}");
    }
}
