//! Several mounts, one cache.

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::channel;

use esker_testkit::fixture::{self, Fixture};
use esker_testkit::mirror::Fault;
use esker_testkit::waiting::until;
use rustix::process::Signal;
use serde_json::Value;

use crate::daemons::{signal, wait_until_gone};
use crate::test_env::{PATIENCE, TestEnv, words};
use crate::test_user::TestUser;

/// A second mount of the same world, with the same cache.
pub(crate) struct Second<'w> {
    world: &'w TestEnv,
    pub(crate) mountpoint: PathBuf,
}

impl<'w> Second<'w> {
    fn mount(world: &'w TestEnv, name: &str) -> Self {
        Self::mount_of(world, &world.url(), name)
    }

    pub(crate) fn mount_of(world: &'w TestEnv, url: &str, name: &str) -> Self {
        let mountpoint = world.path("home").join(name);
        world.person.does(|| fs::create_dir(&mountpoint)).expect("a folder");
        let output = world
            .esker(&["mount", url])
            .arg(&mountpoint)
            .arg("--public-key")
            .arg(world.path("key.pub"))
            .arg("--cache")
            .arg(world.cache())
            .output()
            .expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
        Self { world, mountpoint }
    }

    pub(crate) fn status(&self) -> Value {
        let output =
            self.world.esker(&["status", "--json"]).arg(&self.mountpoint).output().expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
        let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        all["mounts"][0].clone()
    }
}

impl Drop for Second<'_> {
    fn drop(&mut self) {
        let output = self.world.esker(&["umount"]).arg(&self.mountpoint).output().expect("running esker");
        if !std::thread::panicking() {
            assert!(output.status.success(), "{}", words(&output));
            // The next second mount of this world makes it again.
            fs::remove_dir(&self.mountpoint).expect("an empty folder");
        }
    }
}

/// Returns the largest files that are stored as one object, with the object's path.
fn files_of(world: &TestEnv, fixture: Fixture) -> Vec<(String, String, String)> {
    let contents = world.repository.contents("v3");
    let mut files: Vec<(u64, String, String, String)> = fixture
        .listing("v3")
        .into_iter()
        .filter(|entry| entry.is_file() && entry.mode & 0o444 == 0o444)
        .filter_map(|entry| {
            let whole = contents.files.get(&entry.path)?.whole.clone()?;
            let name = String::from_utf8(entry.path[1..].to_vec()).ok()?;
            Some((entry.size?, name, whole, entry.sha256?))
        })
        .collect();
    files.sort();
    files.reverse();
    files.into_iter().take(3).map(|(_, name, whole, sum)| (name, whole, sum)).collect()
}

fn sum_of(world: &TestEnv, path: PathBuf) -> std::io::Result<String> {
    world.person.does(|| fs::read(path)).map(|content| esker_testkit::object::sha256(&content))
}

#[test]
fn mounts_read_objects_that_another_mount_fetched() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        let first = world.mount(&[]);
        let second = Second::mount(&world, "second");
        assert_eq!(first.status()["cache"]["writer"], true);
        assert_eq!(second.status()["cache"]["writer"], false);
        for (name, object, sum) in files_of(&world, fixture::RMD) {
            assert_eq!(sum_of(&world, first.path(&name)).expect("reading"), sum);
            assert_eq!(sum_of(&world, second.mountpoint.join(&name)).expect("reading"), sum);
            let fetched = world.mirror.count(|path| path.ends_with(&object));
            assert_eq!(fetched, 1, "{object} was fetched {fetched} times");
        }
        assert_eq!(first.status()["cache"]["bytes"], second.status()["cache"]["bytes"]);
        let fetched = first.status()["fetched"].clone();
        assert_eq!(fetched, second.status()["fetched"], "what one fetched the other can read");
        assert!(fetched["objects"].as_u64() > Some(0) && fetched["bytes"].as_u64() > Some(0), "{fetched}");
    }
}

/// The process that writes the cache ends, by `kill -9` or by unmounting, while others wait for it: one of them takes
/// over, and no read fails.
#[test]
fn no_read_fails_when_the_cache_writer_ends() {
    for (person, killed) in TestUser::all().into_iter().flat_map(|person| [(person, true), (person, false)]) {
        let world = TestEnv::new(person, fixture::RMD);
        let first = world.mount(&[]);
        let others = [Second::mount(&world, "second"), Second::mount(&world, "third")];
        let writer = u32::try_from(first.status()["pid"].as_u64().expect("a process id")).expect("an id");
        let files = files_of(&world, fixture::RMD);
        let stalled = files[0].1.clone();
        let rule = world.mirror.fault(move |path| path.ends_with(&stalled), Fault::StallAfter(10));
        let (told, outcomes) = channel();
        std::thread::scope(|scope| {
            for other in &others {
                let (told, path) = (told.clone(), other.mountpoint.join(&files[0].0));
                let world = &world;
                scope.spawn(move || told.send(sum_of(world, path)).expect("the test waits"));
            }
            rule.wait_for_hits(1);
            if killed {
                signal(writer, Signal::KILL);
                wait_until_gone(writer);
            }
            drop(first);
            rule.lift();
            for _ in &others {
                assert_eq!(
                    outcomes.recv().expect("an outcome").expect("a read that must not fail"),
                    files[0].2
                );
            }
        });
        // A mount may have read without a writer, before one of them has taken over.
        let writers = || others.iter().filter(|other| other.status()["cache"]["writer"] == true).count();
        assert!(until(PATIENCE, || writers() == 1), "{} of two mounts write the cache", writers());
        for other in &others {
            for (name, _, sum) in &files {
                assert_eq!(sum_of(&world, other.mountpoint.join(name)).expect("reading"), *sum);
            }
        }
    }
}
