//! Keys in tokens: a command signs with them, and rotations put them to use.

use std::fs;
use std::path::Path;
use std::process::Command;

use esker_maintain::{KeysError, Rotate};
use esker_repository::{Disks, RepositoryError, TokenKey};
use esker_testkit::disk::{FaultDisk, Plan};

use crate::keys::{Owner, has, name, openssl, resign, rotate, text_of};
use crate::workshop::{disks, now};

/// Makes a key and its certificate outside of the keys folder, as a token has them; returns what a rotation needs.
fn token_key(folder: &Path, file: &str) -> TokenKey {
    let (key, certificate) = (folder.join(format!("{file}.pem")), folder.join(format!("{file}.crt")));
    openssl(&[
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=a publisher",
        "-keyout",
        &text_of(&key),
        "-out",
        &text_of(&certificate),
    ]);
    let signer = format!("openssl pkeyutl -sign -inkey {} -pkeyopt rsa_padding_mode:pkcs1", key.display());
    TokenKey { signer, certificate }
}

/// From a file to a token, to another token, and back to a file; each step is interrupted at each operation of the disk.
#[test]
fn a_rotation_puts_a_key_in_a_token_to_use() {
    if !has("openssl") {
        esker_testkit::skip!("no openssl");
    }
    let away = tempfile::tempdir().unwrap();
    let tokens = [token_key(away.path(), "first"), token_key(away.path(), "second")];
    let wrong = TokenKey { signer: tokens[0].signer.clone(), certificate: tokens[1].certificate.clone() };
    let owner = Owner::new();
    let start = |owner: &Owner, token: Option<&TokenKey>, disks: &Disks| {
        let rotate = Rotate { token: token.cloned(), ..rotate() };
        rotate.start((disks, &*owner.root()), &name(), &owner.keys(), now())
    };
    let finish = |owner: &Owner| {
        let open = || owner.open_with(owner.keys());
        rotate().finish(&owner.root(), &name(), &owner.keys(), open, now()).unwrap();
        owner.assert_clean();
    };
    let refused = start(&owner, Some(&wrong), &Disks::default()).unwrap_err();
    assert!(matches!(refused, KeysError::Repository(RepositoryError::Signing(_))), "{refused}");
    assert!(!owner.path("next.crt").exists());
    for token in [Some(&tokens[0]), Some(&tokens[1]), None] {
        start(&owner, token, &Disks::default()).unwrap();
        owner.publish("before the end of a rotation");
        finish(&owner);
        assert_eq!(
            (owner.path("key").exists(), owner.path("key.signer").exists()),
            match token {
                Some(_) => (false, true),
                None => (true, false),
            }
        );
        for gone in ["next.key.signer", "old.key.signer", "old.key", "old.crt", "next.crt"] {
            assert!(!owner.path(gone).exists(), "{gone}");
        }
    }
    let mut met = 0;
    for from_token in [false, true] {
        for at in 1.. {
            let owner = Owner::new();
            if from_token {
                start(&owner, Some(&tokens[0]), &Disks::default()).unwrap();
                finish(&owner);
            }
            let disk = FaultDisk::new(owner.folder.path(), Plan::Fail { at, ever: false, errno: 28 });
            let outcome = start(&owner, Some(&tokens[1]), &disks(&disk));
            owner.assert_clean();
            owner.publish(&format!("after operation {at}"));
            if disk.struck() == 0 {
                outcome.unwrap();
                break;
            }
            met += 1;
            match start(&owner, Some(&tokens[1]), &Disks::default()) {
                Ok(_) | Err(KeysError::Rotation(_)) => {}
                Err(error) => panic!("operation {at}: {error}"),
            }
            owner.publish(&format!("repeated after operation {at}"));
            finish(&owner);
        }
    }
    assert!(met > 30, "{met}");
}

/// The keys are in a token, from which they can't be read.
#[test]
fn a_token_signs() {
    const MODULE: &str = "/usr/lib/softhsm/libsofthsm2.so";
    if !has("pkcs11-tool") || !has("softhsm2-util") || !Path::new(MODULE).exists() {
        esker_testkit::skip!("no SoftHSM");
    }
    let owner = Owner::new();
    let tokens = owner.folder.path().join("tokens");
    fs::create_dir(&tokens).unwrap();
    let conf = owner.folder.path().join("softhsm2.conf");
    fs::write(&conf, format!("directories.tokendir = {}\nobjectstore.backend = file\n", tokens.display()))
        .unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).env("SOFTHSM2_CONF", &conf).output().unwrap();
        assert!(
            output.status.success(),
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    run(
        "softhsm2-util",
        &["--init-token", "--free", "--label", "esker", "--pin", "1234", "--so-pin", "1234"],
    );
    for (id, extension) in [("01", "key"), ("02", "masterkey")] {
        let path = owner.path(extension);
        let import = [
            "--import",
            &text_of(&path),
            "--token",
            "esker",
            "--label",
            extension,
            "--id",
            id,
            "--pin",
            "1234",
        ];
        run("softhsm2-util", &import);
        fs::remove_file(&path).unwrap();
        let command = format!(
            "SOFTHSM2_CONF={} pkcs11-tool --module {MODULE} --login --pin 1234 --sign --mechanism RSA-PKCS --id {id} 2>/dev/null",
            conf.display()
        );
        owner.keys().set_signer(extension == "masterkey", Some(&command)).unwrap();
    }
    owner.publish("signed by a token");
    resign().run(&owner.root(), &name(), &owner.keys(), now()).unwrap();
    owner.assert_clean();

    // The next key is in the token, too.
    let next = token_key(owner.folder.path(), "next");
    let file = text_of(&owner.folder.path().join("next.pem"));
    let place = ["--token", "esker", "--label", "next", "--id", "03", "--pin", "1234"];
    run("softhsm2-util", &[&["--import", &file][..], &place].concat());
    fs::remove_file(&file).unwrap();
    let signer = format!(
        "SOFTHSM2_CONF={} pkcs11-tool --module {MODULE} --login --pin 1234 --sign --mechanism RSA-PKCS --id 03 2>/dev/null",
        conf.display()
    );
    let rotate = Rotate { token: Some(TokenKey { signer, ..next }), ..rotate() };
    rotate.start(&owner.root(), &name(), &owner.keys(), now()).unwrap();
    owner.publish("signed by the next key of the token");
    let open = || owner.open_with(owner.keys());
    assert!(rotate.finish(&owner.root(), &name(), &owner.keys(), open, now()).unwrap().finished);
    owner.publish("signed after the rotation");
    owner.assert_clean();
    assert!(!owner.path("key").exists() && !owner.path("old.key.signer").exists());
}
