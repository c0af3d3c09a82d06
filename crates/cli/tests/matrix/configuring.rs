//! Configuration files as sites have them.

mod acls;
mod acting;
mod attributes;
mod caching;
mod checking;
mod external;
mod network;
mod proxies;
mod secure;
mod telling;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};

use esker_testkit::fixture;
use esker_testkit::mirror::Mirror;
use serde_json::Value;

use crate::test_env::{TestEnv, words};
use crate::test_user::TestUser;

/// Writes files below the folder that stands for `/`.
pub(crate) fn write_files(world: &TestEnv, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = world.path("root").join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("mkdir");
        std::fs::write(path, text).expect("writing");
    }
}

/// Returns a call of `esker` on a machine with these files.
pub(crate) fn configured(world: &TestEnv, arguments: &[&str]) -> Command {
    let mut command = world.esker(arguments);
    // The configuration says where the cache is.
    command.env("ESKER_CONFIG_ROOT", world.path("root")).env_remove("ESKER_CACHE");
    command
}

fn call(world: &TestEnv, arguments: &[&str]) -> Output {
    configured(world, arguments).output().expect("running esker")
}

/// `config show` prints values with their lines, and warns of lines without effect.
#[test]
fn settings_are_shown_with_their_lines() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
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
        "/etc/cvmfs/default.local:1: CVMFS_HTTP_PROXYS is unknown to Esker",
        "/etc/cvmfs/default.local:2: the command `slow` is not evaluated, because no shell is run; not set by it: CVMFS_TIMEOUT",
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
    assert!(mends.iter().any(|mend| mend.contains("write CVMFS_HTTP_PROXY if you mean that")), "{mends:?}");
    let output = world
        .esker(&["config", "show", "sw", "--config-root", "/no/such/root"])
        .output()
        .expect("running esker");
    assert_eq!(output.status.code(), Some(2), "{}", words(&output));
    assert!(words(&output).contains("CVMFS_DEFAULT_DOMAIN is not set"), "{}", words(&output));
}

/// A machine that is configured for CernVM-FS: two proxies in a group, a fallback, two servers.
pub(crate) struct Site {
    pub(crate) world: TestEnv,
    pub(crate) proxies: [Mirror; 3],
    pub(crate) second: Mirror,
}

impl Site {
    pub(crate) fn new(person: TestUser) -> Site {
        let world = TestEnv::new(person, fixture::FULL);
        let serve = || Mirror::serve(world.repository.document_root());
        let site = Site { proxies: [serve(), serve(), serve()], second: serve(), world };
        site.write("/etc/cvmfs/default.conf", DEFAULT_CONF);
        site.write("/etc/cvmfs/default.d/50-site.conf", "CVMFS_DEFAULT_DOMAIN=test\n");
        let [one, two, three] =
            site.proxies.each_ref().map(|proxy| format!("http://127.0.0.1:{}", proxy.port()));
        let base = site.world.path("home/caches");
        person.does(|| std::fs::create_dir_all(&base).expect("mkdir"));
        let mounts = site.world.path("mounts");
        std::fs::create_dir_all(mounts.join("full.test")).expect("mkdir");
        site.write(
            "/etc/cvmfs/default.local",
            &format!(
                "CVMFS_REPOSITORIES=full\nCVMFS_HTTP_PROXY=\"{one}|{two}\"\nCVMFS_FALLBACK_PROXY={three}\n\
                 CVMFS_CACHE_BASE={}\nCVMFS_QUOTA_LIMIT=1000\nCVMFS_MOUNT_DIR={}\nCVMFS_CLAIM_OWNERSHIP=yes\n",
                base.display(),
                mounts.display()
            ),
        );
        let urls = [&site.world.mirror, &site.second].map(|server| server.url("@fqrn@")).join(";");
        site.write(
            "/etc/cvmfs/domain.d/test.conf",
            &format!("CVMFS_SERVER_URL='{urls}'\nCVMFS_KEYS_DIR=/etc/cvmfs/keys/test\nCVMFS_USE_GEOAPI=no\n"),
        );
        let key = std::fs::read_to_string(site.world.fixture().public_key()).expect("the key");
        site.write("/etc/cvmfs/keys/test/test.pub", &key);
        site
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        write_files(&self.world, &[(path, text)]);
    }

    pub(crate) fn call(&self, arguments: &[&str]) -> Output {
        call(&self.world, arguments)
    }

