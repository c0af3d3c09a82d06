//! What confined servers open again: storage folders and certificates that are exchanged.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use esker_testkit::fixture;
use esker_testkit::tree_scan::{differences, scan_tree};
use esker_testkit::waiting::until;
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

/// > H3: A confined daemon asks the name servers of the machine, and reads storage folders, certificates and lists of name servers that took the place of those it was started with, unless they are directly in a folder of many programs, such as `/` or `/var/lib`.
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
/// > H3: A confined daemon asks the name servers of the machine, and reads storage folders, certificates and lists of name servers that took the place of those it was started with, unless they are directly in a folder of many programs, such as `/` or `/var/lib`.
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
