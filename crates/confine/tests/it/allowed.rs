//! What a confined process goes on doing.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use esker_confine::Role;

use crate::trial::{HELPERS, Scene, enter, without_programs};

/// A TCP server that was opened before the process was confined, as those of `esker serve` are.
fn open_server() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

#[test]
fn child_that_works() {
    let listener = open_server();
    let Some((role, folder)) = enter() else { return };
    assert_eq!(fs::read_to_string(folder.join("read/file")).unwrap(), "read");
    assert_eq!(fs::read_dir(folder.join("read")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(folder.join("list")).unwrap().count(), 1);
    let thread = std::thread::Builder::new().name("worker".into()).spawn(|| 7).unwrap();
    assert_eq!(thread.join().unwrap(), 7);
    std::thread::park_timeout(std::time::Duration::from_millis(1));
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"x").unwrap();
    reader.read_exact(&mut [0]).unwrap();
    if !HELPERS.contains(&role) {
        if role != Role::Metrics {
            works_with_files(role, &folder.join("write"));
        }
        if role != Role::Asker {
            works_with_connections(&listener);
        }
        if role == Role::Asker {
            works_with_paths_of_sockets(&folder.join("write"));
        }
        assert!(!fs::read_to_string("/proc/self/status").unwrap().is_empty());
        File::options().write(true).open("/dev/null").unwrap().write_all(b"x").unwrap();
    }
    if [Role::Mount, Role::Opener].contains(&role) {
        assert!(!fs::read_to_string("/etc/passwd").unwrap().is_empty());
    }
    println!("worked");
}

fn works_with_files(role: Role, folder: &std::path::Path) {
    let (sub, file) = (folder.join("sub"), folder.join("sub/file"));
    fs::create_dir(&sub).unwrap();
    fs::write(&file, "new").unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    fs::rename(&file, folder.join("renamed")).unwrap();
    fs::hard_link(folder.join("renamed"), &file).unwrap();
    if role == Role::Mount {
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&file, private).unwrap();
        File::open(&file).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    }
    File::options().write(true).open(&file).unwrap().set_len(1).unwrap();
    assert_eq!(
        rustix::fs::flock(File::open(&file).unwrap(), rustix::fs::FlockOperation::LockExclusive),
        Ok(())
    );
    fs::remove_dir_all(&sub).unwrap();
}

fn works_with_connections(listener: &TcpListener) {
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    client.write_all(b"x").unwrap();
    accepted.read_exact(&mut [0]).unwrap();
}

fn works_with_paths_of_sockets(folder: &std::path::Path) {
    let path = folder.join("socket");
    let _local = UnixListener::bind(&path).unwrap();
    UnixStream::connect(&path).unwrap();
}

#[test]
fn allowed_work_goes_on_in_every_role() {
    for role in without_programs() {
        let text = Scene::new().confined(role, "allowed::child_that_works");
        assert!(text.contains("worked"), "{role:?}: {text}");
    }
}

#[test]
fn child_that_starts_a_thread_first() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let early = std::thread::spawn(move || {
        receiver.recv().unwrap();
        Command::new("/bin/true").status().unwrap().success()
    });
    if enter().is_none() {
        drop(sender);
        // Not confined, it ends without its message.
        assert!(early.join().is_err());
        return;
    }
    sender.send(()).unwrap();
    assert!(early.join().unwrap());
    let late = std::thread::spawn(|| Command::new("/bin/true").status());
    assert!(late.join().unwrap().is_err());
    println!("threads differ");
}

#[test]
fn threads_started_before_are_not_confined_and_later_ones_are() {
    let text = Scene::new().confined(Role::Mount, "allowed::child_that_starts_a_thread_first");
    assert!(text.contains("threads differ"), "{text}");
}