    /// Lists the repository by its name, which must succeed; returns stderr.
    #[track_caller]
    fn lists(&self, options: &[&str]) -> String {
        let output = self.call(&[&["ls", "full"], options].concat());
        assert!(output.status.success(), "{}", words(&output));
        assert!(!output.stdout.is_empty(), "{}", words(&output));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Lists it, which must fail; returns the message.
    #[track_caller]
    fn refuses(&self, options: &[&str]) -> String {
        let output = self.call(&[&["ls", "full"], options].concat());
        assert_eq!(output.status.code(), Some(2), "{}", words(&output));
        words(&output)
    }
}

/// Settings in the files of the reference client's package.
const DEFAULT_CONF: &str = "\
CVMFS_CLIENT_PROFILE=
CVMFS_CACHE_BASE=/var/lib/cvmfs
CVMFS_QUOTA_LIMIT=4000
CVMFS_TIMEOUT=5
CVMFS_TIMEOUT_DIRECT=10
CVMFS_STRICT_MOUNT=no
CVMFS_NFILES=131072
CVMFS_SHARED_CACHE=yes
CVMFS_CHECK_PERMISSIONS=yes
CVMFS_CLAIM_OWNERSHIP=yes
CVMFS_KEYS_DIR=/etc/cvmfs/keys
CVMFS_PROXY_RESET_AFTER=300
CVMFS_HOST_RESET_AFTER=1800
CVMFS_MAX_RETRIES=1
CVMFS_BACKOFF_INIT=2
CVMFS_BACKOFF_MAX=10
CVMFS_SEND_INFO_HEADER=no
CVMFS_USE_GEOAPI=no
CVMFS_LOW_SPEED_LIMIT=1024
if [ \"x$CVMFS_BASE_ENV\" = \"x\" ]; then
  readonly CVMFS_USER=cvmfs
  readonly CVMFS_MOUNT_DIR=/cvmfs
  readonly CVMFS_RELOAD_SOCKETS=/var/run/cvmfs
  readonly CVMFS_BASE_ENV=1
fi
";

/// A name is enough where CernVM-FS is configured: servers, proxies, keys, cache and quota are read from there.
#[test]
fn a_name_is_enough_where_cernvm_fs_is_configured() {
    for person in TestUser::all() {
        let site = Site::new(person);
        let world = &site.world;
        let output =
            site.call(&["mount", "full.test", world.mountpoint().to_str().expect("UTF-8"), "--ttl", "0.05"]);
        assert!(output.status.success() && output.stderr.is_empty(), "{}", words(&output));
        let mounted = world.mounted();
        let status = mounted.status();
        assert_eq!(
            status["cache"]["directory"],
            world.path("home/caches/esker").to_str().expect("UTF-8"),
            "{status:#}"
        );
        assert_eq!(status["cache"]["quota"], 1000 << 20, "{status:#}");
        let owner = mounted.does(|| std::fs::metadata(mounted.path("")).map(|meta| meta.uid()));
        assert_eq!(owner.expect("the root"), person.uid, "claimed");
        let asked = |mirror: &Mirror| mirror.requests().len();
        let proxies = site.proxies.each_ref().map(asked);
        assert!(proxies[0] + proxies[1] > 0 && proxies[2] == 0, "{proxies:?}");
        assert_eq!(asked(&world.mirror) + asked(&site.second), 0, "a request went around the proxies");
    }
}

/// With both proxies and the first server down, the fallback proxy and the second server are used.
#[test]
fn configured_fallbacks_are_used() {
    let site = Site::new(TestUser::ordinary());
    let [one, two, three] = &site.proxies;
    one.leave();
    two.leave();
    site.lists(&[]);
    assert!(!three.requests().is_empty());
    site.write("/etc/cvmfs/config.d/full.test.local", "CVMFS_HTTP_PROXY=DIRECT\nCVMFS_FALLBACK_PROXY=\n");
    site.world.empty_cache();
    site.world.mirror.leave();
    site.lists(&["--cache", site.world.cache().to_str().expect("UTF-8")]);
    assert!(!site.second.requests().is_empty());
}

/// `auto` among the proxies is the environment's proxy; none of its other variables counts.
#[test]
fn auto_means_the_proxy_of_the_environment() {
    let site = Site::new(TestUser::ordinary());
    let [own, configured, fallback] = &site.proxies;
    let named = |proxy: &Mirror| format!("http://127.0.0.1:{}", proxy.port());
    site.write("/etc/cvmfs/config.d/full.test.local", "CVMFS_HTTP_PROXY=auto\nCVMFS_FALLBACK_PROXY=\n");
    let absent = "http://127.0.0.1:1";
    let output =
        configured_with(&site, &[("http_proxy", &named(own)), ("https_proxy", absent), ("no_proxy", "*")]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", words(&output));
    assert!(!own.requests().is_empty());
    assert!(site.world.mirror.requests().is_empty() && site.second.requests().is_empty(), "around the proxy");
    // Without it `auto` is reported and left out, and the other configured proxies are used.
    let line = format!("CVMFS_HTTP_PROXY='auto;{}'\n", named(configured));
    site.write("/etc/cvmfs/config.d/full.test.local", &line);
    let output = configured_with(&site, &[("https_proxy", absent), ("HTTP_PROXY", absent)]);
    assert!(output.status.success() && words(&output).contains("`auto` is left out"), "{}", words(&output));
    assert!(!configured.requests().is_empty() && fallback.requests().is_empty());
    // Where proxies are configured by name the environment's is not used.
    site.write("/etc/cvmfs/config.d/full.test.local", "CVMFS_HTTP_PROXY=DIRECT\nCVMFS_FALLBACK_PROXY=\n");
    let output = configured_with(&site, &[("http_proxy", absent), ("all_proxy", absent)]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", words(&output));
    assert!(!site.world.mirror.requests().is_empty());
}

/// Lists the repository with an empty cache and these variables.
fn configured_with(site: &Site, variables: &[(&str, &str)]) -> Output {
    site.world.empty_cache();
    let cache = site.world.cache();
    let mut command = configured(&site.world, &["ls", "full", "--cache", cache.to_str().expect("UTF-8")]);
    command.envs(variables.iter().copied()).output().expect("running esker")
}

/// The command line overrides the configuration.
#[test]
fn the_command_line_overrides_the_configuration() {
    let site = Site::new(TestUser::ordinary());
    let world = &site.world;
    let cache = world.cache();
    let key = world.path("key.pub");
    site.write(
        "/etc/cvmfs/config.d/full.test.local",
        "CVMFS_SERVER_URL=http://127.0.0.1:1/x\nCVMFS_HTTP_PROXY=http://127.0.0.1:1\nCVMFS_KEYS_DIR=/no/such\n\
         CVMFS_FALLBACK_PROXY=\nCVMFS_REPOSITORY_TAG=v1\n",
    );
    let options = [
        "--server",
        &site.second.url("full.test"),
        "--proxy",
        "DIRECT",
        "--public-key",
        key.to_str().expect("UTF-8"),
        "--cache",
        cache.to_str().expect("UTF-8"),
        "--tag",
        "v2",
    ];
    site.lists(&options);
    assert!(cache.exists() && !world.path("home/caches/esker").exists());
    assert!(!site.second.requests().is_empty());
}

/// A configured revision is mounted in place of the newest: by name, date or hash, or the newest at mount time.
#[test]
fn a_configured_revision_is_shown() {
    let site = Site::new(TestUser::ordinary());
    let world = &site.world;
    let known = world.repository.tag("v1");
    let mnt = world.mountpoint();
    for (line, revision) in [
        ("CVMFS_REPOSITORY_TAG=v2".to_owned(), 2),
        (format!("CVMFS_ROOT_HASH={}", known.root), 1),
        ("CVMFS_REPOSITORY_DATE=2096-01-31T12:00:00Z".to_owned(), 3),
        ("CVMFS_AUTO_UPDATE=no".to_owned(), 3),
    ] {
        site.write("/etc/cvmfs/config.d/full.test.local", &line);
        let output = site.call(&["mount", "full.test", mnt.to_str().expect("UTF-8")]);
        assert!(output.status.success(), "{line}: {}", words(&output));
        let status = world.mounted().status();
        assert_eq!(
            (&status["revision"], &status["fixed"]),
            (&revision.into(), &true.into()),
            "{line}: {status:#}"
        );
    }
}

/// A missing or forbidden setting is reported with its parameter, line and advice.
#[test]
fn missing_settings_of_a_name_are_reported_with_advice() {
    let site = Site::new(TestUser::ordinary());
    let local = "/etc/cvmfs/config.d/full.test.local";
    for (line, told) in [
        (
            "CVMFS_SERVER_URL=",
            &[
                "CVMFS_SERVER_URL is not set for full.test",
                "/etc/cvmfs/domain.d/test.local",
                "from a machine that has them",
            ][..],
        ),
        ("CVMFS_HTTP_PROXY=", &["CVMFS_HTTP_PROXY is not set for full.test", "/etc/cvmfs/default.local"]),
        (
            "CVMFS_KEYS_DIR=/etc/cvmfs/keys/other",
            &[
                "there is no public key for full.test",
                "CVMFS_KEYS_DIR is set in /etc/cvmfs/config.d/full.test.local:1",
            ],
        ),
        (
            "CVMFS_PUBLIC_KEY=/etc/cvmfs/keys/test/no.pub",
            &["no.pub", "CVMFS_PUBLIC_KEY is set in /etc/cvmfs/config.d"],
        ),
        (
            "CVMFS_TIMEOUT=soon",
            &["CVMFS_TIMEOUT=soon (/etc/cvmfs/config.d/full.test.local:1): it takes seconds"],
        ),
        (
            "CVMFS_REPOSITORIES=other\nCVMFS_STRICT_MOUNT=yes",
            &["full.test is not in CVMFS_REPOSITORIES", "add full.test to"],
        ),
        ("CVMFS_BLACKLIST=/etc/cvmfs/keys", &["can't read the blacklist"]),
    ] {
        site.write(local, line);
        let said = site.refuses(&[]);
        told.iter().for_each(|words| assert!(said.contains(words), "{line}: {words} is not in {said}"));
    }
    site.write(local, "CVMFS_STRICT_MOUNT=yes\n");
    assert_eq!(site.lists(&[]), "");
    site.write("/etc/cvmfs/default.d/60.conf", "CVMFS_CONFIG_REPOSITORY=config.test\n");
    assert!(site.lists(&[]).contains("1 lines of the configuration of full.test have no effect"));
    site.write("/etc/cvmfs/default.d/70.conf", "CVMFS_CONFIG_REPO_REQUIRED=yes\n");
    assert!(site.refuses(&[]).contains("CVMFS_CONFIG_REPO_REQUIRED is set"));
}
