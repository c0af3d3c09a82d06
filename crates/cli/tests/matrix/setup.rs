//! `esker setup`: a machine that mounts repositories by itself, with the real automounter.

use std::path::Path;
use std::process::Command;

use esker_testkit::fixture;

use crate::person::Person;
use crate::world::{World, words};

/// Runs `esker setup` on a folder that stands for a machine; no rights are needed for that.
fn staged(world: &World, arguments: &[&str]) -> std::process::Output {
    let stage = world.path("home/stage");
    let mut command = world.esker(&["setup", "--root"]);
    command.arg(stage).args(arguments);
    command.output().expect("running esker")
}

/// Packagers and tests set up a folder; what systemd says of the units is nothing.
#[test]
fn units_are_as_systemd_wants_them() {
    for person in Person::all() {
        let world = World::new(person, fixture::RMD);
        let output = staged(&world, &["--with", "systemd", "sw-dev.example.org", "--program", "/bin/true"]);
        assert!(output.status.success(), "{}", words(&output));
        let folder = world.path("home/stage/etc/systemd/system");
        for kind in ["mount", "automount"] {
            let unit = folder.join(format!(r"cvmfs-sw\x2ddev.example.org.{kind}"));
            let output = Command::new("systemd-analyze").arg("verify").arg(&unit).output();
            let output = output.expect("running systemd-analyze");
            assert!(output.status.success() && output.stderr.is_empty(), "{}", words(&output));
        }
        let link = folder.join(r"multi-user.target.wants/cvmfs-sw\x2ddev.example.org.automount");
        let target = person.does(|| std::fs::read_link(link)).expect("a link");
        assert!(target.starts_with("/etc/systemd/system"), "{target:?}");
        let output = staged(&world, &["--undo"]);
        assert!(output.status.success(), "{}", words(&output));
        let left = person.does(|| std::fs::read_dir(world.path("home/stage")).map(Iterator::count));
        assert_eq!(left.expect("a folder"), 0, "{}", words(&output));
    }
}

#[test]
fn wrong_calls_of_setup_change_nothing() {
    let world = World::new(Person::ordinary(), fixture::RMD);
    let cases: [(&[&str], &str); 6] = [
        (&["--with", "systemd"], "which repositories"),
        (&["--with", "autofs", "a.test"], "not only a.test"),
        (&["--with", "fstab", "a b"], "a b"),
        (&["--mount-dir", "cvmfs"], "absolute"),
        (&["--mount-dir", "/a b"], "absolute"),
        (&["--with", "nonsense"], "nonsense"),
    ];
    for (arguments, named) in cases {
        let output = staged(&world, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", words(&output));
        assert!(String::from_utf8_lossy(&output.stderr).contains(named), "{}", words(&output));
    }
    let told = staged(&world, &["--with", "fstab", "a.test", "--dry-run"]);
    assert!(told.status.success(), "{}", words(&told));
    assert!(
        String::from_utf8_lossy(&told.stdout).contains("would add to /etc/fstab: a.test /cvmfs/a.test esker")
    );
    assert!(!Path::new(&world.path("home/stage")).exists());
}
