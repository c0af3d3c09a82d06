//! Making a repository, interrupted: there is none and it can be made, or it is whole and its keys are there.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use esker_format::name::RepositoryName;
use esker_repository::{Disks, KeyFolder, NewRepository, Repository, RepositoryError};
use esker_testkit::check::check;
use esker_testkit::disk::{FaultDisk, Loss, Plan, scratch};

use crate::workshop::{NAME, Workshop, disks, now, shared_keys};

fn name() -> RepositoryName {
    RepositoryName::parse(NAME).unwrap()
}

fn keys(folder: &Path) -> KeyFolder {
    KeyFolder::new(folder.join("etc/keys"), &name())
}

fn create(disks: &Disks, folder: &Path) -> Result<(), RepositoryError> {
    NewRepository::new(name()).create((disks, &*folder.join("srv").join(NAME)), &keys(folder), now())
}

/// Asserts that a repository is there, whole, and can be published to; or that none is, and makes it.
fn judge(folder: &Path, retry: bool, when: &str) -> bool {
    let root = folder.join("srv").join(NAME);
    let existed = root.join(".cvmfspublished").exists();
    let disk = FaultDisk::new(folder, Plan::Nothing);
    if !existed {
        if !retry {
            return false;
        }
        create(&disks(&disk), folder).unwrap_or_else(|error| panic!("{when}: {error}"));
    }
    let public = fs::read_to_string(keys(folder).public_key_file()).unwrap();
    let findings = check(&root, NAME, &public);
    findings.assert_clean();
    assert_eq!((findings.revision, findings.tree.len()), (0, 1), "{when}");
    Repository::open((&disks(&disk), &*root), &name(), keys(folder), now())
        .unwrap_or_else(|error| panic!("{when}: {error}"));
    existed
}

/// A place with keys or without.
fn place(with_keys: bool) -> tempfile::TempDir {
    let folder = scratch();
    if with_keys {
        fs::create_dir_all(folder.path().join("etc/keys")).unwrap();
        for key in fs::read_dir(shared_keys().join("keys")).unwrap() {
            let key = key.unwrap();
            fs::copy(key.path(), folder.path().join("etc/keys").join(key.file_name())).unwrap();
        }
    }
    folder
}

/// All folders of objects are made in the same way.
fn is_one_of_many(number: u64) -> bool {
    (8..255).contains(&number) && !number.is_multiple_of(60)
}

fn lose_power_everywhere(with_keys: bool) {
    let folder = place(with_keys);
    let disk = FaultDisk::new(folder.path(), Plan::Nothing);
    let seen = Arc::new(Mutex::new([0, 0]));
    disk.before_each_change({
        let seen = seen.clone();
        move |moment| {
            let number = moment.change;
            if is_one_of_many(number) {
                return;
            }
            for loss in [Loss::Everything, Loss::Content, Loss::Some(number)] {
                let image = moment.crash(loss);
                let when = format!("{loss:?} lost before change {number}");
                // Making keys takes its time.
                let retry = with_keys || number.is_multiple_of(5) && loss == Loss::Some(number);
                let existed = judge(image.path(), retry, &when);
                seen.lock().unwrap()[usize::from(existed)] += 1;
            }
        }
    });
    create(&disks(&disk), folder.path()).unwrap();
    let seen = *seen.lock().unwrap();
    assert!(seen[0] > 60 && seen[1] > 0, "{seen:?}");
    for loss in [Loss::Everything, Loss::Content] {
        assert!(judge(disk.crash_now(loss).path(), false, "lost after the end"));
    }
}

#[test]
fn a_power_loss_before_any_change_is_survived() {
    lose_power_everywhere(true);
}

#[test]
fn a_power_loss_during_key_creation_is_survived() {
    lose_power_everywhere(false);
}

#[test]
fn a_failure_of_any_operation_is_survived() {
    for ever in [false, true] {
        let mut hits = 0;
        for at in (1..).filter(|number| !is_one_of_many(*number)) {
            let folder = place(true);
            let disk = FaultDisk::new(folder.path(), Plan::Fail { at, ever, errno: 28 });
            let outcome = create(&disks(&disk), folder.path());
            if disk.struck() == 0 {
                outcome.unwrap();
                break;
            }
            hits += 1;
            let when = format!("operation {at}, ever {ever}, {outcome:?}");
            let existed = judge(folder.path(), true, &when);
            let text = format!("{outcome:?}");
            assert!(!existed || outcome.is_ok() || text.contains("may not outlast"), "{when}");
        }
        assert!(hits > 60, "{hits}");
    }
}

/// Keys that are there are never replaced, and a public key alone is no reason to make another master key.
#[test]
fn keys_of_other_repositories_stay_unchanged() {
    let folder = place(true);
    let master = folder.path().join(format!("etc/keys/{NAME}.masterkey"));
    let public = fs::read(keys(folder.path()).public_key_file()).unwrap();
    fs::remove_file(&master).unwrap();
    let error = create(&Disks::default(), folder.path()).unwrap_err();
    assert!(matches!(&error, RepositoryError::NoKey { path, .. } if *path == master), "{error}");
    assert!(!master.exists());
    assert_eq!(fs::read(keys(folder.path()).public_key_file()).unwrap(), public);
    let workshop = Workshop::new();
    let again = NewRepository::new(name()).create(&workshop.root(), &workshop.keys(), now());
    assert!(matches!(again, Err(RepositoryError::Exists(_))));
}

/// Only its owner can read a private key, wherever it is; the master key may be in a folder of its own.
#[test]
fn the_master_key_can_be_in_another_folder() {
    use std::os::unix::fs::PermissionsExt;
    let folder = scratch();
    let (root, offline) = (folder.path().join("srv").join(NAME), folder.path().join("offline"));
    let apart = keys(folder.path()).with_master_in(&offline);
    NewRepository::new(name()).create(&root, &apart, now()).unwrap();
    let master = offline.join(format!("{NAME}.masterkey"));
    assert_eq!(apart.master_key_file(), master);
    assert!(master.exists() && !keys(folder.path()).master_key_file().exists());
    assert_eq!(fs::metadata(&offline).unwrap().permissions().mode() & 0o777, 0o700);
    Repository::open(&root, &name(), keys(folder.path()), now()).unwrap();
    assert!(apart.exposed().is_empty());
    for mode in [0o440, 0o404, 0o420] {
        fs::set_permissions(&master, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(apart.exposed(), std::slice::from_ref(&master));
    }
}
