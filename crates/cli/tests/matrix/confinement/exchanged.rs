//! What confined daemons open again: storage folders, certificates, keys and logs that are exchanged.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use esker_testkit::fixture;
use esker_testkit::mirror::Mirror;
use esker_testkit::tree_scan::{differences, scan_tree};
use esker_testkit::waiting::{Pace, until};
use esker_testkit::web::Authority;
use rustix::process::{Pid, Signal, kill_process};

use super::{Server, is_confined_server, start};
use crate::test_env::{PATIENCE, TestEnv, words};
use crate::test_user::TestUser;

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-r").args([from, to]).status().expect("cp");
    assert!(copied.success());
}

/// Puts a link in place of another one, in one step.
fn link(target: &str, at: &Path) {
    let next = at.with_extension("next");
    symlink(target, &next).expect("a link");
    fs::rename(next, at).expect("a link");
}

fn serve(env: &TestEnv, folder: &Path, options: &[&str]) -> Server {
    let mut command = Command::new(env.program());
    command.arg("serve").arg(folder).args(["--user", &TestUser::myself().uid.to_string()]);
    let serve = start(command.args(["--listen", "127.0.0.1:0", "--json"]).args(options));
    is_confined_server(serve.child.id());
    serve
}

/// > H3: A confined daemon asks the name servers of the machine, and reads storage folders, certificates, keys of repositories and buckets, and lists of name servers that took the place of those it was started with, unless they are directly in a folder of many programs, such as `/` or `/var/lib`; its access log goes on when it is rotated.
#[test]
fn an_exchanged_storage_folder_is_served() {
    let env = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let [_, second, third] = fixture::TAGS;
    let stores = env.path("stores");
    for name in ["first", "next"] {
        fs::create_dir_all(stores.join(name)).expect("a folder");
    }
    copy(&env.repository.path(), &stores.join("next"));
    env.repository.publish(&env.repository.head_at(second));
    copy(&env.repository.path(), &stores.join("first"));
    let links = env.path("links");
    fs::create_dir(&links).expect("a folder");
    let named = links.join("served");
    symlink("../stores/first", &named).expect("a link");
    let reads_as = |serve: &Server, tag: &str| {
        env.empty_cache();
        let mounted = env.mount_of(&format!("{}/cvmfs/full.test", serve.url), &[]);
        let found = mounted.does(|| scan_tree(&mounted.path("")));
        let complaints = differences(&env.fixture().listing(tag), &found, env.person.ownership());
        assert!(complaints.is_empty(), "{tag}:\n  {}", complaints.join("\n  "));
    };
    let by_link = serve(&env, &named, &[]);
    let by_name = serve(&env, &stores.join("first"), &[]);
    for serve in [&by_link, &by_name] {
        reads_as(serve, second);
    }
    link("../stores/next", &named);
    reads_as(&by_link, third);
    reads_as(&by_name, second);
    fs::rename(stores.join("first"), stores.join("removed")).expect("a folder");
    fs::rename(stores.join("next"), stores.join("first")).expect("a folder");
    reads_as(&by_name, third);
}

/// As certbot renews it: the file that is named is a link into another folder, to a file with a number.
///
/// > H3: A confined daemon asks the name servers of the machine, and reads storage folders, certificates, keys of repositories and buckets, and lists of name servers that took the place of those it was started with, unless they are directly in a folder of many programs, such as `/` or `/var/lib`; its access log goes on when it is rotated.
#[test]
fn a_renewed_certificate_behind_a_link_is_used() {
    let env = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let (old, new) = (Authority::new(), Authority::new());
    let folder = env.path("letsencrypt");
    for name in ["live/site", "archive/site"] {
        fs::create_dir_all(folder.join(name)).expect("a folder");
    }
    let put = |authority: &Authority, number: u32| {
        let (certificate, key) = authority.sign("IP:127.0.0.1", 1);
        for (from, name) in [(certificate, "fullchain"), (key, "privkey")] {
            let target = format!("archive/site/{name}{number}.pem");
            fs::copy(from, folder.join(&target)).expect("a file");
            link(&format!("../../{target}"), &folder.join(format!("live/site/{name}.pem")));
        }
    };
    let file = |name: &str| folder.join("live/site").join(name).display().to_string();
    put(&old, 1);
    let options = ["--tls-cert", &file("fullchain.pem"), "--tls-key", &file("privkey.pem")];
    let serve = serve(&env, env.repository.document_root(), &options);
    let trusts = |authority: &Authority| {
        let mut ls = env.esker(&["ls", &format!("{}/cvmfs/rmd.test", serve.url), "--public-key"]);
        ls.arg(env.path("key.pub")).arg("--ca").arg(authority.certificate()).args(["--cache", "ram"]);
        ls.output().expect("running esker")
    };
    let output = trusts(&old);
    assert!(output.status.success(), "{}", words(&output));
    put(&new, 2);
    kill_process(Pid::from_child(&serve.child), Signal::HUP).expect("a signal");
    assert!(until(PATIENCE, || trusts(&new).status.success()), "{}", words(&trusts(&new)));
    assert!(!trusts(&old).status.success());
}

