//! Keys: rotated, copied, encrypted, kept on other machines and in tokens.

use esker_publish::PublishError;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use esker_format::hash::ContentHash;
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_format::trust::TrustError;
use esker_maintain::{KeysError, Resign, Rotate, SignAnswer, SignRequest, list_certificates};
use esker_repository::{
    Disks, KeyCopy, KeyFolder, NewRepository, PassphraseFor, Passphrases, Repository, RepositoryError,
};
use esker_testkit::check::check;
use esker_testkit::disk::{FaultDisk, Plan, scratch};

use crate::workshop::{NAME, disks, now, publish, shared_keys};

pub(crate) fn name() -> RepositoryName {
    RepositoryName::parse(NAME).unwrap()
}

pub(crate) fn resign() -> Resign {
    Resign { days: 30, master: None, only_own: false, drop: Vec::new() }
}

pub(crate) fn rotate() -> Rotate {
    Rotate { certificate_days: 365, resign: resign(), encrypt: false, token: None }
}

/// A repository with keys of its own.
pub(crate) struct Owner {
    pub(crate) folder: tempfile::TempDir,
}

impl Owner {
    pub(crate) fn new() -> Self {
        let folder = scratch();
        copy_keys(&shared_keys().join("keys"), &folder.path().join("keys"));
        let owner = Self { folder };
        NewRepository::new(name()).create(&owner.root(), &owner.keys(), now()).unwrap();
        owner
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join(NAME)
    }

    pub(crate) fn path(&self, extension: &str) -> PathBuf {
        self.folder.path().join(format!("keys/{NAME}.{extension}"))
    }

    pub(crate) fn keys(&self) -> KeyFolder {
        KeyFolder::new(self.folder.path().join("keys"), &name())
    }

    pub(crate) fn open_with(&self, keys: KeyFolder) -> Result<Repository, RepositoryError> {
        Repository::open(&self.root(), &name(), keys, now())
    }

    fn try_publish(&self, keys: KeyFolder, content: &str) -> Result<(), PublishError> {
        let source = tempfile::tempdir().unwrap();
        fs::write(source.path().join("file"), content).unwrap();
        publish(&self.open_with(keys)?, source.path(), "").map(drop)
    }

    pub(crate) fn publish(&self, content: &str) {
        self.try_publish(self.keys(), content).unwrap();
        self.assert_clean();
    }

    pub(crate) fn assert_clean(&self) {
        check(&self.root(), NAME, &fs::read_to_string(self.path("pub")).unwrap()).assert_clean();
    }

    /// Returns whether a client accepts this head with this whitelist.
    fn accepts(&self, head: &[u8], whitelist: &[u8]) -> bool {
        let place = tempfile::tempdir().unwrap();
        let copied = Command::new("cp").arg("-a").arg(self.root()).arg(place.path()).status().unwrap();
        assert!(copied.success());
        let root = place.path().join(NAME);
        fs::write(root.join(".cvmfspublished"), head).unwrap();
        fs::write(root.join(".cvmfswhitelist"), whitelist).unwrap();
        // The keys of a client: the public one.
        let keys = place.path().join("keys");
        fs::create_dir(&keys).unwrap();
        fs::copy(self.path("pub"), keys.join(format!("{NAME}.pub"))).unwrap();
        let context = esker_maintain::InfoContext {
            place: String::new(),
            name: Some(name()),
            keys: KeyFolder::new(keys, &name()).public().ok(),
            own: None,
            now: now(),
        };
        let files = esker_repository::Storage::open(&root).unwrap();
        esker_maintain::RepositoryInfo::read(&**files.sink(), &context).signatures_verified == Some(true)
    }

    fn signed(&self) -> (Vec<u8>, Vec<u8>) {
        let read = |file| fs::read(self.root().join(file)).unwrap();
        (read(".cvmfspublished"), read(".cvmfswhitelist"))
    }
}

fn copy_keys(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for key in fs::read_dir(from).unwrap() {
        let key = key.unwrap();
        fs::copy(key.path(), to.join(key.file_name())).unwrap();
    }
}

fn passphrase(text: &'static str) -> Passphrases {
    Passphrases::new(move |_: &Path, _: PassphraseFor| Ok(text.to_owned()))
}

