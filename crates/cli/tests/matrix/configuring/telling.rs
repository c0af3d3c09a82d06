//! Reports of a mount in the form of the reference client: counters, lines of the system's log, `cvmfs_talk`.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::time::Instant;

use super::Site;
use super::acting::LOCAL;
use crate::test_env::{PATIENCE, words};
use crate::test_user::TestUser;

/// Parses a line of InfluxDB: its metric, its values, its time.
fn line(text: &str) -> (String, BTreeMap<String, f64>, u128) {
    let parts: Vec<&str> = text.split(' ').collect();
    let [of, values, time] = parts[..] else { panic!("{text}") };
    let value = |field: &str| {
        let (name, value) = field.split_once('=').unwrap_or_else(|| panic!("{field} in {text}"));
        (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{field} in {text}")))
    };
    (of.to_owned(), values.split(',').map(value).collect(), time.parse().expect("a time"))
}

#[test]
fn counters_are_sent_to_the_configured_collector() {
    for person in TestUser::all() {
        let site = Site::new(person);
        let collector = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        collector.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        let port = collector.local_addr().expect("its address").port();
        let mut buffer = [0; 65_536];
        let mut receive = || {
            let len = collector.recv(&mut buffer).expect("a datagram");
            String::from_utf8(buffer[..len].to_vec()).expect("text")
        };
        let mounted = site.mounts(&format!(
            "CVMFS_TELEMETRY_SEND=ON\nCVMFS_TELEMETRY_RATE=1\nCVMFS_INFLUX_HOST=localhost\nCVMFS_INFLUX_PORT={port}\n\
             CVMFS_INFLUX_METRIC_NAME=nodes\nCVMFS_INFLUX_EXTRA_TAGS=site=x,rack=7\nCVMFS_INFLUX_EXTRA_FIELDS=cores=4\n\
             CVMFS_INFLUX_SEND_DELTA=yes\n"
        ));
        let began = Instant::now();
        mounted.does(|| fs::read(mounted.path("data/random.bin"))).expect("a file");
        let (of, first, early) = line(&receive());
        assert_eq!(of, "nodes_absolute,repo=full.test,site=x,rack=7");
        assert!(began.elapsed().as_secs() >= 4, "not more often than every five seconds");
        assert!(first["fetch.n_downloads"] >= 3.0 && first["cvmfs.n_fs_read"] >= 1.0, "{first:?}");
        assert!(first["download.sz_transferred_bytes"] > 0.0 && first["cores"] == 4.0, "{first:?}");
        assert_eq!(first["catalog_mgr.catalog_revision"], 3.0);
        assert!(first.values().all(|value| *value != 0.0), "{first:?}");
        mounted.does(|| fs::read(mounted.path("data/hex.txt"))).expect("a file");
        let second = receive();
        let (absolute, delta) = second.split_once('\n').expect("two lines");
        let (of, now, late) = line(absolute);
        assert_eq!(of, "nodes_absolute,repo=full.test,site=x,rack=7");
        assert!((4_000_000_000..60_000_000_000).contains(&(late - early)), "nanoseconds: {early} {late}");
        let (of, since, _) = line(delta);
        assert_eq!(of, "nodes_delta,repo=full.test,site=x,rack=7");
        for name in ["fetch.n_downloads", "cvmfs.n_fs_read", "download.sz_transferred_bytes"] {
            assert_eq!(since[name], now[name] - first[name], "{name}");
        }
        assert!(since["fetch.n_downloads"] >= 1.0, "{since:?}");
    }
    log_lines_that_can_not_be_sent_are_reported_and_delay_nothing();
}

fn log_lines_that_can_not_be_sent_are_reported_and_delay_nothing() {
    let site = Site::new(TestUser::ordinary());
    let lines = "CVMFS_TELEMETRY_SEND=yes\nCVMFS_INFLUX_PORT=8089\nCVMFS_INFLUX_METRIC_NAME=nodes\n";
    drop(site.mounts(&format!("{lines}CVMFS_TELEMETRY_RATE=5\nCVMFS_INFLUX_HOST=nobody.invalid\n")));
    for (more, told) in [
        ("", "CVMFS_INFLUX_HOST is not set for full.test"),
        ("CVMFS_INFLUX_HOST=h\nCVMFS_INFLUX_PORT=70000\n", "it is not a number from 1 to 65535"),
        ("CVMFS_INFLUX_HOST=h\nCVMFS_INFLUX_EXTRA_TAGS='a=b c'\n", "has no blanks"),
    ] {
        site.write(LOCAL, &format!("{lines}{more}"));
        let mountpoint = site.world.mountpoint();
        let output = site.call(&["mount", "full.test", mountpoint.to_str().expect("UTF-8")]);
        assert!(output.status.success() && words(&output).contains(told), "{told}: {}", words(&output));
        drop(site.world.mounted());
        let output = site.call(&["config", "check", "full.test", "--offline"]);
        assert!(words(&output).contains(told), "{told}: {}", words(&output));
    }
}

/// A proxy that is marked down is a line of the system's log, as in the reference client.
#[test]
fn fail_overs_are_written_to_the_system_log() {
    for person in TestUser::all() {
        let site = Site::new(person);
        let path = site.world.path("log");
        let system = UnixDatagram::bind(&path).expect("a socket");
        fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("for all users");
        system.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        let gone = site.proxies.each_ref().map(|proxy| format!("127.0.0.1:{}", proxy.port()));
        let fail_over = |lines: &str| {
            let mounted = site.mounts(&format!("ESKER_SYSLOG={}\n{lines}", path.display()));
            site.proxies[0].leave();
            site.proxies[1].leave();
            mounted.does(|| fs::read(mounted.path("data/random.bin"))).expect("a file");
            mounted
        };
        let mounted =
            fail_over("CVMFS_SYSLOG_FACILITY=3\nCVMFS_SYSLOG_LEVEL=2\nCVMFS_SYSLOG_PREFIX=site-a\n");
        let mut buffer = [0; 4096];
        let said = loop {
            let len = system.recv(&mut buffer).expect("a line");
            let line = String::from_utf8_lossy(&buffer[..len]).into_owned();
            if gone[..2].iter().any(|proxy| line.contains(proxy)) {
                break line;
            }
        };
        // local3 is 19, information 6.
        let pid = mounted.status()["pid"].as_u64().expect("its process");
        assert!(said.starts_with("<158>"), "{said}");
        assert!(said.contains(&format!(" esker[{pid}]: (site-a) ")), "{said}");
        drop(mounted);
    }
}

/// The same lines can go to a file in place of the system's log.
#[test]
fn log_lines_are_written_to_the_configured_file() {
    let site = Site::new(TestUser::ordinary());
    let file = site.world.path("home/mounts.log");
    let mounted = site.mounts(&format!("CVMFS_USYSLOG={}\n", file.display()));
    let gone = site.proxies.each_ref().map(|proxy| format!("127.0.0.1:{}", proxy.port()));
    site.proxies[0].leave();
    site.proxies[1].leave();
    mounted.does(|| fs::read(mounted.path("data/random.bin"))).expect("a file");
    let text = fs::read_to_string(&file).expect("the file");
    assert!(text.contains("]: (full.test) ") && gone[..2].iter().any(|proxy| text.contains(proxy)), "{text}");
}

fn talk(socket: &Path, command: &str) -> String {
    let mut client = UnixStream::connect(socket).expect("a socket");
    client.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    client.write_all(command.as_bytes()).expect("asking");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn commands_of_cvmfs_talk_are_answered() {
    for person in TestUser::all() {
        let site = Site::new(person);
        let repository = &site.world.repository;
        repository.publish(&repository.head_at("v2"));
        let socket = site.world.path("home/cvmfs_io.full.test");
        let lines = format!("CVMFS_TALK_SOCKET={}\nCVMFS_TALK_OWNER={}\n", socket.display(), person.uid);
        let mounted = site.mounts(&lines);
        let pid = mounted.status()["pid"].as_u64().expect("its process");
        let ask = |command: &str| person.does(|| talk(&socket, command));
        let (first, second) = (site.world.mirror.url("full.test"), site.second.url("full.test"));
        let [one, two, three] =
            site.proxies.each_ref().map(|proxy| format!("http://127.0.0.1:{}", proxy.port()));
        assert_eq!(ask("mountpoint"), format!("{}\n", site.world.mountpoint().display()));
        assert_eq!(ask("pid\n"), format!("{pid}\n"));
        assert_eq!((ask("revision"), ask("max ttl info")), ("2\n".into(), "unset\n".into()));
        assert_eq!(ask("cache limit get"), "1000\n");
        let hosts = format!("  [0] {first} (unprobed)\n  [1] {second} (unprobed)\nActive host 0: {first}\n");
        assert_eq!(ask("host info"), hosts);
        let proxies = ask("proxy info");
        let groups =
            format!("Load-balance groups:\n[0] {one}, {two}\n[1] {three}\nActive proxy: [0] http://");
        assert!(proxies.starts_with(&groups), "{proxies}");
        assert!(proxies.ends_with("\nFirst fallback group: [1]\n"), "{proxies}");
        let size = ask("cache size");
        assert!(
            size.starts_with("Current cache size is ") && size.contains(" Bytes), pinned: 0MB (0 Bytes)\n"),
            "{size}"
        );
        assert_eq!(ask("version").lines().next(), Some("2.14.0 (CernVM-FS Fuse Module)"));
        assert_eq!(ask("metalink info"), "No metalink servers defined\n");
        let metrics = ask("metrics prometheus");
        for name in
            ["cvmfs_repo_expires_seconds", "cvmfs_cache_mode", "cvmfs_sys_useddirp", "cvmfs_cache_ncleanup24"]
        {
            assert!(metrics.contains(&format!("\n{name}{{repo=\"full.test\"}} ")), "{name}: {metrics}");
        }
        assert_eq!(ask("tear down to read-only"), "unknown command\n");
        repository.publish(&repository.head_at("v3"));
        assert_eq!(ask("remount sync"), "New revision applied\n");
        assert_eq!((ask("remount"), ask("revision")), ("Catalog up to date\n".into(), "3\n".into()));
        let mode = fs::metadata(&socket).expect("the socket").permissions().mode() & 0o777;
        assert_eq!(mode, 0o660);
        drop(mounted);
        assert!(!socket.exists(), "it is gone with the mount");
        // A socket of another process is left alone.
        let other = person.does(|| UnixListener::bind(&socket).expect("another's socket"));
        drop(site.mounts(&lines));
        assert!(socket.exists());
        drop(other);
    }
    let site = Site::new(TestUser::ordinary());
    site.write(LOCAL, "CVMFS_TALK_SOCKET=/x\nCVMFS_TALK_OWNER=nobody-of-that-name\n");
    let output = site.call(&["config", "check", "full.test", "--offline"]);
    assert!(words(&output).contains("there is no such user in /etc/passwd"), "{}", words(&output));
}

/// > L9: A mount writes its socket for `cvmfs_talk` and its log of `CVMFS_USYSLOG` only where no other user can make their paths lead elsewhere, and changes mode and owner of nothing but its socket.
#[test]
fn sockets_and_logs_behind_folders_and_links_of_others_are_refused_by_name() {
    for person in TestUser::all() {
        let site = Site::new(person);
        let (open, target) = (site.world.path("open"), site.world.path("home/target"));
        fs::create_dir(&open).expect("a folder");
        fs::set_permissions(&open, Permissions::from_mode(0o777)).expect("a mode");
        person.does(|| fs::create_dir(&target)).expect("a folder");
        // All users can exchange the link, which leads to a folder of the mounting user.
        symlink(&target, open.join("link")).expect("a link");
        symlink(open.join("link"), site.world.path("home/through")).expect("a link");
        for way in [open.join("link"), site.world.path("home/through")] {
            let (socket, log) = (way.join("talk"), way.join("log"));
            let lines = format!(
                "CVMFS_TALK_SOCKET={}\nCVMFS_TALK_OWNER={}\nCVMFS_USYSLOG={}\n",
                socket.display(),
                person.uid,
                log.display()
            );
            let mounted = site.mounts(&lines);
            let found = person.does(|| fs::read_dir(&target).expect("a folder").count());
            assert_eq!(found, 0, "{}", way.display());
            // The log of a mount of root is not in the test's folder.
            if !person.is_root() {
                let said = site.world.logs();
                let part = format!("other users can change {}", open.display());
                assert!(said.contains(&format!("{part}, on the way to the socket")), "{said}");
                assert!(said.contains(&format!("{part}, on the way to the log")), "{said}");
            }
            drop(mounted);
        }
    }
}
