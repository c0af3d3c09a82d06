//! Tests of options that a daemon hands over.

use std::fs;

use serde_json::json;

use super::*;
use crate::mount_spec::tests::all;
use crate::mount_spec::{ContentSpec, ImagePlace, MountSpec};

fn value(spec: &MountSpec) -> Value {
    serde_json::to_value(spec).expect("a form")
}

/// Returns the pointers to all fields that have no fields of their own.
fn leaves(value: &Value, place: &str) -> Vec<String> {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let below = |(name, value): (&String, &Value)| {
                leaves(value, &format!("{place}/{}", name.replace('~', "~0").replace('/', "~1")))
            };
            fields.iter().flat_map(below).collect()
        }
        _ => vec![place.to_owned()],
    }
}

/// A daemon that was taken over must not choose what the next one does before it is confined.
#[test]
fn a_daemon_changes_nothing_but_what_its_commands_change() {
    let mut free = Vec::new();
    for spec in all() {
        let kept = value(&spec);
        for place in leaves(&kept, "") {
            let mut given = kept.clone();
            *given.pointer_mut(&place).expect("a field") = json!("file:///etc\nauthority /evil\n");
            if merge(&kept, given).is_ok() {
                // A time is seconds and a rest.
                free.push(place.trim_end_matches("/secs").trim_end_matches("/nanos").to_owned());
            }
        }
        for field in ["hidden_folders", "helper"] {
            let mut given = kept.clone();
            given.as_object_mut().expect("fields").insert(field.to_owned(), json!("/evil"));
            assert_eq!(merge(&kept, given), Err(field.to_owned()));
        }
    }
    let fields = |of: &str| COMMANDED.map(|field| format!("{of}{field}"));
    let mut expected: Vec<String> = REPOSITORIES.iter().flat_map(|of| fields(of)).collect();
    free.sort();
    free.dedup();
    expected.sort();
    assert_eq!(free, expected);
}

#[test]
fn a_daemon_changes_servers_and_proxies_but_no_paths_among_them() {
    let kept = "server http://s/cvmfs/a\nproxies http://p:1\nauthority /ca.pem\nexternal server http://e/a\n";
    for given in [
        kept,
        "server http://t/cvmfs/a\nproxies DIRECT\ntime-proxy 7\nauthority /ca.pem\nexternal server http://f/a\n",
    ] {
        assert_eq!(are_servers(kept, given), Ok(()), "{given}");
    }
    assert_eq!(are_servers("file:///srv/a", "server file:///srv/a\nproxies http://p:1\n"), Ok(()));
    for given in [
        "server file:///etc\nproxies http://p:1\nauthority /ca.pem\nexternal server http://e/a\n",
        "server http://s/cvmfs/a\nproxies http://p:1\nexternal server http://e/a\n",
        "server http://s/cvmfs/a\nauthority /evil.pem\nexternal server http://e/a\n",
        "server http://s/cvmfs/a\nauthority /ca.pem\nexternal server s3+file:///etc\n",
        "server http://s/cvmfs/a\nauthority /ca.pem\nexternal authority /evil\n",
        "/etc",
        "",
    ] {
        are_servers(kept, given).expect_err(given);
    }
}

#[test]
fn what_a_daemon_finds_out_is_kept_once() {
    let spec = all().into_iter().find(|spec| match &spec.content {
        ContentSpec::Image(image) => matches!(image.place, ImagePlace::Url { .. }),
        ContentSpec::Repository(_) => false,
    });
    let found = value(&spec.expect("an image on a server"));
    let mut unknown = found.clone();
    *unknown.pointer_mut(KNOWN).expect("a version") = Value::Null;
    assert_eq!(merge(&unknown, found.clone()), Ok(found.clone()));
    let mut other = found.clone();
    *other.pointer_mut("/content/Image/place/Url/known/len").expect("a length") = json!(1);
    assert_eq!(merge(&found, other), Err("len".to_owned()));
}

#[test]
fn each_daemon_has_memory_of_its_own_and_no_other_cache_becomes_memory() {
    let place = "/content/Repository/options/cache";
    let with = |cache: &str| {
        let mut all = value(&all()[0]);
        *all.pointer_mut(place).expect("a cache") = json!(cache);
        all
    };
    let memory = with("/proc/self/fd/7/cache");
    assert_eq!(merge(&memory, with("/proc/self/fd/9/cache")), Ok(memory.clone()));
    assert_eq!(merge(&memory, with("/etc")), Err("cache".to_owned()));
    assert_eq!(merge(&with("/var/lib/esker"), memory), Err("cache".to_owned()));
}

#[test]
fn options_come_in_a_sealed_file_that_never_changes() {
    let spec = &all()[0];
    let kept = spec.sealed().expect("a file");
    let mut changed = value(spec);
    *changed.pointer_mut("/content/Repository/options/quota").expect("a quota") = json!(8);
    let given = sealed(&serde_json::to_vec(&changed).expect("text")).expect("a file");
    let taken = from_daemon(&kept, given).expect("options");
    assert_eq!(value(&MountSpec::read(taken).expect("options")), changed);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("options");
    fs::write(&path, serde_json::to_vec(&changed).expect("text")).expect("a file");
    let file = || File::open(&path).expect("a file").into();
    from_daemon(&kept, file()).expect_err("a file that can change");
    from_outside(file()).expect_err("a file that can change");
    // It would be waited for.
    from_outside(std::io::pipe().expect("a pipe").0.into()).expect_err("a pipe");
    from_daemon(&kept, sealed(b"none").expect("a file")).expect_err("no options");
}
