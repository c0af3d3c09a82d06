//! Extended attributes about a repository and its mount.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rustix::fs::{getxattr, listxattr};
use rustix::io::Errno;

use super::Site;
use super::acting::LOCAL;
use crate::test_env::{Mounted, words};
use crate::test_user::TestUser;

/// The largest value that Linux takes.
const VALUE_MAX: usize = 65_536;
const METAINFO: &str = "{\"administrator\": \"nobody\"}\n";

pub(super) fn get(path: &Path, name: &str) -> Result<String, Errno> {
    let mut value = vec![0; VALUE_MAX];
    let len = getxattr(path, name, &mut value[..])?;
    value.truncate(len);
    Ok(String::from_utf8(value).expect("text"))
}

fn names(path: &Path) -> BTreeSet<String> {
    let mut names = vec![0; VALUE_MAX];
    let len = listxattr(path, &mut names[..]).expect("names");
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8(name.to_vec()).expect("text")).collect()
}

impl Site {
    #[track_caller]
    pub(super) fn mounts(&self, lines: &str) -> Mounted<'_> {
        self.write(LOCAL, lines);
        self.mount().unwrap_or_else(|output| panic!("{lines}: {}", words(&output)))
    }
}

/// A mount has the attributes that scripts read from the reference client.
#[test]
fn attributes_describe_routes_and_use_of_a_repository() {
    for person in TestUser::all() {
        let site = Site::new(person);
        let repository = &site.world.repository;
        let described = repository.store(METAINFO.as_bytes(), "M");
        repository.publish(&repository.draft_at("v3").set('M', described).sign(&site.world.fixture().keys()));
        let mounted =
            site.mounts("CVMFS_TIMEOUT=7\nCVMFS_EXTERNAL_URL=http://outside/x\nCVMFS_EXTERNAL_TIMEOUT=8\n");
        let root = mounted.path("");
        let [one, two, three] =
            site.proxies.each_ref().map(|proxy| format!("http://127.0.0.1:{}", proxy.port()));
        let servers = [&site.world.mirror, &site.second].map(|server| server.url("full.test"));
        mounted.does(|| {
            let content = fs::read(mounted.path("data/random.bin")).expect("a file");
            let told = |name: &str| get(&root, name).unwrap_or_else(|error| panic!("{name}: {error}"));
            let number =
                |name: &str| told(name).parse::<f64>().unwrap_or_else(|_| panic!("{name}: {}", told(name)));
            assert_eq!(told("user.host"), servers[0]);
            assert_eq!(told("user.host_list"), servers.join(";"));
            assert!([&one, &two].contains(&&told("user.proxy")), "{}", told("user.proxy"));
            let list = told("user.proxy_list");
            assert_eq!(list.lines().collect::<BTreeSet<_>>(), [&*one, &two, &three].into(), "{list}");
            for (name, value) in [
                ("user.timeout", "7"),
                ("user.timeout_direct", "10"),
                ("user.external_host", "http://outside/x"),
                ("user.external_timeout", "8"),
                ("user.proxy_list_external", "DIRECT\n"),
                ("user.ncleanup24", "-1"),
                ("user.nioerr", "0"),
            ] {
                assert_eq!(told(name), value, "{name}");
            }
            assert!(number("user.rx") >= (content.len() / 1024) as f64, "{}", told("user.rx"));
            assert!(number("user.ndownload") >= 3.0 && number("user.nclg") >= 1.0);
            assert!((0.0..100.0).contains(&number("user.hitrate")), "{}", told("user.hitrate"));
            for name in ["user.nopen", "user.ndiropen", "user.usedfd", "user.useddirp"] {
                assert!(number(name) >= 0.0);
            }
            for name in ["user.pid", "user.maxfd", "user.inode_max", "user.revision_timestamp"] {
                assert!(number(name) > 0.0, "{name}");
            }
            assert!((0.0..61.0).contains(&number("user.expires")) && number("user.uptime") < 60.0);
            let key = fs::read_to_string(site.world.path("key.pub")).expect("the key");
            let (key, shown) = (key.replace('\n', ""), told("user.pubkeys").replace('\n', ""));
            assert!(key.contains(&shown) && shown.contains("PUBLIC KEY"), "{shown}");
            assert!(told("user.speed") == "n/a" || number("user.speed") > 0.0);
            assert_eq!(told("user.repo_metainfo"), METAINFO);
            // Every listed attribute is readable.
            let listed = names(&root);
            assert!(listed.len() > 25, "{listed:?}");
            listed.iter().for_each(|name| drop(get(&root, name).unwrap_or_else(|e| panic!("{name}: {e}"))));
        });
        // With the proxy in use gone, another one is named.
        let before = get_by(&mounted, &root, "user.proxy").expect("a proxy");
        let gone = if before == one { &site.proxies[0] } else { &site.proxies[1] };
        gone.leave();
        mounted.does(|| fs::read(mounted.path("data/hex.txt")).expect("a file"));
        let after = get_by(&mounted, &root, "user.proxy").expect("a proxy");
        assert!(after != before && [&one, &two].contains(&&after), "{before} {after}");
    }
}

