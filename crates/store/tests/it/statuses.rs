//! Answers that are whole files without status 200.

use esker_store::{Cause, Fetch, Servers, connect};
use esker_testkit::mirror::Fault;

use crate::rig::{Rig, bytes, noise, objects, serve, zlib};

#[test]
fn complete_ranges_and_proxy_changed_responses_are_whole_files() {
    let mut objects = objects(2);
    objects.push(zlib(&noise(99, 3 << 20)));
    let (mirror, _folder) = serve(&objects);
    for fault in [Fault::Called(203), Fault::Part(u64::MAX)] {
        let rule = mirror.fault(|_| true, fault.clone());
        let rig = Rig::new();
        let store = rig.open(&mirror.url("repo"));
        for object in &objects {
            assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain, "{fault:?}");
        }
        rule.assert_hit();
        rule.lift();
    }
}

#[test]
fn objects_changed_by_a_proxy_are_verified() {
    let objects = objects(1);
    let (mirror, _folder) = serve(&objects);
    let path = format!("/repo/{}", objects[0].wanted.name.path());
    let mut damaged = objects[0].stored.clone();
    damaged[100] ^= 1;
    mirror.put(&path, damaged);
    let rule = mirror.fault(|_| true, Fault::Called(203));
    let rig = Rig::new();
    let error = bytes(&rig.open(&mirror.url("repo")), &objects[0].wanted).unwrap_err();
    rule.assert_hit();
    assert!(matches!(error.cause(), Cause::Corrupt { .. }), "{error}");
}

/// An incomplete response is refused, also for files without a hash, and another server is used.
#[test]
fn an_unrequested_206_is_rejected() {
    let objects = objects(2);
    let ((bad, _one), (good, _other)) = (serve(&objects), serve(&objects));
    [&bad, &good].into_iter().for_each(|mirror| mirror.put("/repo/plain", "a text without a hash"));
    let rule = bad.fault(|_| true, Fault::Part(10));
    let rig = Rig::new();
    let error = bytes(&rig.open(&bad.url("repo")), &objects[0].wanted).unwrap_err();
    assert!(matches!(error.cause(), Cause::Broken(_)), "{error}");
    assert!(error.to_string().contains("sent a part of it (status 206)"), "{error}");
    let both = Servers { urls: vec![bad.url("repo"), good.url("repo")], ..Servers::direct("") };
    let source = connect(&rig.engine, both).unwrap();
    assert_eq!(bytes(&rig.store(source.clone()), &objects[1].wanted).unwrap(), objects[1].plain);
    let plain =
        esker_store::Callback::wait(|done| source.fetch(Fetch::new("plain", "a text", 100), done)).unwrap();
    assert_eq!(plain.into_bytes().unwrap(), b"a text without a hash");
    rule.assert_hit();
}
