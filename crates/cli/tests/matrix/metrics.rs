//! `esker metrics`: one listener for the mounts of a node, and the files that go with it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use esker_testkit::fixture;
use esker_testkit::mirror::{Fault, Mirror};
use esker_testkit::revision_builder::RevisionBuilder;
use esker_testkit::{skip, skip_optional};
use serde_json::Value;

use crate::machine::Machine;
use crate::test_env::{Mounted, TestEnv, complaint, printed, words};
use crate::test_user::TestUser;

/// A running `esker metrics --listen`.
struct Listener {
    child: Child,
    address: String,
}

impl Listener {
    fn start(world: &TestEnv, options: &[&str]) -> Self {
        let mut command = world.esker(&["metrics", "--listen", "127.0.0.1:0"]);
        let mut child = command.args(options).stdout(Stdio::piped()).spawn().expect("esker metrics");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("its output")).read_line(&mut line).expect("a line");
        let address =
            line.trim().strip_prefix("serving at http://").and_then(|url| url.strip_suffix("/metrics"));
        Self { child, address: address.unwrap_or_else(|| panic!("{line}")).to_owned() }
    }

    fn get(&self) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("connecting");
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .expect("a request");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("a response");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/plain; version=0.0.4"), "{head}");
        body.to_owned()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the value of the first sample whose line begins so.
fn value(text: &str, sample: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(sample));
    let line = line.unwrap_or_else(|| panic!("no {sample} in\n{text}"));
    line.rsplit_once(' ').and_then(|(_, value)| value.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

fn promtool(arguments: &[&str], input: &str) -> Option<Result<(), String>> {
    let child = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.ok()?;
    // One that refuses the beginning doesn't read the rest.
    let _ = child.stdin.take().expect("its input").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("promtool");
    Some(if output.status.success() { Ok(()) } else { Err(words(&output)) })
}

/// Returns a file of `deploy/`.
fn deployed(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name);
    fs::read_to_string(&path).expect("a file of deploy/")
}

/// Returns the names of Esker's metrics in a text, without the suffixes of a histogram's parts.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_part(c));
    let named = words.filter(|word| {
        ["esker_mount", "esker_cache", "esker_build", "esker_image"]
            .iter()
            .any(|start| word.starts_with(start))
    });
    let whole = |name: &str| {
        let whole = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
        whole.unwrap_or(name).to_owned()
    };
    named.map(whole).collect()
}

#[test]
fn metrics_of_a_mount_are_served_and_its_dashboard_finds_them() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let mounted = world.mount(&[]);
    mounted.does(|| fs::read(mounted.path("data/hex.txt"))).expect("a file");
    let listener = Listener::start(&world, &[]);
    let text = listener.get();
    let mountpoint = world.mountpoint();
    let uid = world.person.uid;
    let labels = format!(
        "repository=\"{}\",mountpoint=\"{}\",user=\"{uid}\"",
        world.fixture().name(),
        mountpoint.display()
    );
    assert_eq!(value(&text, &format!("esker_mount_up{{{labels}}}")), 1.0);
    let of = |name: &str, more: &str| value(&text, &format!("{name}{{{labels}{more}"));
    assert!(of("esker_mount_requests_total", ",operation=\"read\"") >= 1.0);
    assert!(of("esker_mount_blocked_seconds_total", ",operation=\"read\",cause=\"network\"") > 0.0, "{text}");
    // The daemon is confined, and sees its own resources all the same.
    assert!(
        of("esker_mount_process_resident_bytes", "") > 0.0 && of("esker_mount_process_open_fds", "") > 0.0
    );
    let whole = of("esker_mount_request_duration_seconds_bucket", ",operation=\"read\",le=\"+Inf\"");
    assert_eq!(whole, of("esker_mount_requests_total", ",operation=\"read\""));
    // Proxies and announcements have no samples in this mount.
    let known: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .map(str::to_owned)
        .collect();
    for name in ["grafana/esker-mounts.json", "prometheus/esker.rules.yml"] {
        let wanted = metrics_in(&deployed(name));
        assert!(wanted.len() > 5, "{wanted:?}");
        let missing: Vec<_> = wanted.iter().filter(|metric| !known.contains(*metric)).collect();
        assert!(missing.is_empty(), "deploy/{name} names {missing:?}");
    }
    match promtool(&["check", "metrics"], &text) {
        Some(checked) => checked.expect("names and texts by the conventions"),
        None => skip_optional!("promtool is not installed"),
    }
}

#[test]
fn alerts_are_accepted_and_pass_their_tests() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus");
    let path = |name: &str| folder.join(name).display().to_string();
    for arguments in [
        ["check", "rules", &path("esker.rules.yml")],
        ["test", "rules", &path("esker.rules.test.yml")],
        ["check", "rules", &path("esker-services.rules.yml")],
        ["test", "rules", &path("esker-services.rules.test.yml")],
        ["check", "config", &path("prometheus.yml")],
    ] {
        match promtool(&arguments, "") {
            Some(checked) => checked.unwrap_or_else(|said| panic!("{arguments:?}: {said}")),
            None => return skip_optional!("promtool is not installed"),
        }
    }
}

