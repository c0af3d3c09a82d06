//! What a confined process opens again after it was exchanged, and where random numbers come from without the system call.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::mpsc::channel;

use esker_confine::Role;

use crate::trial::{HELPERS, Scene, enter, without_programs};

/// Puts a new certificate, as certbot does, and a new storage folder in place of the old ones.
fn exchange(folder: &Path) {
    fs::write(folder.join("archive/cert2.pem"), "second").unwrap();
    symlink("../archive/cert2.pem", folder.join("live/next")).unwrap();
    fs::rename(folder.join("live/next"), folder.join("live/cert.pem")).unwrap();
    fs::create_dir(folder.join("site/next")).unwrap();
    fs::write(folder.join("site/next/head"), "second").unwrap();
    fs::rename(folder.join("site/store"), folder.join("old")).unwrap();
    fs::rename(folder.join("site/next"), folder.join("site/store")).unwrap();
}

#[test]
fn child_that_reads_again() {
    let (sender, receiver) = channel();
    let (done, is_done) = channel();
    // Not confined, because it starts before.
    let other = std::thread::spawn(move || {
        if let Ok(folder) = receiver.recv() {
            exchange(folder);
            done.send(()).unwrap();
        }
    });
    let entered = enter();
    if let Some((role, folder)) = entered {
        let folder: &'static Path = Box::leak(folder.into_boxed_path());
        let read = |path: &str| fs::read_to_string(folder.join(path)).unwrap();
        assert_eq!((read("live/cert.pem"), read("site/store/head")), ("first".into(), "first".into()));
        sender.send(folder).unwrap();
        is_done.recv().unwrap();
        assert_eq!((read("live/cert.pem"), read("site/store/head")), ("second".into(), "second".into()));
        if role != Role::Mount {
            assert!(File::open(folder.join("other/file")).is_err(), "it reads everything");
        }
        println!("read again");
    }
    drop(sender);
    other.join().unwrap();
}

#[test]
fn what_is_exchanged_can_be_read_in_every_role() {
    for role in without_programs() {
        let scene = Scene::new();
        let folder = scene.folder.path();
        for name in ["live", "archive", "site/store"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        fs::write(folder.join("archive/cert1.pem"), "first").unwrap();
        symlink("../archive/cert1.pem", folder.join("live/cert.pem")).unwrap();
        fs::write(folder.join("site/store/head"), "first").unwrap();
        let text = scene.confined(role, "exchanged::child_that_reads_again");
        assert!(text.contains("read again"), "{role:?}: {text}");
    }
}

#[test]
fn child_that_opens_devices() {
    if enter().is_none() {
        return;
    }
    // The first is looked at until the kernel has random numbers.
    for device in ["/dev/random", "/dev/urandom"] {
        File::open(device).unwrap();
    }
    println!("opened devices");
}

#[test]
fn random_numbers_can_be_had_from_devices_in_every_role_with_a_network() {
    for role in without_programs().filter(|role| !HELPERS.contains(role)) {
        let text = Scene::new().confined(role, "exchanged::child_that_opens_devices");
        assert!(text.contains("opened devices"), "{role:?}: {text}");
    }
}
