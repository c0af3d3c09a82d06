//! Prepares a repository in which the measured tree is a small part, with other versions and packages.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::fs::{Timespec, Timestamps};
use serde::Serialize;

use crate::measure;
use crate::tree_size::size;
use esker_testkit::soak::Random;

/// Interval of the changes in a file, in bytes: smaller than a chunk, so that every chunk differs.
const PIECE: usize = 64 << 10;

/// Bytes changed per piece. Too few to matter for its compressed size.
const CHANGE: usize = 8;

/// Options of the preparation.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Tree to measure.
    pub tree: PathBuf,
    /// Versions in the repository, the tree itself included.
    pub versions: usize,
    /// Number of the version that equals the tree, from 1.
    pub original: usize,
    /// Further folders to publish.
    pub packages: Vec<PathBuf>,
    /// Rules for `.cvmfsdirtab` that select directories with catalogs of their own.
    pub nested: Vec<String>,
    /// Name of the repository.
    pub name: String,
    /// Output folder of the repository, with subfolders `repo` and `keys`.
    pub out: PathBuf,
    /// Path of the `esker` binary.
    pub esker: PathBuf,
    /// Folder for the temporary files of one version.
    pub scratch: PathBuf,
    /// Folder that keeps all versions as directories, named as in the repository.
    pub directories: Option<PathBuf>,
}

/// Facts of the prepared repository.
#[derive(Clone, Debug, Serialize)]
pub struct Prepared {
    /// Path of the tree itself in the repository.
    pub inside: String,
    /// Bytes of files of the tree.
    pub tree_bytes: u64,
    /// Stored bytes of the repository.
    pub stored: u64,
    /// Stored bytes that the tree added.
    pub stored_for_tree: u64,
}

/// Creates the repository.
pub fn run(plan: &Plan, mut say: impl FnMut(&str)) -> Result<Prepared> {
    ensure!((1..=plan.versions).contains(&plan.original), "there is no version {}", plan.original);
    let leaf = plan.tree.file_name().context("the tree has no name")?.to_string_lossy().into_owned();
    for folder in [&plan.out, &plan.scratch] {
        fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
    }
    let esker = |words: &[&str]| {
        let mut command = Command::new(&plan.esker);
        command.args(words).arg("--storage").arg(plan.out.join("repo"));
        command.arg("--keys").arg(plan.out.join("keys"));
        command
    };
    measure::run(esker(&["repo", "create", &plan.name]))?;
    let publish = |source: &Path, to: &str| {
        let mut command = esker(&["publish", &plan.name, "--quiet", "--to", to]);
        command.arg(source);
        measure::run(command).with_context(|| format!("{to} was not published"))
    };
    let scratch = tempfile::Builder::new().prefix("esker-bench-").tempdir_in(&plan.scratch)?;
    let rules: Vec<&str> =
        ["/versions/*", "/packages/*"].into_iter().chain(plan.nested.iter().map(String::as_str)).collect();
    let top = scratch.path().join("top");
    fs::create_dir(&top)?;
    File::create(top.join(".cvmfsdirtab"))?.write_all((rules.join("\n") + "\n").as_bytes())?;
    publish(&top, "/")?;
    for package in &plan.packages {
        let name = package.file_name().context("a package has no name")?.to_string_lossy();
        say(&format!("publishing {name}"));
        publish(package, &format!("/packages/{name}"))?;
    }
    let inside = |version: usize| format!("versions/{version}/{leaf}");
    let mut stored_for_tree = 0;
    for version in 1..=plan.versions {
        say(&format!("publishing version {version} of {}", plan.versions));
        let before = size(&plan.out.join("repo"))?.1;
        let to = format!("/{}", inside(version));
        let directory = plan.directories.as_ref().map(|kept| kept.join(inside(version)));
        if let Some(parent) = directory.as_deref().and_then(Path::parent) {
            fs::create_dir_all(parent).with_context(|| format!("can't make {}", parent.display()))?;
        }
        if version == plan.original {
            if let Some(directory) = &directory {
                write_variant(&plan.tree, directory, None)?;
            }
            publish(&plan.tree, &to)?;
            stored_for_tree = size(&plan.out.join("repo"))?.1 - before;
        } else {
            let variant = directory.clone().unwrap_or_else(|| scratch.path().join("variant"));
            write_variant(&plan.tree, &variant, Some(version as u64))?;
            publish(&variant, &to)?;
            if directory.is_none() {
                fs::remove_dir_all(&variant)?;
            }
        }
    }
    Ok(Prepared {
        inside: inside(plan.original),
        tree_bytes: size(&plan.tree)?.1,
        stored: size(&plan.out.join("repo"))?.1,
        stored_for_tree,
    })
}

