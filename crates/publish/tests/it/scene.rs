//! A repository with one revision, before the publish of another one.

use std::fs;
use std::path::Path;

use esker_format::chunker::ChunkSizes;
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_publish::{Ingest, Owner, Publish, PublishError, Report};
use esker_repository::{Disks, KeyFolder, Repository};
use esker_testkit::check::{Findings, check};
use esker_testkit::disk::{FaultDisk, Plan, scratch};
use esker_testkit::listing::Entry;
use esker_testkit::object;

use crate::workshop::{NAME, Workshop, assert_same_trees, disks, now, options};

/// What the publisher does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Act {
    /// Publishes into an empty repository.
    First,
    /// Publishes again, beside the state of a CernVM-FS publisher.
    Again,
    /// Publishes so many objects that they are made durable together instead of one by one.
    Many,
    /// Ingests an archive.
    Ingest,
}

pub(crate) struct Scene {
    act: Act,
    workshop: Workshop,
    /// Storage before the first publish and after it; folders without files are left out, since making hundreds of
    /// them would be most of the work.
    template: tempfile::TempDir,
    old: Vec<Entry>,
    new: Vec<Entry>,
    revision: u64,
    now: UnixTime,
}

const SPOOL: &str = "spool";
const REFLOG_CHECKSUM: &str = "reflog.chksum";

impl Scene {
    pub(crate) fn new(act: Act) -> Self {
        let chunks = ChunkSizes::new(4096, 8192, 16_384).unwrap();
        let workshop = Workshop::with(|new| new.settings.chunks = chunks);
        let top = workshop.source();
        if act != Act::First {
            fs::create_dir_all(top.join("nested/deeper")).unwrap();
            fs::write(top.join("nested/.cvmfscatalog"), b"").unwrap();
            fs::write(top.join("nested/deeper/file"), b"old").unwrap();
            fs::write(top.join("stays"), b"stays").unwrap();
            workshop.publish();
        }
        let before = workshop.check();
        before.assert_clean();
        let template = tempfile::tempdir().unwrap();
        copy_tree(&workshop.root(), &template.path().join(NAME));
        if act == Act::Again {
            fs::create_dir(template.path().join(SPOOL)).unwrap();
            fs::write(template.path().join(SPOOL).join(REFLOG_CHECKSUM), b"old").unwrap();
        }
        change_source(act, &top);
        let (old, revision) = (before.listing(), before.revision);
        let mut scene = Self { act, workshop, template, old, new: Vec::new(), revision, now: now() };
        let folder = scene.copy();
        scene.run(&Disks::default(), folder.path()).unwrap();
        scene.new = scene.check(folder.path()).assert_clean().listing();
        if act != Act::Ingest {
            assert_same_trees(&esker_testkit::listing::of_folder(&top), &scene.new);
        }
        assert_ne!(scene.old, scene.new);
        scene
    }

    /// State of a folder before the publisher starts.
    pub(crate) fn copy(&self) -> tempfile::TempDir {
        let folder = scratch();
        copy_tree(self.template.path(), folder.path());
        folder
    }

    /// Does what the scene is about, in a folder.
    pub(crate) fn run(&self, disks: &Disks, folder: &Path) -> Result<Report, PublishError> {
        let name = RepositoryName::parse(NAME).unwrap();
        let keys: KeyFolder = self.workshop.keys();
        let mut repository = Repository::open((disks, &*folder.join(NAME)), &name, keys, self.now)?;
        repository.share_with_spool(&folder.join(SPOOL))?;
        let mut progress = |_| ();
        let options = options(&mut progress);
        if self.act == Act::Ingest {
            let (archive, target) = (self.archive(), b"/nested".to_vec());
            let delete = vec![b"/nested/deeper/file".to_vec()];
            let owner = Owner::default();
            Ingest { archive, target, delete, owner, nested: true, options }.run(&repository, self.now)
        } else {
            Publish { source: self.workshop.source(), target: Vec::new(), options }.run(&repository, self.now)
        }
    }

    fn archive(&self) -> std::path::PathBuf {
        self.workshop.source().join("archive.tar")
    }

    fn check(&self, folder: &Path) -> Findings {
        let public = fs::read_to_string(self.workshop.keys().public_key_file()).unwrap();
        check(&folder.join(NAME), NAME, &public)
    }

    /// Asserts that the repository in a folder is whole and is one of the two revisions; tells whether it is the new
    /// one.
    pub(crate) fn judge(&self, folder: &Path, when: &str) -> bool {
        let findings = self.check(folder);
        findings.assert_whole(when);
        let is_new = findings.revision > self.revision;
        assert_eq!(findings.revision, self.revision + u64::from(is_new), "{when}");
        assert_same_trees(if is_new { &self.new } else { &self.old }, &findings.listing());
        is_new
    }

    /// Repeats the operation without faults, and asserts that nothing of the interrupted attempt is left.
    pub(crate) fn finish(&self, folder: &Path, when: &str) {
        // A disk that never waits for the hardware.
        let disk = FaultDisk::new(folder, Plan::Nothing);
        self.run(&disks(&disk), folder).unwrap_or_else(|error| panic!("{when}: {error}"));
        let findings = self.check(folder);
        findings.assert_clean();
        assert_eq!(findings.revision, self.revision + 1, "{when}");
        assert_same_trees(&self.new, &findings.listing());
        assert_no_leftovers(&folder.join(NAME), when);
        if self.act == Act::Again {
            let reflog = fs::read(folder.join(NAME).join(".cvmfsreflog")).unwrap();
            let known = fs::read_to_string(folder.join(SPOOL).join(REFLOG_CHECKSUM)).unwrap();
            assert_eq!(object::Algorithm::of_text(&known).hash(&reflog), known, "{when}");
        }
    }
}

fn change_source(act: Act, top: &Path) {
    if act == Act::Ingest {
        let mut archive = tar::Builder::new(fs::File::create(top.join("archive.tar")).unwrap());
        for (path, bytes) in
            [("deeper/other", &b"other"[..]), ("large", &noise(40_000)), ("new/file", b"new")]
        {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o640);
            header.set_uid(1);
            header.set_gid(1);
            header.set_mtime(1_600_000_000);
            archive.append_data(&mut header, path, bytes).unwrap();
        }
        archive.finish().unwrap();
        return;
    }
    fs::create_dir_all(top.join("nested/deeper")).unwrap();
    fs::write(top.join("nested/deeper/file"), b"new").unwrap();
    fs::write(top.join("nested/.cvmfscatalog"), b"").unwrap();
    fs::write(top.join("added"), b"added").unwrap();
    fs::write(top.join("large"), noise(40_000)).unwrap();
    for number in 0..if act == Act::Many { 60 } else { 2 } {
        fs::write(top.join(format!("more {number}")), format!("{number}")).unwrap();
    }
}

/// Bytes that don't compress, so that they are cut.
fn noise(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn assert_no_leftovers(root: &Path, when: &str) {
    let names = |folder: &str| -> Vec<String> {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert_eq!(names("data/txn"), ["esker.lock"], "{when}");
    for folder in ["", ".esker", ".esker/known", ".esker/content"] {
        let left: Vec<_> = names(folder).into_iter().filter(|name| name.contains("new")).collect();
        assert!(left.is_empty(), "{when}: {left:?} in {folder:?}");
    }
}

/// Copies files and the folders that have any.
fn copy_tree(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::create_dir_all(to).unwrap();
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
