//! Lists of proxies from configuration files, with names on the test's own name server, and passwords.

use std::fs;
use std::net::Ipv4Addr;

use esker_testkit::mirror::Mirror;
use esker_testkit::name_server::{NameAnswer, NameServer};

use super::Site;
use crate::test_env::words;
use crate::test_user::TestUser;

/// Read one after the other, with an empty cache.
const FILES: [&str; 4] = ["data/random.bin", "data/hex.txt", "perm/m0644", "perm/owned"];
const PASSWORD: &str = "not-to-be-seen";

impl Site {
    fn reads_through(&self, lines: &str) {
        let mounted = self.mounts(lines);
        for file in FILES {
            let read = mounted.does(|| fs::read(mounted.path(file)));
            read.unwrap_or_else(|error| {
                panic!("{lines}: {file}: {error}; {:#}", mounted.status()["network"])
            });
        }
    }

    /// Requests at each proxy, and at both servers.
    fn counts(&self) -> ([usize; 3], usize) {
        let asked = |mirror: &Mirror| mirror.requests().len();
        (self.proxies.each_ref().map(asked), asked(&self.world.mirror) + asked(&self.second))
    }
}

/// Names, with and without addresses, and DIRECT and fallback proxies behind them.
#[test]
fn configured_lists_of_names_are_used_in_their_order() {
    let names = NameServer::start(3600);
    names.tell("good.test", NameAnswer::At(vec![Ipv4Addr::LOCALHOST]));
    // No process listens at the first one.
    names.tell("both.test", NameAnswer::At(vec![[127, 0, 0, 99].into(), Ipv4Addr::LOCALHOST]));
    names.tell("silent.test", NameAnswer::Silence);
    // Groups by names and the numbers of proxies; the fallback; the proxy that does all the work, or `None` for the servers.
    for (list, fallback, served) in [
        ("good.test:0;DIRECT", "", Some(0)),
        ("both.test:0;DIRECT", "", Some(0)),
        ("nobody.test:0;good.test:1;DIRECT", "", Some(1)),
        ("nobody.test:0|good.test:1;DIRECT", "", Some(1)),
        ("silent.test:0;good.test:1;DIRECT", "", Some(1)),
        ("nobody.test:0;DIRECT", "", None),
        ("nobody.test:0;DIRECT;good.test:1", "", None),
        ("DIRECT;good.test:0", "", None),
        ("good.test:0;DIRECT", "good.test:2", Some(0)),
        ("nobody.test:0;DIRECT", "good.test:2", Some(2)),
    ] {
        let site = Site::new(TestUser::ordinary());
        let with_ports = |list: &str| {
            (0..3).fold(list.to_owned(), |text, number| {
                let port = format!(".test:{}", site.proxies[number].port());
                text.replace(&format!(".test:{number}"), &port)
            })
        };
        site.reads_through(&format!(
            "CVMFS_HTTP_PROXY='{}'\nCVMFS_FALLBACK_PROXY='{}'\nCVMFS_DNS_SERVER={}\nCVMFS_DNS_TIMEOUT=1\n\
             CVMFS_DNS_RETRIES=0\n",
            with_ports(list),
            with_ports(fallback),
            names.address()
        ));
        let (proxies, servers) = site.counts();
        for (number, count) in proxies.into_iter().enumerate() {
            assert_eq!(count > 0, served == Some(number), "{list} {fallback}: {proxies:?} {servers}");
        }
        assert_eq!(servers > 0, served.is_none(), "{list} {fallback}: {proxies:?} {servers}");
    }
}

/// Returns the command lines of all processes.
fn command_lines() -> String {
    let processes = fs::read_dir("/proc").expect("the processes").flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ") + "\n").collect()
}

/// The password of a proxy is sent, and shown nowhere, whether it is in the configuration or on the command line.
#[test]
fn passwords_for_proxies_are_sent_and_never_shown() {
    for (person, on_the_command_line) in
        [(TestUser::ordinary(), true), (TestUser::ordinary(), false), (TestUser::all()[0], false)]
    {
        let site = Site::new(person);
        let port = site.proxies[0].port();
        let list = format!("http://me:{PASSWORD}@127.0.0.1:{port};http://me:{PASSWORD}@127.0.0.1:1;DIRECT");
        let place = site.world.mountpoint();
        let mount = ["mount", "full.test", place.to_str().expect("UTF-8"), "--no-prefetch"];
        let mut configuration = "CVMFS_FALLBACK_PROXY=\n".to_owned();
        let mut arguments = mount.to_vec();
        if on_the_command_line {
            arguments.extend(["--proxy", &list]);
        } else {
            configuration += &format!("CVMFS_HTTP_PROXY='{list}'\n");
        }
        site.write("/etc/cvmfs/config.d/full.test.local", &configuration);
        let mut shown = String::new();
        let output = site.call(&arguments);
        assert!(output.status.success(), "{}", words(&output));
        shown += &words(&output);
        let mounted = site.world.mounted();
        mounted.does(|| fs::read(mounted.path(FILES[0]))).expect("a file");
        let field = format!("Basic {}", "bWU6bm90LXRvLWJlLXNlZW4=");
        let requests = site.proxies[0].requests();
        assert!(!requests.is_empty());
        assert!(requests.iter().all(|request| request.header("proxy-authorization") == Some(&field)));
        // The proxy goes away: the log, the status and errors tell of it.
        site.proxies[0].leave();
        for file in &FILES[1..] {
            mounted.does(|| fs::read(mounted.path(file))).expect("a file");
        }
        let direct = [site.world.mirror.requests(), site.second.requests()].concat();
        assert!(!direct.is_empty(), "{:#}", mounted.status()["network"]);
        assert!(direct.iter().all(|request| request.header("proxy-authorization").is_none()), "{direct:?}");
        for call in [
            &["status"][..],
            &["status", "--json"],
            &["doctor"],
            &["config", "show", "full.test"],
            &["config", "show", "full.test", "--json"],
            &["config", "check", "full.test", "--offline"],
            &["ls", "full.test", "--proxy", &list.replace(":1;", ":x;")],
        ] {
            shown += &words(&site.call(call));
        }
        let root = mounted.path("");
        for name in ["user.proxy", "user.proxy_list", "user.host"] {
            let told = mounted.does(|| super::attributes::get(&root, name));
            shown += &told.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        shown += &site.world.logs();
        shown += &command_lines();
        shown += &fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
        assert!(shown.contains(&format!("http://127.0.0.1:{port} is out of use")), "{shown}");
        let secret = [PASSWORD, "bWU6bm90LXRv"];
        let line = shown.lines().find(|line| secret.iter().any(|text| line.contains(text)));
        assert_eq!(line, None, "{shown}");
    }
}