fn get_by(mounted: &Mounted<'_>, path: &Path, name: &str) -> Result<String, Errno> {
    mounted.does(|| get(path, name))
}

/// Attributes are listed where that is configured, and answer to their names everywhere.
#[test]
fn attributes_are_listed_where_configured() {
    let site = Site::new(TestUser::ordinary());
    for (lines, at_root, at_file) in [
        ("", true, false),
        ("CVMFS_MAGIC_XATTRS_VISIBILITY=rootonly\n", true, false),
        ("CVMFS_MAGIC_XATTRS_VISIBILITY=never\n", false, false),
        ("CVMFS_MAGIC_XATTRS_VISIBILITY=always\n", true, true),
        ("CVMFS_HIDE_MAGIC_XATTRS=yes\n", false, false),
        ("CVMFS_HIDE_MAGIC_XATTRS=no\n", true, true),
    ] {
        let mounted = site.mounts(lines);
        mounted.does(|| {
            let (root, file) = (mounted.path(""), mounted.path("perm/m0644"));
            let listed = |path: &Path, name: &str| names(path).contains(name);
            assert_eq!(
                (listed(&root, "user.fqrn"), listed(&root, "user.host")),
                (at_root, at_root),
                "{lines}"
            );
            assert_eq!(
                (listed(&file, "user.fqrn"), listed(&file, "user.hash")),
                (at_file, at_file),
                "{lines}"
            );
            assert!(!listed(&root, "user.hash"));
            assert_eq!(get(&file, "user.fqrn").as_deref(), Ok("full.test"), "{lines}");
            names(&file)
                .iter()
                .for_each(|name| drop(get(&file, name).unwrap_or_else(|e| panic!("{name}: {e}"))));
        });
    }
}

/// Protected attributes do not exist for users without a privileged group, by any system call.
#[test]
fn protected_attributes_are_shown_to_privileged_groups_only() {
    for person in TestUser::all() {
        let site = Site::new(person);
        // Root may always ask, and lets others in.
        let asker = TestUser::ordinary();
        let ask = |name: &str| asker.does(|| get(&site.world.mountpoint(), name));
        let protect = "CVMFS_XATTR_PROTECTED_XATTRS=user.pubkeys,user.host\nCVMFS_XATTR_PRIVILEGED_GIDS=";
        let (own, other) = (format!("{protect}4711,{}\n", asker.gid), format!("{protect}4711\n"));
        for (lines, may) in [(&own, true), (&other, false)] {
            let mounted = site.mounts(lines);
            for name in ["user.pubkeys", "user.pubkeys~0", "user.host", "user.host@?"] {
                assert_eq!(ask(name).is_ok(), may, "{lines} {name}: {:?}", ask(name));
            }
            assert_eq!(ask("user.fqrn").as_deref(), Ok("full.test"));
            assert_eq!(get_by(&mounted, &mounted.path(""), "user.host").is_ok(), may || person.is_root());
        }
        // A mount that stays at its revision must not ask in the name of root.
        site.write(LOCAL, &other);
        let mountpoint = site.world.mountpoint();
        let output = site.call(&["mount", "full.test", mountpoint.to_str().expect("UTF-8"), "--fixed"]);
        assert!(output.status.success(), "{}", words(&output));
        let _mounted = site.world.mounted();
        assert_eq!(ask("user.host"), Err(Errno::NODATA));
        assert_eq!(ask("user.fqrn").as_deref(), Ok("full.test"));
    }
    let site = Site::new(TestUser::ordinary());
    for (lines, told) in [
        ("CVMFS_XATTR_PROTECTED_XATTRS=user.pubkey\n", "user.pubkey is not an attribute"),
        ("CVMFS_XATTR_PRIVILEGED_GIDS=staff\n", "staff is not a group id"),
    ] {
        site.refuses_to_mount(lines, told);
    }
}
