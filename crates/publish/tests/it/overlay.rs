//! What commands leave in the upper folder of a real overlay becomes exactly the tree that they saw.

mod cases;
mod model;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use esker_publish::{BaseRevision, PathChange, PublishError, PublishUpper, Report, Upper};
use esker_testkit::listing::{Entry, of_folder};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::workshop::{Workshop, assert_same_trees, now, options};

/// Where overlayfs keeps its marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Marks {
    Trusted,
    User,
}

/// A published tree as the lower layer, an upper folder, and the two merged.
pub(super) struct Scene {
    workshop: Option<Workshop>,
    folder: tempfile::TempDir,
    marks: Marks,
    pub(super) upper: Upper,
    is_mounted: bool,
}

/// Returns true if this machine mounts overlays for the calling user in its own namespace.
pub(super) fn may_mount() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    ["lower", "upper", "work", "merged"].iter().for_each(|name| fs::create_dir(at(name)).unwrap());
    let mounted = mount_at(folder.path(), &at("lower"), Marks::User).is_ok();
    if mounted {
        unmount(at("merged"), UnmountFlags::DETACH).unwrap();
    }
    mounted
}

fn mount_at(folder: &Path, lower: &Path, marks: Marks) -> rustix::io::Result<()> {
    let user = if marks == Marks::User { ",userxattr" } else { "" };
    let (lower, folder) = (lower.display(), folder.display());
    let options = format!(
        "lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work,redirect_dir=nofollow,metacopy=off,index=off{user}"
    );
    let options = std::ffi::CString::new(options).unwrap();
    mount("none", format!("{folder}/merged"), "overlay", MountFlags::empty(), Some(options.as_c_str()))
}

impl Scene {
    /// Publishes the source of a workshop, and opens a transaction on it.
    pub(super) fn over(workshop: Workshop, marks: Marks) -> Self {
        workshop.publish();
        let folder = tempfile::tempdir().unwrap();
        let upper = Upper {
            folder: folder.path().join("upper"),
            base: BaseRevision::published(&workshop.open()),
            origin: None,
            claimed: None,
            within: Vec::new(),
            filter: Default::default(),
        };
        for name in ["upper", "work", "merged"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        upper.prepare(&workshop.root()).unwrap();
        let mut scene = Self { workshop: Some(workshop), folder, marks, upper, is_mounted: false };
        scene.enter();
        scene
    }

    /// Ends the transaction.
    pub(super) fn into_workshop(mut self) -> Workshop {
        self.leave();
        self.workshop.take().unwrap()
    }

    pub(super) fn merged(&self) -> PathBuf {
        self.folder.path().join("merged")
    }

    pub(super) fn workshop(&self) -> &Workshop {
        self.workshop.as_ref().unwrap()
    }

    /// Mounts the two layers.
    pub(super) fn enter(&mut self) {
        mount_at(self.folder.path(), &self.workshop().source(), self.marks).unwrap();
        self.is_mounted = true;
    }

    pub(super) fn leave(&mut self) {
        if std::mem::take(&mut self.is_mounted) {
            unmount(self.merged(), UnmountFlags::empty()).unwrap();
        }
    }

    /// Lists the merged tree. Its files have as many links as names in their directory. A name of several that the kernel
    /// only copied up counts as a name of the lower file, although it has an inode of its own. A lower file of one name
    /// keeps its inode number when it is copied up, so a copy put in its place has another one.
    pub(super) fn listing(&self) -> Vec<Entry> {
        let (merged, source) = (self.merged(), self.workshop().source());
        let mut entries = of_folder(&merged);
        let without_links = |entry: &Entry| Entry { nlink: None, ..entry.clone() };
        let lower: HashMap<Vec<u8>, Entry> =
            of_folder(&source).iter().map(|entry| (entry.path.clone(), without_links(entry))).collect();
        let inode = |entry: &Entry| {
            let below = std::ffi::OsStr::new(std::str::from_utf8(entry.below_root()).unwrap());
            let path = merged.join(below);
            let meta = fs::symlink_metadata(&path).unwrap();
            let is_unchanged = lower.get(&entry.path) == Some(&without_links(entry));
            let parent = path.parent().unwrap().to_owned();
            match fs::symlink_metadata(source.join(below)) {
                Ok(under) if is_unchanged && under.nlink() > 1 && meta.nlink() == 1 => {
                    (parent, meta.dev(), under.ino())
                }
                _ => (parent, meta.dev(), meta.ino()),
            }
        };
        let inodes: Vec<_> = entries.iter().map(inode).collect();
        let mut names: HashMap<_, u64> = HashMap::new();
        inodes.iter().for_each(|inode| *names.entry(inode).or_default() += 1);
        for (entry, inode) in entries.iter_mut().zip(&inodes) {
            entry.nlink = entry.nlink.map(|_| names[inode]);
        }
        entries
    }

    pub(super) fn changes(&self) -> Result<Vec<PathChange>, PublishError> {
        self.upper.changes(&self.workshop().root(), &AtomicBool::new(false))
    }

    pub(super) fn changed_paths(&self) -> Vec<String> {
        let changes = self.changes().unwrap();
        let text = |change: &PathChange| {
            format!("{:?} {}", change.change, String::from_utf8_lossy(&change.path)).to_lowercase()
        };
        changes.iter().map(text).collect()
    }

    pub(super) fn try_publish(&self) -> Result<Report, PublishError> {
        let mut progress = |_| ();
        let mut publish = PublishUpper {
            upper: self.upper.clone(),
            choices: Default::default(),
            options: options(&mut progress),
        };
        publish.run(&self.workshop().open(), now())
    }

    /// Publishes, and asserts that the repository shows what the merged tree showed.
    #[track_caller]
    pub(super) fn publish(&mut self) -> Report {
        let expected = self.listing();
        self.leave();
        let listed = self.changes().unwrap().len() as u64;
        let report = self.try_publish().unwrap();
        let findings = self.workshop().check();
        findings.assert_clean();
        assert_same_trees(&expected, &findings.listing());
        let differences = &report.differences;
        let counted = [differences.added, differences.changed, differences.removed].map(|kind| kind.total());
        assert_eq!(counted.iter().sum::<u64>(), listed);
        // Above the new revision the same folder changes nothing.
        self.upper.base = BaseRevision::published(&self.workshop().open());
        assert_eq!(self.changed_paths(), [""; 0]);
        report
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = unmount(self.merged(), UnmountFlags::DETACH);
        }
    }
}

/// Runs a shell script in a folder.
#[track_caller]
pub(super) fn sh(folder: &Path, script: &str) {
    let output = Command::new("sh").args(["-ec", script]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}
