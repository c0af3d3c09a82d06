//! Confined daemons that find servers by the names of a name server.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use esker_testkit::fixture::{Fixture, RMD};
use esker_testkit::geo_database::database;
use esker_testkit::mirror::Mirror;
use esker_testkit::name_server::{NameAnswer, NameServer};
use esker_testkit::skip;
use esker_testkit::tree_scan::{differences, scan_tree};
use rustix::mount::mount_bind;

use super::{is_confined_mount, is_confined_server, start};
use crate::broker::Broker;
use crate::test_env::{TestEnv, printed, with_private_mounts};
use crate::test_user::TestUser;

const FIXTURE: Fixture = RMD;

/// A machine with a network, and with files in `/etc`, of its own.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    /// Makes the calling thread and its children such a machine; `None` without root's rights.
    fn new() -> Option<Self> {
        TestUser::root()?;
        with_private_mounts();
        crate::sys::unshare_network().expect("a network");
        let folder = tempfile::Builder::new().prefix("esker-machine-").tempdir().expect("a folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
        let etc = folder.path().join("etc");
        printed(Command::new("cp").arg("-a").arg("/etc").arg(&etc));
        mount_bind(&etc, "/etc").expect("a folder in place of /etc");
        Some(Self { folder })
    }

    /// Makes `/etc/resolv.conf` a link to a file with this name server; all such files are in one folder.
    fn resolves_with(&self, name: &str, server: &NameServer) {
        let folder = self.folder.path().join("resolvers");
        fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join(name);
        fs::write(&file, format!("nameserver {}\n", server.address().ip())).expect("a file");
        symlink(&file, "/etc/next-resolv.conf").expect("a link");
        fs::rename("/etc/next-resolv.conf", "/etc/resolv.conf").expect("a link");
    }
}

fn name_server(last: u8, names: &[&str]) -> NameServer {
    let server = NameServer::start_at(0, SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 53)));
    for name in names {
        server.tell(name, NameAnswer::At(vec![Ipv4Addr::LOCALHOST]));
    }
    server
}

#[track_caller]
fn reads_as_published(env: &TestEnv, host: &str, options: &[&str]) {
    env.empty_cache();
    let url = format!("http://{host}:{}/cvmfs/{}", env.mirror.port(), FIXTURE.name());
    let mounted = env.mount_of(&url, options);
    let found = mounted.does(|| scan_tree(&mounted.path("")));
    let complaints = differences(&FIXTURE.listing("v3"), &found, env.person.ownership());
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    is_confined_mount(mounted.status()["pid"].as_u64().expect("a process"), env.person);
}

fn body(url: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).expect("connecting");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).expect(&answer)
}

fn start_proxy(env: &TestEnv, cache: &Path) -> super::Server {
    let port = env.mirror.port();
    start(
        Command::new(env.program())
            .args(["proxy", "--json", "--head-age", "0", "--listen", "127.0.0.1:0"])
            .args(["--upstream", &format!("http://origin.test:{port}")])
            .args(["--allow", &format!("second.test:{port}"), "--allow", &format!("third.test:{port}")])
            .arg("--public-key")
            .arg(env.path("key.pub"))
            .arg("--cache")
            .arg(cache),
    )
}

/// The release binary is static: it finds no function of the C library by its name while it runs.
///
/// > H3: A confined daemon asks the name servers of the machine, and reads storage folders, certificates, keys of repositories and buckets, and lists of name servers that took the place of those it was started with, unless they are directly in a folder of many programs, such as `/` or `/var/lib`; its access log goes on when it is rotated.
#[test]
fn confined_daemons_ask_name_servers() {
    let Some(machine) = Machine::new() else { skip!("only root has a network of its own") };
    let first = name_server(1, &["origin.test", "broker.test", "mount.test"]);
    machine.resolves_with("first.conf", &first);
    let root = tempfile::tempdir().expect("a folder");
    let repository = FIXTURE.unpack();
    symlink(repository.document_root(), root.path().join("cvmfs")).expect("a link");
    let env = TestEnv::at(TestUser::ordinary(), repository, Mirror::serve(root.path()));

    reads_as_published(&env, "mount.test", &[]);
    assert!(first.asked("mount.test") > 0);

    let proxy = start_proxy(&env, &root.path().join("proxy"));
    reads_as_published(&env, "origin.test", &["--proxy", &proxy.url]);
    assert!(first.asked("origin.test") > 0);
    is_confined_server(proxy.child.id());

    let broker = Broker::start(&env);
    let options = broker.options();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    reads_as_published(&env, "broker.test", &options);
    assert!(first.asked("broker.test") > 0);
    assert!(!env.cache().join("objects").exists(), "the mount fetched without its broker");
    is_confined_server(broker.pid());

    let places = root.path().join("places.mmdb");
    fs::write(&places, database(&[(10, 46.2, 6.1), (12, -37.8, 145.0)])).expect("a database");
    first.tell("near.test", NameAnswer::At(vec![Ipv4Addr::new(10, 0, 0, 1)]));
    first.tell("far.test", NameAnswer::At(vec![Ipv4Addr::new(12, 0, 0, 1)]));
    let serve = start(
        Command::new(env.program())
            .arg("serve")
            .arg(env.repository.document_root())
            .args(["--user", "root", "--json", "--listen", "127.0.0.1:0", "--geo-database"])
            .arg(&places),
    );
    let api = format!("/cvmfs/{}/api/v1.0/geo/10.0.0.9/far.test,near.test", FIXTURE.name());
    assert_eq!(body(&serve.url, &api), "2,1\n");
    is_confined_server(serve.child.id());

    // The machine gets other name servers: the link leads to another file, and is gone for a moment.
    let second = name_server(2, &["second.test", "third.test"]);
    machine.resolves_with("second.conf", &second);
    reads_as_published(&env, "second.test", &["--proxy", &proxy.url]);
    fs::remove_file("/etc/resolv.conf").expect("a link");
    reads_as_published(&env, "third.test", &["--proxy", &proxy.url]);
    assert_eq!([first.asked("second.test"), first.asked("third.test")], [0, 0]);
    assert!(second.asked("second.test") > 0 && second.asked("third.test") > 0);
}