/// Clients that see the files before or after a step in any mixture accept them.
#[test]
fn a_rotation_has_its_two_steps() {
    let owner = Owner::new();
    owner.publish("old key");
    let old_key = fs::read(owner.path("key")).unwrap();
    let mut states = vec![owner.signed()];
    let told = rotate().start(&owner.root(), &name(), &owner.keys(), now()).unwrap();
    assert!(told.whitelist.is_some() && !told.needs_signature && !told.finished, "{told:?}");
    states.push(owner.signed());
    assert_ne!(fs::read(owner.path("key")).unwrap(), old_key);
    assert_eq!(fs::read(owner.path("old.key")).unwrap(), old_key);
    let again = rotate().start(&owner.root(), &name(), &owner.keys(), now()).unwrap_err();
    assert!(matches!(again, KeysError::Rotation(_)), "{again}");
    owner.publish("new key");
    states.push(owner.signed());
    let done = rotate()
        .finish(&owner.root(), &name(), &owner.keys(), || owner.open_with(owner.keys()), now())
        .unwrap();
    assert!(done.finished && !done.signed_head && done.old == told.old, "{done:?}");
    states.push(owner.signed());
    owner.assert_clean();
    owner.publish("after");
    states.push(owner.signed());
    for pair in states.windows(2) {
        let [(head, whitelist), (next_head, next_whitelist)] = pair else { unreachable!() };
        for head in [head, next_head] {
            for whitelist in [whitelist, next_whitelist] {
                assert!(owner.accepts(head, whitelist));
            }
        }
    }
    assert!(!owner.accepts(&states[0].0, &states[3].1), "the old certificate is off the whitelist");
    let left: Vec<_> = fs::read_dir(owner.folder.path().join("keys")).unwrap().collect();
    assert_eq!(left.len(), 4, "{left:?}");
    let none = rotate().finish(&owner.root(), &name(), &owner.keys(), || unreachable!(), now()).unwrap_err();
    assert!(matches!(none, KeysError::Rotation(_)), "{none}");
}

/// The head is signed with the new key even if nothing is published.
#[test]
fn a_rotation_finishes_without_a_publish() {
    let owner = Owner::new();
    rotate().start(&owner.root(), &name(), &owner.keys(), now()).unwrap();
    let finish =
        || rotate().finish(&owner.root(), &name(), &owner.keys(), || owner.open_with(owner.keys()), now());
    let done = finish().unwrap();
    assert!(done.signed_head && done.finished, "{done:?}");
    owner.assert_clean();
    owner.publish("after");
}

/// After a failure of any operation, publishing continues, and a repeated command completes the rotation.
#[test]
fn an_interrupted_rotation_continues() {
    let owner = Owner::new();
    let started = |disks: &Disks| rotate().start((disks, &*owner.root()), &name(), &owner.keys(), now());
    let finish = || {
        rotate()
            .finish(&owner.root(), &name(), &owner.keys(), || owner.open_with(owner.keys()), now())
            .unwrap();
        owner.assert_clean();
    };
    let fails_at = |at: u64| {
        let disk = FaultDisk::new(owner.folder.path(), Plan::Fail { at, ever: false, errno: 28 });
        let outcome = started(&disks(&disk));
        owner.assert_clean();
        owner.try_publish(owner.keys(), &format!("after operation {at}")).unwrap();
        if disk.struck() == 0 {
            outcome.unwrap();
        } else {
            match started(&Disks::default()) {
                Ok(_) | Err(KeysError::Rotation(_)) => {}
                Err(error) => panic!("operation {at}: {error}"),
            }
            owner.try_publish(owner.keys(), &format!("repeated after operation {at}")).unwrap();
        }
        finish();
        disk.struck() > 0
    };
    // While the key is made.
    assert!((1..=8).all(fails_at));
    // Later, with one of two keys that are made already, since making one takes its time.
    let mut spare = fs::read(owner.path("key")).unwrap();
    started(&Disks::default()).unwrap();
    finish();
    let mut struck = 0;
    loop {
        let current = fs::read(owner.path("key")).unwrap();
        fs::write(owner.path("next.key"), &spare).unwrap();
        if !fails_at(struck + 1) {
            break;
        }
        struck += 1;
        spare = current;
    }
    assert!(struck > 20, "{struck}");
}

