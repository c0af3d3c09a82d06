//! Commands of the reference implementation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::place::{NAME, Place};
use crate::measure::Cost;

/// Folder in which the reference's publisher writes statistics, unless a changed build has another one.
const STATISTICS: &str = "/var/spool/cvmfs";

/// A build of the reference implementation.
#[derive(Debug)]
pub(super) struct Reference {
    build: PathBuf,
    /// Folder of the statistics about the repository.
    statistics: PathBuf,
    is_made: bool,
}

impl Reference {
    /// Opens the folder in which CernVM-FS was compiled.
    pub(super) fn open(build: &Path) -> Result<Self> {
        let build = build.canonicalize().with_context(|| format!("can't find {}", build.display()))?;
        for program in ["cvmfs2", "cvmfs_swissknife"] {
            let path = build.join(program);
            ensure!(path.is_file(), "{} is missing: build CernVM-FS there first", path.display());
        }
        ensure!(
            rustix::process::geteuid().is_root(),
            "the reference's publisher needs root; leave --reference out to measure only Esker"
        );
        let folder = std::env::var_os("REF_STATS_DIR").map_or_else(|| STATISTICS.into(), PathBuf::from);
        let statistics = folder.join(NAME);
        let is_made = !statistics.exists();
        fs::create_dir_all(&statistics).with_context(|| format!("can't make {}", statistics.display()))?;
        Ok(Self { build, statistics, is_made })
    }

    /// Returns the version, as the reference reports it.
    pub(super) fn version(&self) -> Result<String> {
        let output =
            self.program("cvmfs_swissknife").arg("version").output().context("can't start the reference")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(format!("reference: {}", text.lines().next().unwrap_or("version unknown").trim()))
    }

    pub(super) fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.build.join(name));
        for variable in ["LD_LIBRARY_PATH", "CVMFS_LIBRARY_PATH"] {
            command.env(variable, &self.build);
        }
        command.env("LC_ALL", "C");
        command
    }

    /// Returns a command of `cvmfs_swissknife`.
    pub(super) fn knife(&self, place: &Place, words: &[&str]) -> Result<Command> {
        let mut command = place.logged(self.program("cvmfs_swissknife"))?;
        command.args(words).current_dir(&place.scratch);
        Ok(command)
    }

    /// Checks the head: all catalogs, and that each object exists.
    pub(super) fn check(&self, place: &Place) -> Result<Cost> {
        let mut command = self.knife(place, &["check", "-c", "-N", NAME])?;
        command.arg("-r").arg(place.root()).arg("-k").arg(place.public_key());
        command.arg("-t").arg(temporary(place)?).arg("-R").arg(reflog_checksum(place)?);
        place.run(command)
    }

    /// Collects objects that only revisions before the newest `kept` name.
    pub(super) fn collect(&self, place: &Place, kept: usize) -> Result<Cost> {
        let mut command = self.knife(place, &["gc", "-n", NAME, "-h", &kept.to_string()])?;
        command.arg("-r").arg(format!("file://{}", place.root().display())).arg("-u").arg(storage(place));
        command.arg("-k").arg(place.public_key());
        command.arg("-t").arg(temporary(place)?).arg("-R").arg(reflog_checksum(place)?);
        place.run(command)
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        if self.is_made {
            // Statistics that can't be removed harm no measurement.
            let _ = fs::remove_dir_all(&self.statistics);
        }
    }
}

/// Returns the storage as the reference names it.
pub(super) fn storage(place: &Place) -> String {
    let root = place.root();
    format!("local,{0}/data/txn,{0}", root.display())
}

/// Makes a folder for temporary files of the reference.
pub(super) fn temporary(place: &Place) -> Result<PathBuf> {
    let folder = place.scratch.join("tmp");
    fs::create_dir_all(&folder).with_context(|| format!("can't make {}", folder.display()))?;
    Ok(folder)
}

/// Writes the checksum of the reflog as the reference keeps it, outside of the repository.
pub(super) fn reflog_checksum(place: &Place) -> Result<PathBuf> {
    let path = place.scratch.join("reflog.chksum");
    let checksum = place.field('Y')?.context("the head names no reflog")?;
    fs::write(&path, checksum).with_context(|| format!("can't write {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_build_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = Reference::open(folder.path()).expect_err("it is empty");
        assert!(error.to_string().contains("cvmfs2 is missing"), "{error}");
    }
}
