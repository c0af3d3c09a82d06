//! Parameters about requests, as seen by the proxies and servers of a mount.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use esker_testkit::mirror::{Fault, Mirror};

use super::Site;
use crate::test_user::TestUser;

/// Read one after the other, with an empty cache.
const FILES: [&str; 4] = ["data/random.bin", "data/hex.txt", "perm/m0644", "perm/owned"];

impl Site {
    /// Reads files through a mount with these lines.
    #[track_caller]
    fn reads(&self, lines: &str, files: &[&str]) {
        let mounted = self.mounts(lines);
        for file in files {
            mounted
                .does(|| fs::read(mounted.path(file)))
                .unwrap_or_else(|error| panic!("{lines}: {file}: {error}"));
        }
    }
}

/// Returns the values of this field in requests for objects.
fn told(proxies: &[Mirror], field: &str) -> BTreeSet<String> {
    let all = proxies.iter().flat_map(Mirror::requests);
    all.filter_map(|request| request.header(field).map(str::to_owned)).collect()
}

#[test]
fn network_parameters_act_on_the_requests_of_mounts() {
    for person in TestUser::all() {
        let site = Site::new(person);
        site.reads("", &FILES[2..]);
        for field in ["cvmfs-info", "x-cvmfs-uid", "x-cvmfs-site"] {
            assert_eq!(told(&site.proxies, field), BTreeSet::new(), "{field} was asked for");
        }
        let site = Site::new(person);
        site.reads(
            "CVMFS_SEND_INFO_HEADER=yes\nCVMFS_HTTP_TRACING=on\nCVMFS_HTTP_TRACING_HEADERS='site:x y|rack:7'\n",
            &FILES[2..],
        );
        assert!(told(&site.proxies, "cvmfs-info").iter().any(|what| what.contains("/perm/m0644")));
        assert_eq!(told(&site.proxies, "x-cvmfs-uid"), [person.uid.to_string()].into());
        assert_eq!(told(&site.proxies, "x-cvmfs-gid"), [person.gid.to_string()].into());
        assert_eq!(told(&site.proxies, "x-cvmfs-site"), ["x y".to_owned()].into());
        assert_eq!(told(&site.proxies, "x-cvmfs-rack"), ["7".to_owned()].into());
    }
    redirects();
    // The distribution depends on the ports: at times one proxy has all of the few objects.
    assert!((0..10).any(|_| shards()), "one proxy has everything");
}

/// A server that redirects requests for an object.
fn redirects() {
    let site = Site::new(TestUser::ordinary());
    let object = site.world.repository.contents("v3").whole("/perm/m0644").to_owned();
    let elsewhere = site.second.url(&format!("full.test/{object}"));
    let asked = object.clone();
    let redirect = site.world.mirror.fault(move |path| path.ends_with(&asked), Fault::Redirect(elsewhere));
    let only = site.world.mirror.url("full.test");
    let lines = format!("CVMFS_HTTP_PROXY=DIRECT\nCVMFS_FALLBACK_PROXY=\nCVMFS_SERVER_URL={only}\n");
    site.reads(&format!("{lines}CVMFS_FOLLOW_REDIRECTS=yes\n"), &["perm/m0644"]);
    redirect.assert_hit();
    assert_eq!(site.second.count(|path| path.ends_with(&object)), 1);
}

/// Two proxies share the objects: none is requested from both. Returns whether both were used.
fn shards() -> bool {
    let site = Site::new(TestUser::ordinary());
    site.reads("CVMFS_PROXY_SHARD=yes\nCVMFS_FALLBACK_PROXY=\n", &FILES);
    let mut asked: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (number, proxy) in site.proxies.iter().enumerate() {
        for request in proxy.requests().iter().filter(|request| request.path.contains("/data/")) {
            asked.entry(request.path.clone()).or_default().insert(number);
        }
    }
    assert!(asked.values().all(|proxies| proxies.len() == 1), "{asked:?}");
    asked.values().flatten().collect::<BTreeSet<_>>().len() == 2
}
