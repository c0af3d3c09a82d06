//! Configuration as it lies on sites.

use std::path::Path;
use std::process::{Command, Output};

use esker_testkit::fixture;
use serde_json::Value;

use crate::person::Person;
use crate::world::{World, words};

/// Writes files below the folder that stands for `/`.
pub(crate) fn write_files(world: &World, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = world.path("root").join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("mkdir");
        std::fs::write(path, text).expect("writing");
    }
}

/// A call of `esker` on a machine with these files.
pub(crate) fn configured(world: &World, arguments: &[&str]) -> Command {
    let mut command = world.esker(arguments);
    command.env("ESKER_CONFIG_ROOT", world.path("root"));
    command
}

fn call(world: &World, arguments: &[&str]) -> Output {
    configured(world, arguments).output().expect("running esker")
}

/// `config show` prints values with their lines, and warns of what has no effect.
#[test]
fn what_is_configured_is_shown_with_its_lines() {
    let world = World::new(Person::ordinary(), fixture::RMD);
    write_files(
        &world,
        &[
            ("/etc/cvmfs/default.conf", "CVMFS_DEFAULT_DOMAIN=example.org\nCVMFS_QUOTA_LIMIT=4000\n"),
            ("/etc/cvmfs/default.local", "CVMFS_HTTP_PROXYS=http://p:3128\nCVMFS_TIMEOUT=$(slow)\n"),
            ("/etc/cvmfs/config.d/sw.example.org.local", "CVMFS_QUOTA_LIMIT=4G\n"),
            ("/etc/esker/esker.toml", "keys_dir = \"/etc/keys\"\n"),
        ],
    );
    let output = call(&world, &["config", "show", "sw", "--origin"]);
    assert!(output.status.success(), "{}", words(&output));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "CVMFS_DEFAULT_DOMAIN=example.org    # from /etc/cvmfs/default.conf:1\n\
         CVMFS_HTTP_PROXYS=http://p:3128    # from /etc/cvmfs/default.local:1\n\
         CVMFS_KEYS_DIR=/etc/keys    # from /etc/esker/esker.toml:1\n\
         CVMFS_QUOTA_LIMIT=4G    # from /etc/cvmfs/config.d/sw.example.org.local:1\n"
    );
    let warned = String::from_utf8_lossy(&output.stderr).into_owned();
    for told in [
        "/etc/cvmfs/default.local:1: CVMFS_HTTP_PROXYS is no parameter of a client",
        "/etc/cvmfs/default.local:2: the output of `slow` is not evaluated, because no shell is run; not set by it: CVMFS_TIMEOUT",
        "/etc/cvmfs/config.d/sw.example.org.local:1: CVMFS_QUOTA_LIMIT=4G can't be: it takes MB",
    ] {
        assert!(warned.contains(told), "{told} is not in {warned}");
    }
    let root = world.path("root");
    let root = root.to_str().expect("a path in UTF-8");
    let output =
        world.esker(&["config", "show", "--json", "--config-root", root]).output().expect("running esker");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(json["repository"].is_null() && output.stderr.is_empty(), "{}", words(&output));
    let quota =
        json["parameters"].as_array().expect("a list").iter().find(|it| it["name"] == "CVMFS_QUOTA_LIMIT");
    let quota = quota.expect("the quota");
    assert_eq!((&quota["value"], &quota["line"]), (&"4000".into(), &2.into()));
    assert_eq!(quota["file"].as_str().map(Path::new), Some(Path::new("/etc/cvmfs/default.conf")));
    let mends: Vec<_> =
        json["findings"].as_array().expect("a list").iter().map(|it| it["mend"].to_string()).collect();
    assert!(mends.iter().any(|mend| mend.contains("write CVMFS_HTTP_PROXY if that is meant")), "{mends:?}");
    let output = world
        .esker(&["config", "show", "sw", "--config-root", "/no/such/root"])
        .output()
        .expect("running esker");
    assert_eq!(output.status.code(), Some(2), "{}", words(&output));
    assert!(words(&output).contains("CVMFS_DEFAULT_DOMAIN is not set"), "{}", words(&output));
}
