//! The whitelist, signed again.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use esker_format::hash::HashAlgorithm;
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_format::trust::TrustError;
use esker_maintain::{KeysError, Resign, Resigned};
use esker_publish::Report;
use esker_repository::{Disks, KeyFolder, NewRepository, Repository, RepositoryError};
use esker_store::LocalSink;
use esker_testkit::check::check;
use esker_testkit::disk::{FaultDisk, Loss, Plan, scratch};

use crate::workshop::{NAME, disks, now, publish, shared_keys};

const DAY: i64 = 86_400;
const WHITELIST: &str = ".cvmfswhitelist";

/// A repository that was made some days ago, with keys of its own.
struct Old {
    folder: tempfile::TempDir,
}

fn name() -> RepositoryName {
    RepositoryName::parse(NAME).unwrap()
}

fn renew() -> Resign {
    Resign { days: 30, master: None, only_own: false, drop: Vec::new() }
}

impl Old {
    fn made(days_ago: i64, algorithm: HashAlgorithm) -> Self {
        let folder = scratch();
        fs::create_dir(folder.path().join("keys")).unwrap();
        for key in fs::read_dir(shared_keys().join("keys")).unwrap() {
            let key = key.unwrap();
            fs::copy(key.path(), folder.path().join("keys").join(key.file_name())).unwrap();
        }
        let old = Self { folder };
        let new = NewRepository { algorithm, ..NewRepository::new(name()) };
        new.create(&old.root(), &old.keys(), UnixTime(now().0 - days_ago * DAY)).unwrap();
        old
    }

    fn root(&self) -> std::path::PathBuf {
        self.folder.path().join(NAME)
    }

    fn key_file(&self, extension: &str) -> std::path::PathBuf {
        self.folder.path().join(format!("keys/{NAME}.{extension}"))
    }

    fn keys(&self) -> KeyFolder {
        KeyFolder::new(self.folder.path().join("keys"), &name())
    }

    fn open(&self) -> Result<Repository, RepositoryError> {
        Repository::open(&self.root(), &name(), self.keys(), now())
    }

    fn sign(&self, resign: &Resign) -> Result<Resigned, KeysError> {
        resign.run(&self.root(), &name(), &self.keys(), now())
    }

    fn publish(&self, content: &str) -> Report {
        let source = tempfile::tempdir().unwrap();
        fs::write(source.path().join("file"), content).unwrap();
        publish(&self.open().unwrap(), source.path(), "").unwrap()
    }

    fn whitelist(&self) -> Vec<u8> {
        fs::read(self.root().join(WHITELIST)).unwrap()
    }

    fn assert_clean(&self) {
        let public = fs::read_to_string(self.keys().public_key_file()).unwrap();
        check(&self.root(), NAME, &public).assert_clean();
    }

    /// Puts another key and certificate into the folder of keys, of the same owner.
    fn change_key(&self) {
        for extension in ["key", "crt"] {
            fs::remove_file(self.key_file(extension)).unwrap();
        }
        let elsewhere = self.folder.path().join("elsewhere").join(NAME);
        NewRepository::new(name()).create(&elsewhere, &self.keys(), now()).unwrap();
    }
}

#[test]
fn a_repository_that_is_too_old_is_renewed() {
    for algorithm in [HashAlgorithm::Sha1, HashAlgorithm::Rmd160, HashAlgorithm::Shake128] {
        let old = Old::made(40, algorithm);
        let refused = old.open().map(|_| ()).unwrap_err();
        let RepositoryError::Untrusted { source, .. } = refused else { panic!("{refused}") };
        assert!(matches!(*source, TrustError::WhitelistExpired { .. }), "{source}");
        let before = old.whitelist();
        let told = renew().dry_run(&old.root(), &name(), &old.keys(), now()).unwrap();
        assert_eq!(old.whitelist(), before);
        let done = old.sign(&renew()).unwrap();
        assert_eq!((done.kept.len(), &done.added, done.dropped.len()), (1, &None, 0));
        assert_eq!((&done.kept, done.expired), (&told.kept, told.expired));
        assert!((29 * DAY..31 * DAY).contains(&(done.expires - now().0)), "{done:?}");
        assert!(old.publish("after").published);
        old.assert_clean();
    }
}

#[test]
fn publishers_are_warned_before_the_whitelist_expires() {
    assert_eq!(Old::made(20, HashAlgorithm::Sha1).publish("in time").warnings, [""; 0]);
    let old = Old::made(25, HashAlgorithm::Sha1);
    let report = old.publish("late");
    assert!(report.published);
    assert!(report.warnings[0].contains("whitelist expires"), "{:?}", report.warnings);
    old.sign(&renew()).unwrap();
    assert_eq!(old.publish("renewed").warnings, [""; 0]);
}

/// A client that reads the repository while its certificate is replaced can verify it at every step.
#[test]
fn a_certificate_is_replaced() {
    let old = Old::made(1, HashAlgorithm::Rmd160);
    old.change_key();
    let refused = old.open().map(|_| ()).unwrap_err();
    assert!(matches!(refused, RepositoryError::NotListed(_)), "{refused}");
    let both = old.sign(&renew()).unwrap();
    assert_eq!((both.kept.len(), both.dropped.len()), (1, 0));
    let added = both.added.unwrap();
    assert!(added.ends_with("-RMD160"), "{added}");
    old.assert_clean();

    // What is published is signed with the old one still.
    let only_own = Resign { only_own: true, ..renew() };
    let before = old.whitelist();
    let refused = old.sign(&only_own).unwrap_err();
    assert!(matches!(&refused, KeysError::StillNeeded { .. }), "{refused}");
    assert_eq!(old.whitelist(), before);
    assert!(old.publish("signed with the new one").published);
    let one = old.sign(&only_own).unwrap();
    assert_eq!((one.kept, one.added, one.dropped), (vec![added], None, both.kept));
    old.assert_clean();
    assert!(old.publish("again").published);
}