/// The master key is on another machine; the files go back and forth.
#[test]
fn a_whitelist_is_signed_on_another_machine() {
    let owner = Owner::new();
    let offline = owner.folder.path().join("offline");
    fs::create_dir(&offline).unwrap();
    fs::rename(owner.path("masterkey"), offline.join(format!("{NAME}.masterkey"))).unwrap();
    let offline = KeyFolder::new(offline, &name());
    let told = rotate().start(&owner.root(), &name(), &owner.keys(), now()).unwrap();
    assert!(told.needs_signature, "{told:?}");

    let (request, resigned) =
        SignRequest::new(&resign(), &owner.root(), &name(), &owner.keys(), now()).unwrap();
    assert_eq!(resigned.added_next, Some(told.new.clone()));
    let text = request.to_text(&resigned);
    assert!(text.contains(&format!("# new     {}", told.new)), "{text}");
    let read = SignRequest::parse(&text).unwrap();
    assert_eq!(read, request);
    let answer = read.sign(&offline, None).unwrap().to_text();
    let answer = SignAnswer::parse(&answer).unwrap();
    let before = fs::read(owner.root().join(".cvmfswhitelist")).unwrap();
    answer.apply(&owner.root(), &name(), &owner.keys(), now()).unwrap();
    assert_ne!(fs::read(owner.root().join(".cvmfswhitelist")).unwrap(), before);
    owner.assert_clean();

    let told = rotate().start(&owner.root(), &name(), &owner.keys(), now()).unwrap();
    assert!(!told.needs_signature && told.whitelist.is_none(), "{told:?}");
    owner.publish("signed with the new key");
    let old = list_certificates(&owner.root(), &name(), &owner.keys()).unwrap();
    let old = old.iter().find(|certificate| certificate.file == Some("old.crt")).unwrap();
    assert!(old.listed && !old.signed_head, "{old:?}");
    let drop = vec![ContentHash::from_fingerprint(old.fingerprint.as_bytes()).unwrap()];
    let later = UnixTime(now().0 + 60);
    let drop = Resign { drop, ..resign() };
    let (second, told) = SignRequest::new(&drop, &owner.root(), &name(), &owner.keys(), later).unwrap();
    assert_eq!(told.dropped.len(), 1);
    second.sign(&offline, None).unwrap().apply(&owner.root(), &name(), &owner.keys(), later).unwrap();
    let refused = answer.apply(&owner.root(), &name(), &owner.keys(), later).unwrap_err();
    assert!(matches!(refused, KeysError::SignRequest(_)), "an older whitelist: {refused}");
    let done = rotate()
        .finish(&owner.root(), &name(), &owner.keys(), || owner.open_with(owner.keys()), later)
        .unwrap();
    assert!(done.finished && done.whitelist.is_none(), "{done:?}");
    owner.assert_clean();
}

#[test]
fn requests_and_answers_that_were_changed_are_refused() {
    let owner = Owner::new();
    let (request, told) = SignRequest::new(&resign(), &owner.root(), &name(), &owner.keys(), now()).unwrap();
    let text = request.to_text(&told);
    for (from, to) in [
        ("esker-sign-request 1", "esker-sign-request 2"),
        ("algorithm sha1", "algorithm md5"),
        ("begin whitelist\n", ""),
        ("end whitelist\n", ""),
        ("end whitelist\n", "hidden line\nend whitelist\n"),
        ("end whitelist\n", "# 00:11 comment\nend whitelist\nmore\n"),
        ("repository made.test", "repository other.test"),
        ("\nE2", "\nE\u{1b}[2"),
    ] {
        let from = from.replace("made.test", NAME);
        assert!(text.contains(&from), "{from:?} is not in {text}");
        let refused = SignRequest::parse(&text.replacen(&from, to, 1)).map(drop).unwrap_err();
        assert!(matches!(refused, KeysError::SignRequest(_)), "{from:?}: {refused}");
    }
    let before = fs::read(owner.root().join(".cvmfswhitelist")).unwrap();
    let answer = request.sign(&owner.keys(), None).unwrap().to_text();
    let digits = answer.find("signature ").unwrap() + "signature ".len();
    let first = &answer[digits..digits + 1];
    for wrong in [
        answer.replacen("\nE20", "\nE21", 1),
        format!("{}{}{}", &answer[..digits], if first == "0" { "1" } else { "0" }, &answer[digits + 1..]),
        answer.replacen("signature ", "signature 00", 1),
    ] {
        let outcome = SignAnswer::parse(&wrong)
            .and_then(|answer| answer.apply(&owner.root(), &name(), &owner.keys(), now()));
        assert!(outcome.is_err(), "{wrong}");
        assert_eq!(fs::read(owner.root().join(".cvmfswhitelist")).unwrap(), before);
    }
    assert!(SignAnswer::parse(&answer[..digits]).is_err());
}

