//! `esker config check`: a complete configuration is clean, and each mistake is named with its mend.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use esker_testkit::fixture;
use esker_testkit::mirror::Fault;
use serde_json::Value;

use super::Site;
use crate::test_env::words;
use crate::test_user::TestUser;

impl Site {
    /// Checks the repository; returns whether that is clean, and the output.
    fn checks(&self) -> (bool, String) {
        let output = self.call(&["config", "check"]);
        let clean = match output.status.code() {
            Some(0) => true,
            Some(2) => false,
            _ => panic!("{}", words(&output)),
        };
        (clean, words(&output))
    }
}

/// A complete configuration is clean, for root and for other users.
#[test]
fn a_complete_configuration_is_clean() {
    for person in TestUser::all() {
        let site = Site::new(person);
        let output = site.call(&["config", "check"]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "full.test: OK\n", "{}", words(&output));
        assert!(output.status.success() && output.stderr.is_empty(), "{}", words(&output));
        for server in [&site.world.mirror, &site.second] {
            assert!(server.requests().is_empty(), "a server was asked around the proxies");
        }
        assert!(site.proxies.iter().all(|proxy| !proxy.requests().is_empty()), "not every proxy was asked");
        let json = site.call(&["config", "check", "full", "--json", "--offline"]);
        let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
        assert_eq!(json, serde_json::json!([{ "repository": "full.test", "findings": [] }]));
    }
}

/// Returns lines that break the configuration, with their message and advice.
fn broken_lines(site: &Site) -> Vec<(String, &'static str, &'static str)> {
    let first = site.world.mirror.url("full.test");
    let proxy = format!("http://127.0.0.1:{}", site.proxies[0].port());
    let absent = site.world.path("home/absent");
    let line = |text: &str| text.to_owned();
    vec![
        (
            line("CVMFS_HTTP_PROXY="),
            "CVMFS_HTTP_PROXY is not set for full.test",
            "to DIRECT if there is no proxy",
        ),
        (
            line("CVMFS_SERVER_URL="),
            "CVMFS_SERVER_URL is not set for full.test",
            "set it in /etc/cvmfs/domain.d/test.local",
        ),
        (
            line("CVMFS_KEYS_DIR=/etc/cvmfs/keys/none"),
            "CVMFS_KEYS_DIR: /etc/cvmfs/keys/none: No such file",
            "a machine that mounts it, has it",
        ),
        (
            line("CVMFS_KEYS_DIR=/etc/cvmfs/domain.d"),
            "/etc/cvmfs/domain.d has no public key (*.pub) in it",
            "put the repository's master key there",
        ),
        (
            line("CVMFS_PUBLIC_KEY=/etc/cvmfs/garbage.pub"),
            "/etc/cvmfs/garbage.pub is not a public key",
            "get the file again from its publisher",
        ),
        (line("CVMFS_PUBLIC_KEY=/etc/cvmfs/stranger.pub"), "can't be verified", "check that the public key"),
        (
            format!(
                "CVMFS_SERVER_URL='{first};http://127.0.0.1:1/full.test'\nCVMFS_HTTP_PROXY=DIRECT\nCVMFS_FALLBACK_PROXY="
            ),
            "the server http://127.0.0.1:1/full.test does not work",
            "remove it from CVMFS_SERVER_URL",
        ),
        (
            format!("CVMFS_HTTP_PROXY='{proxy}|http://127.0.0.1:1'"),
            "the proxy http://127.0.0.1:1 does not work",
            "start it, open the firewall",
        ),
        (
            line("CVMFS_HTTP_PROXY=http://p1:3128,http://p2:3128"),
            "CVMFS_HTTP_PROXY=http://p1:3128,http://p2:3128 can't be",
            "CVMFS_HTTP_PROXY takes proxies with `|`",
        ),
        (line("CVMFS_QUOTA_LIMIT=4G"), "CVMFS_QUOTA_LIMIT=4G can't be: it takes MB", "correct"),
        (line("CVMFS_QUOTA_LIMIT=99999999999"), "but the whole disk of", "set CVMFS_QUOTA_LIMIT to at most"),
        (format!("CVMFS_CACHE_BASE={}", absent.display()), "can't have a cache in", "`mkdir -p"),
        (
            line("CVMFS_CACHE_BASE=/proc/self/status"),
            "/proc/self/status is not a folder",
            "set CVMFS_CACHE_BASE to a folder",
        ),
        (format!("CVMFS_MOUNT_DIR={}", absent.display()), "CVMFS_MOUNT_DIR: ", "or `esker setup`"),
        (
            line("CVMFS_STRICT_MOUNT=yes\nCVMFS_REPOSITORIES=other"),
            "full.test is not in CVMFS_REPOSITORIES",
            "add full.test to CVMFS_REPOSITORIES",
        ),
        (
            line("CVMFS_STRICT_MOUNT=yes\nCVMFS_REPOSITORIES="),
            "lists nothing, so that nothing may be mounted",
            "list the repositories in CVMFS_REPOSITORIES",
        ),
        (
            line("CVMFS_TIMEOUT='5"),
            "a closing quote is missing; the rest of this file is not read",
            "try it with `sh -n FILE`",
        ),
        (
            line("CVMFS_HTTP_PROXY=$(find-proxy)"),
            "the command `find-proxy` is not evaluated",
            "write the value itself",
        ),
        (line("CVMFS_OOM_SCORE_ADJ=1001"), "CVMFS_OOM_SCORE_ADJ=1001 can't be: it is not from", "correct"),
        (
            line("CVMFS_UID_MAP=/etc/cvmfs/none"),
            "CVMFS_UID_MAP=/etc/cvmfs/none can't be: No such file",
            "correct",
        ),
        (line("CVMFS_XATTR_PROTECTED_XATTRS=user.hots"), "user.hots is not an attribute", "correct"),
        (
            line("CVMFS_TELEMETRY_SEND=yes"),
            "CVMFS_INFLUX_PORT is not set for full.test",
            "or CVMFS_TELEMETRY_SEND=no",
        ),
        (line("CVMFS_ROOT_HASH=12"), "CVMFS_ROOT_HASH=12 can't be: it takes a content hash", "correct"),
    ]
}