/// Copies a tree with a small change in each file. Equal files stay equal.
fn write_variant(tree: &Path, to: &Path, version: Option<u64>) -> Result<()> {
    fs::create_dir(to)?;
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let from = tree.join(&folder);
        let entries = fs::read_dir(&from).with_context(|| format!("can't read {}", from.display()))?;
        for entry in entries {
            let entry = entry?;
            let relative = folder.join(entry.file_name());
            let target = to.join(&relative);
            let metadata = entry.metadata()?;
            if metadata.is_symlink() {
                symlink(fs::read_link(entry.path())?, &target)?;
            } else if metadata.is_dir() {
                fs::create_dir(&target)?;
                folders.push(relative);
            } else if metadata.is_file() {
                write_file(&entry.path(), &target, &metadata, version)
                    .with_context(|| format!("can't copy {}", entry.path().display()))?;
            }
        }
    }
    Ok(())
}

fn write_file(from: &Path, to: &Path, metadata: &fs::Metadata, version: Option<u64>) -> io::Result<()> {
    let mut content = fs::read(from)?;
    if let Some(version) = version {
        change(&mut content, version);
    }
    let mut file = File::create(to)?;
    file.write_all(&content)?;
    file.set_permissions(fs::Permissions::from_mode(metadata.mode() & 0o7777))?;
    let modified = Timespec { tv_sec: metadata.mtime(), tv_nsec: metadata.mtime_nsec() };
    let times = Timestamps { last_access: modified, last_modification: modified };
    Ok(rustix::fs::futimens(&file, &times)?)
}

fn change(content: &mut [u8], version: u64) {
    let with = Random(version).draw().to_le_bytes();
    for piece in content.chunks_mut(PIECE) {
        let middle = piece.len() / 2;
        for (byte, with) in piece[middle..].iter_mut().zip(&with[..CHANGE]) {
            *byte ^= with | 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_of_every_version_differs() {
        for len in [1, 7, 8, 100, PIECE, PIECE + 1, 3 * PIECE] {
            let original = vec![0; len];
            let versions = [1, 2, 3].map(|version| {
                let mut content = original.clone();
                change(&mut content, version);
                content
            });
            for (at, version) in versions.iter().enumerate() {
                assert_eq!(version.len(), len);
                for (piece, original) in version.chunks(PIECE).zip(original.chunks(PIECE)) {
                    assert_ne!(piece, original, "{len} bytes");
                }
                assert!(len < CHANGE || versions[..at].iter().all(|other| other != version));
            }
        }
    }

    #[test]
    fn a_variant_has_the_same_names_and_other_content() {
        let folder = tempfile::tempdir().expect("a folder");
        let tree = folder.path().join("tree");
        fs::create_dir_all(tree.join("sub")).expect("folders");
        fs::write(tree.join("sub/tool"), b"#!/bin/sh\nexit 0\n").expect("a file");
        fs::write(tree.join("empty"), b"").expect("a file");
        fs::set_permissions(tree.join("sub/tool"), fs::Permissions::from_mode(0o755)).expect("executable");
        symlink("sub/tool", tree.join("link")).expect("a link");
        let variant = folder.path().join("variant");
        write_variant(&tree, &variant, Some(3)).expect("a variant");
        let (was, is) = (
            fs::metadata(tree.join("sub/tool")).expect("it"),
            fs::metadata(variant.join("link")).expect("it"),
        );
        assert_eq!((was.len(), was.mode(), was.mtime_nsec()), (is.len(), is.mode(), is.mtime_nsec()));
        assert_ne!(
            fs::read(tree.join("sub/tool")).expect("it"),
            fs::read(variant.join("sub/tool")).expect("it")
        );
        assert_eq!(fs::read(variant.join("empty")).expect("it"), b"");
        assert_eq!(size(&tree).expect("a size"), size(&variant).expect("a size"));
        let copy = folder.path().join("copy");
        write_variant(&tree, &copy, None).expect("a copy");
        assert_eq!(
            fs::read(tree.join("sub/tool")).expect("it"),
            fs::read(copy.join("sub/tool")).expect("it")
        );
    }
}