/// The stopped daemon accepts connections and doesn't answer.
#[test]
fn a_mount_that_hangs_is_reported_as_down() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let mounted = world.mount(&[]);
    let listener = Listener::start(&world, &["--timeout", "1"]);
    let up = || value(&listener.get(), "esker_mount_up{");
    assert_eq!(up(), 1.0);
    let pid = mounted.status()["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a process");
    let pid = rustix::process::Pid::from_raw(pid).expect("a process");
    let signal = |signal| mounted.does(|| rustix::process::kill_process(pid, signal)).expect("sent");
    signal(rustix::process::Signal::STOP);
    // A scrape of half a second ago is handed out again.
    let one = Listener::start(&world, &["--timeout", "1"]);
    let stopped = value(&one.get(), "esker_mount_up{");
    signal(rustix::process::Signal::CONT);
    assert_eq!(stopped, 0.0);
    mounted.wait_until("it answers again", |status| status["state"] == "serving");
    assert_eq!(value(&Listener::start(&world, &[]).get(), "esker_mount_up{"), 1.0);
}

#[test]
fn metrics_go_to_a_file_and_to_a_collector_in_either_names() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let _mounted = world.mount(&[]);
    let file = world.path("home/esker.prom");
    let said = printed(world.esker(&["metrics", "--names", "cvmfs", "--textfile"]).arg(&file));
    assert_eq!(said, "");
    let text = world.person.does(|| fs::read_to_string(&file)).expect("a file");
    let repo = format!("{{repo=\"{}\"}}", world.fixture().name());
    assert!(value(&text, &format!("cvmfs_repo_revision{repo}")) > 0.0);
    assert!(value(&text, &format!("cvmfs_cache_cached_bytes{repo}")) > 0.0);
    assert!(
        complaint(world.esker(&["metrics", "--textfile", "/tmp/esker.txt"]).arg("--interval=1"), 2)
            .contains(".prom")
    );

    let collector = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/v1/metrics", collector.local_addr().expect("an address"));
    let received = std::thread::spawn(move || {
        let (mut stream, _) = collector.accept().expect("a message");
        let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
        let (mut len, mut line) = (0, String::new());
        while reader.read_line(&mut line).expect("a line") > 2 {
            let field = line.to_ascii_lowercase();
            len = field.strip_prefix("content-length: ").map_or(len, |n| n.trim().parse().expect("a length"));
            line.clear();
        }
        let mut body = vec![0; len];
        reader.read_exact(&mut body).expect("a body");
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").expect("an answer");
        serde_json::from_slice::<Value>(&body).expect("JSON")
    });
    printed(&mut world.esker(&["metrics", "--otlp", &url]));
    let body = received.join().expect("the collector");
    let metrics = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().expect("metrics");
    let up = metrics.iter().find(|metric| metric["name"] == "esker_mount_up").expect("a state");
    assert_eq!(up["gauge"]["dataPoints"][0]["asInt"], "1", "{up}");
}

/// Mounts as root and as a user, who have one listener together; a user sees only their own mounts.
#[test]
fn one_scrape_has_the_mounts_of_root_and_users() {
    let myself = TestUser::myself();
    if !myself.is_root() {
        skip!("only root sees the mounts of all users");
    }
    let world = TestEnv::new(myself, fixture::RMD);
    let said = Machine::new(&world).run(
        r#"
        mkdir -p "/cvmfs/$NAME" /run/user/1/esker /run/m/one /run/kept
        chown -R 1:1 /run/user/1 /run/m/one
        chmod 700 /run/user/1 /run/user/1/esker
        cp "$ESKER" /run/kept/esker
        cp "$KEY" /run/kept/key.pub
        chmod a+r /run/kept/key.pub
        ESKER=/run/kept/esker KEY=/run/kept/key.pub
        mount -t tmpfs -o mode=1777 none /tmp
        user() { setpriv --reuid 1 --regid 1 --clear-groups env HOME=/tmp XDG_RUNTIME_DIR=/run/user/1 "$@"; }
        "$ESKER" mount "$URL" "/cvmfs/$NAME" --public-key "$KEY" --cache /run/cache
        user "$ESKER" mount "$URL" /run/m/one --public-key "$KEY" --cache /tmp/cache-1
        "$ESKER" metrics | grep ^esker_mount_up
        user "$ESKER" metrics | grep ^esker_mount_up
        umount -l "/cvmfs/$NAME" /run/m/one
        "#,
    );
    let sample = |mountpoint: &str, user: u32| {
        format!("esker_mount_up{{repository=\"rmd.test\",mountpoint=\"{mountpoint}\",user=\"{user}\"}} 1")
    };
    let (root, user) = (sample("/cvmfs/rmd.test", 0), sample("/run/m/one", 1));
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("esker_")).collect();
    assert_eq!(lines, [&*root, &*user, &*user], "{said}");
}