/// Each mistake is reported with its place and advice.
#[test]
fn mistakes_in_the_configuration_are_reported_with_advice() {
    let site = Site::new(TestUser::ordinary());
    let local = "/etc/cvmfs/config.d/full.test.local";
    let stranger = std::fs::read_to_string(fixture::RMD.public_key()).expect("a key");
    site.write("/etc/cvmfs/stranger.pub", &stranger);
    site.write("/etc/cvmfs/garbage.pub", "no key\n");
    let broken = broken_lines(&site);
    assert!(broken.len() > 15);
    for (lines, told, mend) in broken {
        site.write(local, &lines);
        // A change of the list would change which repositories are looked at.
        let output = site.call(&["config", "check", "full"]);
        let said = words(&output);
        assert_eq!(output.status.code(), Some(2), "{lines}: {said}");
        assert!(said.contains(told) && said.contains(mend), "{lines}: {told:?} or {mend:?} is not in {said}");
    }
    // Lines that work, but not as written.
    for (lines, told, mend) in [
        (
            "CVMFS_HTTP_PROXYS=x",
            "full.test.local:1: CVMFS_HTTP_PROXYS is unknown to Esker",
            "write CVMFS_HTTP_PROXY if you mean that",
        ),
        ("CVMFS_CONFIG_REPOSITORY=late.test", "late.test comes too late", "in /etc/cvmfs/default.d/"),
        (
            "CVMFS_SUID=yes",
            "CVMFS_SUID=yes is not honoured: nothing in a mount gains rights",
            "docs/parameters.md describes",
        ),
        ("CVMFS_QUOTA_LIMIT=10", "a quota of 10 MB is too small", "set CVMFS_QUOTA_LIMIT to 4000"),
    ] {
        site.write(local, lines);
        let (clean, said) = site.checks();
        assert!(clean && said.contains(told) && said.contains(mend), "{lines}: {said}");
    }
}

/// Wrong permissions of files and folders are reported, and so are servers with wrong replies.
#[test]
fn wrong_permissions_and_servers_are_reported_with_advice() {
    let site = Site::new(TestUser::ordinary());
    let world = &site.world;
    let root = |path: &str| world.path("root").join(path);
    let mode =
        |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
    let base = world.path("home/caches");
    let key = root("etc/cvmfs/keys/test/test.pub");
    let general = root("etc/cvmfs/default.local");
    for (path, bad, good, told, mend) in [
        (&base, 0o777, 0o755, "others may write to", "`chmod go-w"),
        (&base, 0o555, 0o755, "is not writable", "use their own cache"),
        (
            &key,
            0o666,
            0o644,
            "other users may change the public key",
            "`chmod go-w /etc/cvmfs/keys/test/test.pub`",
        ),
        (&key, 0, 0o644, "can't read the public key /etc/cvmfs/keys/test/test.pub", "`chmod a+r"),
        (
            &general,
            0o666,
            0o644,
            "default.local: other users may change this file",
            "`chmod go-w /etc/cvmfs/default.local`",
        ),
        (
            &general,
            0,
            0o644,
            "can't read /etc/cvmfs/default.local: Permission denied",
            "chmod a+r /etc/cvmfs/default.local",
        ),
    ] {
        mode(path, bad);
        let output = site.call(&["config", "check", "full"]);
        mode(path, good);
        let said = words(&output);
        assert_eq!(output.status.code(), Some(2), "{}: {said}", path.display());
        assert!(
            said.contains(told) && said.contains(mend),
            "{}: {told:?} or {mend:?} is not in {said}",
            path.display()
        );
    }
    let strange = std::fs::read(fixture::RMD.unpack().document_root().join("rmd.test/.cvmfspublished"));
    site.second.put("full.test/.cvmfspublished", strange.expect("a manifest"));
    site.write(
        "/etc/cvmfs/config.d/full.test.local",
        "CVMFS_HTTP_PROXY=DIRECT\nCVMFS_FALLBACK_PROXY=\nCVMFS_TIMEOUT_DIRECT=2\n",
    );
    let (clean, said) = site.checks();
    assert!(!clean && said.contains("the manifest is for repository `rmd.test`"), "{said}");
    let silent = world.mirror.fault(|_| true, Fault::NoAnswer);
    let (clean, said) = site.checks();
    silent.assert_hit();
    let first = world.mirror.url("full.test");
    assert!(!clean && said.contains(&format!("the server {first} d")), "{said}");
    let empty =
        world.esker(&["config", "check", "--config-root", "/no/such/root"]).output().expect("running esker");
    assert_eq!(empty.status.code(), Some(2), "{}", words(&empty));
    assert!(words(&empty).contains("there is no configuration"), "{}", words(&empty));
}