#[test]
fn a_revoked_certificate_is_off_the_whitelist() {
    let owner = Owner::new();
    let own = list_certificates(&owner.root(), &name(), &owner.keys()).unwrap().remove(0);
    assert!(own.listed && own.signed_head, "{own:?}");
    let revoke = |fingerprint: &str| {
        let drop = vec![ContentHash::from_fingerprint(fingerprint.as_bytes()).unwrap()];
        Resign { drop, ..resign() }.run(&owner.root(), &name(), &owner.keys(), now())
    };
    let needed = revoke(&own.fingerprint).unwrap_err();
    assert!(matches!(needed, KeysError::StillNeeded { .. }), "{needed}");
    let unknown = revoke("58:C3:41:E0:97:9A:5C:C9:AB:02:80:AC:AC:CE:9B:36:4B:29:83:50").unwrap_err();
    assert!(matches!(unknown, KeysError::NotOnWhitelist(_)), "{unknown}");
    rotate().start(&owner.root(), &name(), &owner.keys(), now()).unwrap();
    owner.publish("new key");
    let (head, _) = owner.signed();
    assert_eq!(revoke(&own.fingerprint).unwrap().dropped, [own.fingerprint]);
    assert!(owner.accepts(&head, &owner.signed().1));
    owner.assert_clean();
}

#[test]
fn keys_are_copied_only_if_they_belong_together() {
    let owner = Owner::new();
    let folder = |name_of: &str| KeyFolder::new(owner.folder.path().join(name_of), &name());
    let all = KeyCopy { private: true, master: true, encrypt: false };
    let public = folder("public").copy_from(&owner.keys(), KeyCopy::default()).unwrap();
    let names: Vec<_> =
        public.written.iter().map(|path| path.extension().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["pub", "crt"]);
    let copied = folder("all").copy_from(&owner.keys(), all).unwrap();
    assert_eq!(copied.written.len(), 4);
    let again = folder("all").copy_from(&owner.keys(), all).unwrap();
    assert_eq!((again.written.len(), again.present.len()), (0, 4));
    assert!(folder("all").exposed().is_empty());

    let other = Owner::new();
    rotate().start(&other.root(), &name(), &other.keys(), now()).unwrap();
    let refused = folder("all").copy_from(&other.keys(), all).unwrap_err();
    assert!(matches!(refused, RepositoryError::KeyConflict { .. }), "{refused}");
    fs::remove_file(other.path("crt")).unwrap();
    fs::copy(owner.path("crt"), other.path("crt")).unwrap();
    let refused = folder("mixed").copy_from(&other.keys(), all).unwrap_err();
    assert!(matches!(refused, RepositoryError::Key { .. }), "{refused}");
    fs::remove_file(other.path("masterkey")).unwrap();
    fs::copy(other.path("key"), other.path("masterkey")).unwrap();
    let master = KeyCopy { private: false, ..all };
    let refused = folder("mixed").copy_from(&other.keys(), master).unwrap_err();
    assert!(matches!(refused, RepositoryError::OtherMaster { .. }), "{refused}");
    assert!(!owner.folder.path().join("mixed").exists());
}

#[test]
fn encrypted_keys_sign_with_their_passphrase() {
    let owner = Owner::new();
    let plain = owner.keys();
    let right = owner.keys().with_passphrases(passphrase("correct horse"));
    let which = KeyCopy { private: true, master: true, encrypt: true };
    let refused = plain.set_encryption(which).unwrap_err();
    assert!(matches!(refused, RepositoryError::Passphrase { .. }), "{refused}");
    assert_eq!(right.set_encryption(which).unwrap().len(), 2);
    assert_eq!(right.set_encryption(which).unwrap().len(), 0);
    let text = fs::read_to_string(owner.path("key")).unwrap();
    assert!(text.starts_with("-----BEGIN ENCRYPTED PRIVATE KEY-----"), "{text}");
    let refused = owner.try_publish(plain, "no passphrase").unwrap_err();
    assert!(matches!(refused, PublishError::Repository(RepositoryError::Key { .. })), "{refused}");
    let wrong = owner.keys().with_passphrases(passphrase("battery staple"));
    let refused = owner.try_publish(wrong, "wrong passphrase").unwrap_err();
    assert!(matches!(refused, PublishError::Repository(RepositoryError::Key { .. })), "{refused}");
    owner.try_publish(right.clone(), "with passphrase").unwrap();
    resign().run(&owner.root(), &name(), &right, now()).unwrap();
    owner.assert_clean();
    if !has("openssl") {
        esker_testkit::skip_part!("no openssl");
        return;
    }
    // Either program reads what the other encrypts.
    let decrypted = openssl(&["pkey", "-in", &text_of(&owner.path("key")), "-passin", "pass:correct horse"]);
    assert!(String::from_utf8(decrypted).unwrap().starts_with("-----BEGIN PRIVATE KEY-----"));
    assert_eq!(right.set_encryption(KeyCopy { encrypt: false, ..which }).unwrap().len(), 2);
    let theirs = openssl(&[
        "pkcs8",
        "-topk8",
        "-v2",
        "aes-256-cbc",
        "-in",
        &text_of(&owner.path("key")),
        "-passout",
        "pass:correct horse",
    ]);
    fs::remove_file(owner.path("key")).unwrap();
    fs::write(owner.path("key"), theirs).unwrap();
    owner.try_publish(right, "encrypted by openssl").unwrap();
    owner.assert_clean();
}