/// Requests that no caller waits for.
const UNAWAITED: [&str; 4] = ["FORGET", "BATCH_FORGET", "RELEASE", "RELEASEDIR"];

/// Sums of the requests of a mount, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    requests: u64,
    latency: f64,
    network: f64,
    blocked: f64,
}

impl Sums {
    /// Returns the sums once each request's latency is counted, which happens after its reply.
    fn when_counted(mounted: &Mounted<'_>) -> Self {
        let is_counted = |one: &Value| {
            let classes = one["latencies"].as_array().expect("classes").iter();
            let counted: u64 = classes.map(|class| class.as_u64().expect("a number")).sum();
            UNAWAITED.iter().any(|name| one["name"] == *name) || one["requests"] == counted
        };
        Self::of(&mounted.wait_until("counting of all requests", |status| {
            status["requests"].as_array().expect("requests").iter().all(is_counted)
        }))
    }

    fn of(status: &Value) -> Self {
        let mut sums = Self::default();
        for one in status["requests"].as_array().expect("requests") {
            if UNAWAITED.iter().any(|name| one["name"] == *name) {
                continue;
            }
            let seconds = |value: &Value| value.as_u64().expect("microseconds") as f64 / 1e6;
            sums.requests += one["requests"].as_u64().expect("a number");
            sums.latency += seconds(&one["latency_us"]);
            sums.network += seconds(&one["waits"]["network_us"]);
            let waits = one["waits"].as_object().expect("waits");
            sums.blocked += waits.values().map(seconds).sum::<f64>();
        }
        sums
    }

    fn since(self, before: Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            latency: self.latency - before.latency,
            network: self.network - before.network,
            blocked: self.blocked - before.blocked,
        }
    }
}

/// Files that a program reads at its start, and the time of the server for each request.
const STARTED_FILES: u64 = 40;
const ROUND_TRIP: Duration = Duration::from_millis(10);

/// The counters of a cold start have the time of the server, those of a warm and a hot one don't. A program waits longer
/// than they say, for the kernel and for a free core, which no test can limit: `esker trace` estimates that time.
#[test]
fn the_counters_explain_how_long_a_program_waits_for_the_mount() {
    let repository = fixture::FULL.unpack();
    let craft = RevisionBuilder::of(&repository);
    craft.add_directory("start");
    for number in 0..STARTED_FILES {
        let content = number.to_le_bytes().repeat(1 << 10);
        let hash = repository.store(&content, "");
        let byte = |at: usize| u8::from_str_radix(&hash[2 * at..2 * at + 2], 16).expect("a digest");
        craft.add_file("/start", &format!("module{number}"), content.len() as u64, std::array::from_fn(byte));
    }
    craft.publish(&repository);
    let mirror = Mirror::serve(repository.document_root());
    let rule = mirror.fault(|path| path.contains("/data/"), Fault::Delay(ROUND_TRIP));
    let world = TestEnv::at(TestUser::ordinary(), repository, mirror);
    let start = |mounted: &Mounted<'_>| {
        let before = Sums::when_counted(mounted);
        let wall = mounted.does(|| {
            let mut wall = Duration::ZERO;
            for number in 0..STARTED_FILES {
                let path = mounted.path(&format!("start/module{number}"));
                let began = Instant::now();
                fs::metadata(&path).expect("a file");
                let content = fs::read(&path).expect("a file");
                wall += began.elapsed();
                assert_eq!(content.len(), 8 << 10);
            }
            wall.as_secs_f64()
        });
        (wall, Sums::when_counted(mounted).since(before))
    };
    let mounted = world.mount(&["--no-prefetch"]);
    let (cold_wall, cold) = start(&mounted);
    rule.assert_hit();
    let (hot_wall, hot) = start(&mounted);
    drop(mounted);
    let (warm_wall, warm) = start(&world.mount(&["--no-prefetch"]));
    for (what, wall, sums) in [("cold", cold_wall, cold), ("warm", warm_wall, warm), ("hot", hot_wall, hot)] {
        let text = format!("{what}: {wall:.4} s, {sums:?}");
        // The program makes one call after the other. A sum of microseconds is rounded once for each operation. A latency
        // isn't compared with the wall time: it is longer if the worker loses its core between the reply and its clock.
        assert!(sums.blocked <= wall + 1e-4, "waits and wall time: {text}");
        assert!(sums.blocked <= sums.latency + 1e-4, "waits are a part of latencies: {text}");
    }
    let least = STARTED_FILES as f64 * ROUND_TRIP.as_secs_f64();
    assert!(cold.network >= least, "cold: {cold_wall} s, {cold:?}");
    assert!(warm.network == 0.0 && hot.network == 0.0, "the objects are in the cache: {warm:?}, {hot:?}");
    assert!(cold.requests >= 2 * STARTED_FILES && warm.requests >= STARTED_FILES, "{cold:?}, {warm:?}");
}