fn proxy(env: &TestEnv, options: &[&str]) -> Server {
    let mut command = Command::new(env.program());
    let upstream = format!("http://{}", env.mirror.address());
    command.args(["proxy", "--json", "--upstream", &upstream, "--listen", "127.0.0.1:0", "--cache"]);
    let proxy = start(command.arg(env.path("proxy-cache")).args(options));
    is_confined_server(proxy.child.id());
    proxy
}

/// A log is rotated as logrotate does it: with `create`, with `nocreate`, and with `copytruncate`.
///
/// > H3: A confined daemon asks the name servers of the machine, and reads storage folders, certificates, keys of repositories and buckets, and lists of name servers that took the place of those it was started with, unless they are directly in a folder of many programs, such as `/` or `/var/lib`; its access log goes on when it is rotated.
#[test]
fn a_rotated_access_log_of_a_confined_server_goes_on() {
    for is_proxy in [false, true] {
        let env = TestEnv::new(TestUser::ordinary(), fixture::RMD);
        let folder = env.path("logs");
        fs::create_dir(&folder).expect("a folder");
        let log = folder.join("access.log");
        let options = ["--access-log", log.to_str().expect("text")];
        let server = if is_proxy {
            proxy(&env, &options)
        } else {
            serve(&env, env.repository.document_root(), &options)
        };
        let address = server.url.strip_prefix("http://").expect("a URL").trim_end_matches('/');
        let ask = || {
            let mut client = TcpStream::connect(address).expect("a connection");
            client.write_all(b"GET /none HTTP/1.0\r\n\r\n").expect("a request");
            client.read_to_end(&mut Vec::new()).expect("an answer");
        };
        let lines = |path: &Path| fs::read_to_string(path).unwrap_or_default().lines().count();
        let has_line_more = |path: &Path| {
            let before = lines(path);
            ask();
            // Lines of earlier requests may come, too.
            assert!(until(PATIENCE, || lines(path) > before), "no line in {}", path.display());
        };
        has_line_more(&log);
        for (number, is_created) in [(1, true), (2, false)] {
            let aside = folder.join(format!("access.log.{number}"));
            fs::rename(&log, &aside).expect("rotating");
            if is_created {
                fs::write(&log, "").expect("a file");
            }
            kill_process(Pid::from_child(&server.child), Signal::HUP).expect("a signal");
            // A request that comes first is in the old one.
            let is_reopened = || {
                ask();
                lines(&log) > 0
            };
            assert!(until(PATIENCE, is_reopened), "is_proxy: {is_proxy}, is_created: {is_created}");
            let old = lines(&aside);
            has_line_more(&log);
            assert_eq!(lines(&aside), old);
        }
        fs::copy(&log, folder.join("access.log.3")).expect("a copy");
        fs::OpenOptions::new().write(true).truncate(true).open(&log).expect("truncating");
        has_line_more(&log);
        assert!(!fs::read(&log).expect("the log").contains(&0), "it goes on at its old end");
    }
}

/// The keys of a proxy come from a file that is replaced, and from a folder that is exchanged.
///
/// > H3: A confined daemon asks the name servers of the machine, and reads storage folders, certificates, keys of repositories and buckets, and lists of name servers that took the place of those it was started with, unless they are directly in a folder of many programs, such as `/` or `/var/lib`; its access log goes on when it is rotated.
#[test]
fn a_confined_proxy_uses_exchanged_keys() {
    for is_folder in [false, true] {
        let (repository, root) = (fixture::FULL.unpack(), tempfile::tempdir().expect("a folder"));
        symlink(repository.document_root(), root.path().join("cvmfs")).expect("a link");
        let env = TestEnv::at(TestUser::ordinary(), repository, Mirror::serve(root.path()));
        let all = env.path("all");
        for (folder, fixture) in [("keys", fixture::RMD), ("next", fixture::FULL)] {
            fs::create_dir_all(all.join(folder)).expect("a folder");
            fs::copy(fixture.public_key(), all.join(folder).join("full.test.pub")).expect("a key");
        }
        let (folder, file) = (all.join("keys"), all.join("keys/full.test.pub"));
        let named = if is_folder { &folder } else { &file };
        let proxy = proxy(&env, &["--public-key", named.to_str().expect("text")]);
        let url = format!("{}/cvmfs/full.test", proxy.url.trim_end_matches('/'));
        let list = || {
            let mut ls = env.esker(&["ls", &url, "--cache", "ram", "--public-key"]);
            ls.arg(env.path("key.pub")).output().expect("running esker")
        };
        assert!(!list().status.success(), "the key is another repository's");
        assert!(env.mirror.count(|path| path.ends_with("/.cvmfswhitelist")) > 0, "no head was verified");
        if is_folder {
            fs::rename(&folder, all.join("removed")).expect("a folder");
            fs::rename(all.join("next"), &folder).expect("a folder");
        } else {
            fs::rename(all.join("next/full.test.pub"), &file).expect("a file");
        }
        assert!(Pace::PROCESS.until(PATIENCE, || list().status.success()), "{}", words(&list()));
    }
}