/// The master key lies elsewhere, and the publisher's own keys need not be there to renew.
#[test]
fn the_master_key_may_be_in_any_file() {
    let old = Old::made(40, HashAlgorithm::Sha1);
    let away = old.folder.path().join("away");
    fs::rename(old.key_file("masterkey"), &away).unwrap();
    let refused = old.sign(&renew()).unwrap_err();
    assert!(matches!(refused, KeysError::Repository(RepositoryError::NoKey { .. })), "{refused}");
    let crt = fs::read(old.key_file("crt")).unwrap();
    fs::remove_file(old.key_file("crt")).unwrap();
    old.sign(&Resign { master: Some(away), ..renew() }).unwrap();
    fs::write(old.key_file("crt"), crt).unwrap();
    assert!(old.publish("after").published);
}

#[test]
fn unsigned_whitelists_are_not_renewed() {
    let old = Old::made(1, HashAlgorithm::Sha1);
    let sound = old.whitelist();
    let mut changed = sound.clone();
    let at = changed.windows(3).position(|window| window == b"\n--").unwrap() - 1;
    changed[at] ^= 1;
    fs::write(old.root().join(WHITELIST), &changed).unwrap();
    let refused = old.sign(&renew()).unwrap_err();
    assert!(matches!(refused, KeysError::Repository(RepositoryError::Untrusted { .. })), "{refused}");
    assert_eq!(old.whitelist(), changed);
    fs::write(old.root().join(WHITELIST), &sound).unwrap();

    // Another key is no master key, however good it is.
    let other = Resign { master: Some(old.key_file("key")), ..renew() };
    let refused = old.sign(&other).unwrap_err();
    assert!(matches!(refused, KeysError::Repository(RepositoryError::OtherMaster { .. })), "{refused}");
    assert_eq!(old.whitelist(), sound);
    let nowhere = renew().run(Path::new("/no/such"), &name(), &old.keys(), now()).unwrap_err();
    assert!(matches!(nowhere, KeysError::Repository(RepositoryError::NoRepository(_))), "{nowhere}");
    let publishing = LocalSink::open(old.root());
    let _committing = publishing.lock().unwrap();
    assert!(matches!(old.sign(&renew()).unwrap_err(), KeysError::Repository(RepositoryError::Locked { .. })));
}

/// Before every change: if the power went now, there would be the old whitelist or the new one.
#[test]
fn a_power_loss_or_failure_during_resigning_is_survived() {
    let old = Old::made(1, HashAlgorithm::Sha1);
    let before = old.whitelist();
    let disk = FaultDisk::new(old.folder.path(), Plan::Nothing);
    let seen = Arc::new(Mutex::new([0, 0]));
    disk.before_each_change({
        let (seen, before) = (seen.clone(), before.clone());
        move |moment| {
            for loss in [Loss::Everything, Loss::Content, Loss::Some(moment.change)] {
                let image = moment.crash(loss);
                let there = fs::read(image.path().join(NAME).join(WHITELIST)).unwrap();
                let public = fs::read_to_string(image.path().join(format!("keys/{NAME}.pub"))).unwrap();
                check(&image.path().join(NAME), NAME, &public).assert_clean();
                seen.lock().unwrap()[usize::from(there != before)] += 1;
            }
        }
    });
    let sign = |disks: &Disks| renew().run((disks, &*old.root()), &name(), &old.keys(), now());
    sign(&disks(&disk)).unwrap();
    let seen = *seen.lock().unwrap();
    assert!(seen[0] > 6 && seen[1] > 0, "{seen:?}");
    let after = disk.crash_now(Loss::Everything);
    assert_ne!(fs::read(after.path().join(NAME).join(WHITELIST)).unwrap(), before);

    for at in 1.. {
        let before = old.whitelist();
        let disk = FaultDisk::new(old.folder.path(), Plan::Fail { at, ever: false, errno: 28 });
        let outcome = sign(&disks(&disk));
        if disk.struck() == 0 {
            assert!(at > 10 && outcome.is_ok());
            break;
        }
        let text = format!("{outcome:?}");
        assert!(outcome.is_err(), "operation {at}");
        assert!(old.whitelist() == before || text.contains("may not outlast"), "operation {at}: {text}");
        old.assert_clean();
    }
}

/// A clock that was set back makes no whitelist that clients refuse as older than the one they saw.
#[test]
fn a_whitelist_is_never_older_than_the_one_before() {
    let old = Old::made(0, HashAlgorithm::Sha1);
    let created = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        text.lines().next().expect("the time when it was made").to_owned()
    };
    let before = created(&old.whitelist());
    let earlier = UnixTime(now().0 - 2 * DAY);
    renew().run(&old.root(), &name(), &old.keys(), earlier).unwrap();
    assert_eq!(created(&old.whitelist()), before);
}