pub(crate) fn text_of(path: &Path) -> String {
    path.display().to_string()
}

pub(crate) fn has(program: &str) -> bool {
    Command::new("sh").arg("-c").arg(format!("command -v {program}")).output().unwrap().status.success()
}

pub(crate) fn openssl(arguments: &[&str]) -> Vec<u8> {
    let output = Command::new("openssl").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// One command signs heads and whitelists; what another key signs is not used.
#[test]
fn a_command_signs_in_place_of_both_keys() {
    if !has("openssl") {
        esker_testkit::skip!("no openssl");
    }
    let owner = Owner::new();
    let away = owner.folder.path().join("away");
    fs::create_dir(&away).unwrap();
    let command = |key: &str| {
        format!("openssl pkeyutl -sign -inkey {} -pkeyopt rsa_padding_mode:pkcs1", away.join(key).display())
    };
    for extension in ["key", "masterkey"] {
        fs::rename(owner.path(extension), away.join(extension)).unwrap();
    }
    let given = owner.keys().with_signer(Some(command("key"))).with_master_signer(Some(command("masterkey")));
    owner.try_publish(given.clone(), "signed by a command").unwrap();
    resign().run(&owner.root(), &name(), &given, now()).unwrap();
    owner.assert_clean();

    let keys = owner.keys();
    keys.set_signer(false, Some(&command("key"))).unwrap();
    keys.set_signer(true, Some(&command("masterkey"))).unwrap();
    owner.publish("signed by the command of the folder");
    resign().run(&owner.root(), &name(), &keys, now()).unwrap();
    owner.assert_clean();
    let before = owner.signed();
    for wrong in [command("masterkey"), "false".to_owned(), "cat".to_owned()] {
        let keys = owner.keys().with_signer(Some(wrong.clone()));
        let refused = owner.try_publish(keys, &format!("signed by {wrong}")).unwrap_err();
        assert!(
            matches!(refused, PublishError::Repository(RepositoryError::Signing(_))),
            "{wrong}: {refused}"
        );
        assert_eq!(owner.signed(), before);
    }
    let wrong = owner.keys().with_master_signer(Some(command("key")));
    let refused = resign().run(&owner.root(), &name(), &wrong, now()).unwrap_err();
    assert!(matches!(refused, KeysError::Repository(RepositoryError::OtherMaster { .. })), "{refused}");
    assert_eq!(owner.signed(), before);

    // A command that others can change is not executed.
    use std::os::unix::fs::PermissionsExt as _;
    let path = owner.path("key.signer");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let refused = owner.try_publish(owner.keys(), "exposed").unwrap_err();
    assert!(matches!(refused, PublishError::Repository(RepositoryError::NoKey { .. })), "{refused}");

    // A repository is created without private keys here.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let second = owner.folder.path().join("second").join(NAME);
    NewRepository::new(name()).create(&second, &owner.keys(), now()).unwrap();
    check(&second, NAME, &fs::read_to_string(owner.path("pub")).unwrap()).assert_clean();
    assert!(!owner.path("key").exists() && !owner.path("masterkey").exists());
}

/// Without a master key nothing is signed, and the reason names it.
#[test]
fn a_wrong_master_key_signs_no_whitelist() {
    let owner = Owner::new();
    let wrong = Resign { master: Some(owner.path("key")), ..resign() };
    let refused = wrong.run(&owner.root(), &name(), &owner.keys(), now()).unwrap_err();
    assert!(matches!(refused, KeysError::Repository(RepositoryError::OtherMaster { .. })), "{refused}");
    let late = UnixTime(now().0 + 40 * 86_400);
    let expired = Repository::open(&owner.root(), &name(), owner.keys(), late).map(drop).unwrap_err();
    let RepositoryError::Untrusted { source, .. } = expired else { panic!("{expired}") };
    assert!(matches!(*source, TrustError::WhitelistExpired { .. }), "{source}");
    resign().run(&owner.root(), &name(), &owner.keys(), late).unwrap();
    Repository::open(&owner.root(), &name(), owner.keys(), late).unwrap();
}
