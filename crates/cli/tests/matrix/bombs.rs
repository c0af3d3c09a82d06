//! Catalogs and histories that inflate to far more than they are stored with, and commands with little memory.

use std::process::Output;

use esker_testkit::fixture::{Fixture, Repository};
use esker_testkit::object;

use crate::test_env::{TestEnv, words};
use crate::test_user::TestUser;

/// Plain bytes of each bomb.
const PLAIN: usize = 320 << 20;
/// Private memory that each command may have, in bytes: less than a bomb and all that a command needs.
const MEMORY: u64 = 256 << 20;

/// What a hostile publisher states of an object that is all zeros.
#[derive(Clone, Copy, Debug)]
enum Bomb {
    History,
    /// A root catalog whose size the manifest states.
    StatedCatalog,
    /// A root catalog of which the manifest states less.
    UnderstatedCatalog,
    /// A root catalog of which the manifest states nothing.
    UnstatedCatalog,
}

fn publish(repository: &Repository, bomb: Bomb, stored: &[u8]) {
    let mut draft = repository.manifest();
    let hash = draft.algorithm().hash(stored);
    let suffix = if matches!(bomb, Bomb::History) { 'H' } else { 'C' };
    repository.write(&object::path(&hash, &suffix.to_string()), stored);
    draft.set(suffix, hash);
    match bomb {
        Bomb::History => {}
        Bomb::StatedCatalog => drop(draft.set('B', PLAIN)),
        Bomb::UnderstatedCatalog => drop(draft.set('B', 4096)),
        Bomb::UnstatedCatalog => drop(draft.set('B', 0)),
    }
    repository.publish(&draft.sign(&repository.fixture().keys()));
}

/// Runs a command with little memory.
fn run(world: &TestEnv, arguments: &[&str]) -> Output {
    let esker = world.esker(arguments);
    let mut command = world.person.command("sh");
    command.arg("-c").arg(format!("ulimit -d {} && exec \"$@\"", MEMORY >> 10)).arg("sh");
    command.arg(esker.get_program()).args(esker.get_args()).env_clear().current_dir("/");
    command.envs(esker.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.output().expect("running esker")
}

/// No command holds a bomb in memory: each one ends with an error.
#[test]
fn objects_that_inflate_beyond_all_bounds_are_not_held_in_memory() {
    let stored = object::deflate(&vec![0; PLAIN]);
    for bomb in [Bomb::History, Bomb::StatedCatalog, Bomb::UnderstatedCatalog, Bomb::UnstatedCatalog] {
        let world = TestEnv::new(TestUser::ordinary(), Fixture::named("full.test"));
        publish(&world.repository, bomb, &stored);
        let (url, key, cache) = (world.url(), world.path("key.pub"), world.cache());
        let (to, mountpoint, own) = (world.path("home/replica"), world.mountpoint(), world.repository.path());
        let [key, cache, to, mountpoint, own] =
            [&key, &cache, &to, &mountpoint, &own].map(|path| path.to_str().expect("text"));
        let client = ["--public-key", key, "--cache", cache];
        let tags = [&["tag", "list", &url][..], &client].concat();
        let listing = [&["ls", &url][..], &client].concat();
        let mount = [&["mount", &url, mountpoint, "--quota", "100M"][..], &client].concat();
        let replicate = ["replicate", &url, "--to", to, "--public-key", key, "--quiet"];
        let check = ["check", own, "--public-key", key];
        let lines: &[&[&str]] = match bomb {
            Bomb::History => &[&replicate, &check, &tags],
            _ => &[&replicate, &check, &listing, &mount],
        };
        for line in lines {
            let output = run(&world, line);
            let said = words(&output);
            // Not by a signal, nor by a panic.
            let is_error = output.status.code().is_some_and(|code| (1..100).contains(&code));
            assert!(is_error && !said.contains("memory allocation"), "{bomb:?}, {line:?}: {said}");
        }
    }
}
