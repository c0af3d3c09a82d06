//! Reads every object and compares it with its name, folder by folder, at a limited rate.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::DirEntryExt as _;
use std::path::{Path, PathBuf};

use esker_format::hash::Hasher;
use esker_format::manifest::Manifest;
use esker_format::object::ObjectName;
use esker_repository::{RepositoryError, parallel};
use serde::{Deserialize, Serialize};

use super::finding::{Finding, FindingKind, Findings};
use super::options::{Check, CheckProgress, DataCheck};
use super::reading::Folder;
use super::remote::{Reader, missing_object};
use super::storage::BadObjects;
use super::target::Target;
use crate::hash_lists::{Record, SortedSet};
use crate::pace::Pace;

/// Number of bytes in one read.
const PIECE: usize = 1 << 20;
/// Largest file of an interrupted check.
const RESUME_MAX: u64 = 1 << 28;

/// Result of reading objects.
#[derive(Default)]
pub(super) struct Read {
    pub(super) objects: u64,
    pub(super) bytes: u64,
    pub(super) bad: BadObjects,
}

/// The storage whose objects are read.
enum Storage<'s> {
    Folder(&'s Path, Pace),
    Server(Reader<'s>),
}

/// Progress of an interrupted check.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Resume {
    /// Root catalog of the head that was checked.
    root: String,
    /// Folders that are done.
    folders: usize,
    objects: u64,
    bytes: u64,
    /// Objects with wrong bytes, and the fault of each.
    damaged: Vec<(String, String)>,
    /// Files without the name of an object.
    strange: Vec<String>,
    /// Named objects that a server does not have.
    #[serde(default)]
    missing: Vec<String>,
}

/// Reads all objects of a folder, or the named ones of a server.
pub(super) fn check(
    check: &Check<'_>,
    target: &Target<'_>,
    options: &DataCheck,
    (head, named): (&Manifest, &SortedSet),
    findings: &mut Findings,
) -> Result<Read, RepositoryError> {
    let root = head.root_catalog.to_string();
    let mut resume = options.resume.as_deref().and_then(read_resume).filter(|resume| resume.root == root);
    let mut so_far = resume.take().unwrap_or_else(|| Resume { root, ..Resume::default() });
    let folder = match target {
        Target::Storage(storage) => storage.sink().folder(),
        Target::Server(_) => None,
    };
    let mut storage = match folder {
        Some(folder) => Storage::Folder(folder, Pace::new(options.rate, check.stop.clone())),
        None => Storage::Server(Reader::new(check, target, named, options.rate)),
    };
    for folder in so_far.folders.min(256)..256 {
        let (bytes, folders) = (so_far.bytes, folder as u64);
        (check.progress)(CheckProgress::Data { bytes, folders });
        let found = match &mut storage {
            Storage::Folder(root, pace) => read_folder(check, root, folder, pace)?,
            Storage::Server(reader) => reader.folder(folder)?,
        };
        so_far.folders = folder + 1;
        so_far.objects += found.objects;
        so_far.bytes += found.bytes;
        so_far.damaged.extend(found.damaged);
        so_far.strange.extend(found.strange);
        so_far.missing.extend(found.missing);
        if let Some(path) = &options.resume {
            write_resume(path, &so_far)?;
        }
    }
    if let Some(path) = &options.resume {
        let _ = fs::remove_file(path);
    }
    for strange in so_far.strange {
        let detail = format!("`{strange}` has no name of an object");
        findings.add(Finding::new(FindingKind::StrangeFile, detail));
    }
    let record = |name: &str| ObjectName::parse(name).map(|name| Record::of(&name));
    let damaged = so_far.damaged.into_iter().filter_map(|(name, detail)| {
        record(&name).map(|record| (record, (FindingKind::ObjectDamaged, detail)))
    });
    let mut missing: HashSet<Record> = so_far.missing.iter().filter_map(|name| record(name)).collect();
    let mut lost = Vec::new();
    for tagged in named.iter() {
        if missing.is_empty() {
            break;
        }
        lost.extend(missing.take(&tagged?.record).map(|record| (record, missing_object())));
    }
    let missing = lost.into_iter();
    Ok(Read { objects: so_far.objects, bytes: so_far.bytes, bad: damaged.chain(missing).collect() })
}

fn read_resume(path: &Path) -> Option<Resume> {
    let facts = fs::metadata(path).ok().filter(|facts| facts.len() <= RESUME_MAX)?;
    facts.is_file().then(|| fs::read(path).ok()).flatten().and_then(|text| serde_json::from_slice(&text).ok())
}

fn write_resume(path: &Path, resume: &Resume) -> Result<(), RepositoryError> {
    let text = serde_json::to_vec(resume).expect("the state becomes JSON because all its keys are text");
    esker_store::replace(&esker_store::RealDisk::PRIVATE, path, &text)
        .map_err(RepositoryError::file("writing", path))
}

/// Reads the objects of a folder in the order of their inodes, which is about that of the disk.
fn read_folder(
    check: &Check<'_>,
    root: &Path,
    folder: usize,
    pace: &Pace,
) -> Result<Folder, RepositoryError> {
    let digits = format!("{folder:02x}");
    let path = root.join("data").join(&digits);
    let failed = |error| RepositoryError::file("listing", &path)(error);
    let entries = match fs::read_dir(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Folder::default()),
        other => other.map_err(failed)?,
    };
    let mut found = Folder::default();
    let mut objects: Vec<(u64, PathBuf, ObjectName)> = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        match name.to_str().and_then(|rest| ObjectName::parse(&format!("{digits}{rest}"))) {
            Some(object) => objects.push((entry.ino(), entry.path(), object)),
            None => found.strange.push(format!("data/{digits}/{}", name.to_string_lossy())),
        }
    }
    objects.sort_unstable();
    let read = parallel::map(check.threads, &check.stop, &objects, |(_, path, name)| {
        Ok((*name, hash(path, name, pace)))
    })?;
    for (name, outcome) in read {
        found.objects += 1;
        match outcome {
            Ok((bytes, true)) => found.bytes += bytes,
            Ok((bytes, false)) => {
                found.bytes += bytes;
                let detail = format!("its {bytes} bytes have another hash than its name says");
                found.damaged.push((name.to_string(), detail));
            }
            // A collect deleted it, unless a checked revision names it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                found.objects -= 1;
                found.missing.push(name.to_string());
            }
            Err(error) => found.damaged.push((name.to_string(), format!("it can't be read: {error}"))),
        }
    }
    Ok(found)
}

/// Returns the length of an object, and whether its bytes have the hash of its name.
fn hash(path: &Path, name: &ObjectName, pace: &Pace) -> io::Result<(u64, bool)> {
    let mut file = fs::File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut hasher = Hasher::new(name.hash.algorithm());
    let mut piece = vec![0; PIECE];
    let mut len = 0;
    loop {
        let count = file.read(&mut piece)?;
        if count == 0 {
            return Ok((len, hasher.finish() == name.hash));
        }
        hasher.update(piece.get(..count).unwrap_or_default());
        len += count as u64;
        pace.wait(count as u64);
    }
}
