//! `esker proxy` between a mount and the servers: servers and proxy come and go, and the tree stays right.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use esker_testkit::fixture::{self, FULL};
use esker_testkit::mirror::Mirror;
use esker_testkit::tree_scan::{differences, scan_tree};
use serde_json::Value;

use crate::test_env::{TestEnv, esker_binary, words};
use crate::test_user::TestUser;

/// A proxy that does not outlive the test.
struct Proxy(Child, String);

impl Drop for Proxy {
    fn drop(&mut self) {
        // As by kill -9: it leaves the cache as it is.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(server: &str, cache: &Path, key: &Path, listen: &str) -> Proxy {
    let mut proxy = Command::new(esker_binary())
        .args(["proxy", "--json", "--head-age", "0", "--upstream", server, "--listen", listen])
        .arg("--cache")
        .arg(cache)
        .arg("--public-key")
        .arg(key)
        .env_clear()
        .env("HOME", "/")
        .stdout(Stdio::piped())
        .spawn()
        .expect("esker proxy");
    let mut line = String::new();
    BufReader::new(proxy.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
    let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("it is not ready: {line:?}"));
    let url = ready["url"].as_str().expect("a URL").to_owned();
    Proxy(proxy, url)
}

#[track_caller]
fn reads_as(env: &TestEnv, tag: &str, url: &str, options: &[&str]) {
    env.empty_cache();
    let mounted = env.mount_of(url, options);
    let found = mounted.does(|| scan_tree(&mounted.path("")));
    let complaints = differences(&env.fixture().listing(tag), &found, env.person.ownership());
    assert!(complaints.is_empty(), "{tag}:\n  {}", complaints.join("\n  "));
}

#[test]
fn a_mount_through_the_proxy_reads_while_servers_and_proxy_come_and_go() {
    let repository = FULL.unpack();
    let root = tempfile::tempdir().expect("a folder");
    symlink(repository.document_root(), root.path().join("cvmfs")).expect("a link");
    let [_, second, third] = fixture::TAGS;
    let newest = repository.read(".cvmfspublished");
    repository.publish(&repository.head_at(second));
    let env = TestEnv::at(TestUser::ordinary(), repository, Mirror::serve(root.path()));
    let server = format!("http://{}", env.mirror.address());
    let (cache, key) = (root.path().join("cache"), env.path("key.pub"));
    let proxy = start(&server, &cache, &key, "127.0.0.1:0");
    let url = format!("{server}/cvmfs/full.test");
    let proxy_url = proxy.1.clone();
    let options = ["--proxy", &proxy_url];
    reads_as(&env, second, &url, &options);
    let fetched = env.mirror.sent();
    env.mirror.leave();
    // Everything comes from the proxy, for this client that has nothing.
    reads_as(&env, second, &url, &options);
    let address = proxy.1.trim_start_matches("http://").to_owned();
    drop(proxy);
    let proxy = start(&server, &cache, &key, &address);
    reads_as(&env, second, &url, &options);
    assert_eq!(env.mirror.sent(), fetched);
    env.mirror.come_back();
    env.repository.write(".cvmfspublished", &newest);
    // A new process does not wait until it asks a server again that failed.
    drop(proxy);
    let proxy = start(&server, &cache, &key, &address);
    reads_as(&env, third, &url, &options);
    // As a server in place of a proxy.
    reads_as(&env, third, &format!("{}/cvmfs/full.test", proxy.1), &[]);
    // A client that names another server gets nothing from there.
    let output = env
        .esker(&["ls", "http://other.test/cvmfs/full.test", "--proxy", &proxy.1, "--public-key"])
        .arg(&key)
        .arg("--cache")
        .arg(env.path("home").join("other"))
        .output()
        .expect("running esker");
    assert!(!output.status.success() && words(&output).contains("403"), "{}", words(&output));
}
