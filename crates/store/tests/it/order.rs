//! The order in which servers and fallback proxies are used, and the content of requests to them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_store::{
    Engine, EngineOptions, InfoHeaders, Order, Proxies, RetryPolicy, Servers, Source, connect,
};
use esker_testkit::log_lines::LogLines;
use esker_testkit::mirror::{Fault, Mirror};
use esker_testkit::waiting::until;
use tempfile::TempDir;

use crate::rig::{Made, PATIENCE, Rig, bytes, objects, roomy, serve};

/// Request to the Geo-API in these tests: all servers are at one address.
const QUESTION: &str = "/repo/api/v1.0/geo/here/127.0.0.1,127.0.0.1,127.0.0.1";

/// Mirrors of the same objects as servers, and what was logged.
struct Order3 {
    rig: Rig,
    servers: Servers,
    mirrors: Vec<Mirror>,
    lines: LogLines,
    _folders: Vec<TempDir>,
}

fn three(objects: &[Made], order: Order) -> Order3 {
    let (mirrors, folders): (Vec<_>, Vec<_>) = (0..3).map(|_| serve(objects)).unzip();
    let mut servers = Servers::direct("");
    servers.urls = mirrors.iter().map(|mirror| mirror.url("repo")).collect();
    servers.order = order;
    let lines = LogLines::collect();
    let rig = Rig::new();
    Order3 { rig, servers, mirrors, lines, _folders: folders }
}

impl Order3 {
    fn source(&self) -> Arc<dyn Source> {
        connect(&self.rig.engine, self.servers.clone()).unwrap()
    }

    fn read(&self, source: &Arc<dyn Source>, object: &Made) {
        assert_eq!(bytes(&self.rig.store(source.clone()), &object.wanted).unwrap(), object.plain);
    }

    fn wait_for_line(&self, part: &str) {
        let is_told = || self.lines.contain(part);
        assert!(until(PATIENCE, is_told), "{part:?} is not in {:?}", self.lines.all());
    }
}

fn active(source: &Arc<dyn Source>) -> Option<usize> {
    source.network().route.servers.iter().position(|server| server.active)
}

#[test]
fn servers_and_fallback_proxies_are_used_in_the_order_of_the_geo_api() {
    let objects = objects(4);
    let mut net = three(&objects, Order::Geo);
    (net.servers.geo_name, net.servers.most) = (Some("here".into()), 2);
    net.mirrors.iter().for_each(|mirror| mirror.put(QUESTION, "3,1,2\n"));
    let source = net.source();
    net.read(&source, &objects[0]);
    net.wait_for_line(&format!("the nearest server is {}", net.mirrors[2].url("repo")));
    assert_eq!(active(&source), Some(2));
    net.read(&source, &objects[1]);
    assert_eq!(net.mirrors[2].count(|path| path.contains("/data/")), 1);
    // Two at most: the third of the order is never tried.
    net.mirrors[2].leave();
    net.mirrors[0].leave();
    assert!(bytes(&net.rig.store(source), &objects[2].wanted).is_err());
    assert_eq!(net.mirrors[1].count(|path| path.contains("/data/")), 0);

    // One server behind fallback proxies; which of them is near is asked directly.
    let mut net = three(&objects, Order::Geo);
    net.servers.geo_name = Some("here".into());
    net.servers.urls.truncate(1);
    let at = |mirror: &Mirror| format!("http://127.0.0.1:{}", mirror.port());
    let groups = format!("{};{}", at(&net.mirrors[1]), at(&net.mirrors[2]));
    net.servers.fallback = Proxies::parse(&groups, None).unwrap();
    net.mirrors[0].put(QUESTION, "3,1,2");
    let source = net.source();
    net.read(&source, &objects[0]);
    net.wait_for_line("the nearest server is");
    net.read(&source, &objects[1]);
    let before = net.mirrors[2].requests().len();
    net.read(&source, &objects[2]);
    assert_eq!((before, net.mirrors[2].requests().len()), (1, 2), "{:?}", source.network().route);
    assert_eq!(net.mirrors[0].requests().len(), 1, "the question alone");
}

#[test]
fn a_silent_or_broken_geo_api_changes_and_delays_nothing() {
    let objects = objects(3);
    for answer in [Fault::Missing, Fault::Content(b"1,2,2".to_vec()), Fault::Html, Fault::Status(500)] {
        let net = three(&objects, Order::Geo);
        let is_question = |path: &str| path.contains("/api/v1.0/geo/");
        let rules: Vec<_> =
            net.mirrors.iter().map(|mirror| mirror.fault(is_question, answer.clone())).collect();
        let source = net.source();
        net.read(&source, &objects[0]);
        net.wait_for_line("in the order in which they are named");
        rules.iter().for_each(|rule| rule.assert_hit());
        net.read(&source, &objects[1]);
        let asked: Vec<usize> =
            net.mirrors.iter().map(|mirror| mirror.count(|path| path.contains("/data/"))).collect();
        assert_eq!(asked, [2, 0, 0], "{answer:?}");
        let name = net.mirrors[0].requests().into_iter().find(|request| is_question(&request.path));
        let name = name.map(|request| request.path.split('/').nth(5).unwrap_or_default().to_owned());
        assert!(name.is_some_and(|name| name.len() == 32), "each direct client has its own name");
    }
    // Silence: everything is read before the wait for the answer times out. The query is sent
    // beside the reads and may reach its server after the last of them.
    let mut net = three(&objects, Order::Geo);
    net.servers.timings.direct = Some(PATIENCE);
    let rules: Vec<_> = net
        .mirrors
        .iter()
        .map(|mirror| mirror.fault(|path| path.contains("/geo/"), Fault::NoAnswer))
        .collect();
    let source = net.source();
    objects.iter().for_each(|object| net.read(&source, object));
    let hits = || rules.iter().map(|rule| rule.hits()).sum::<u64>();
    assert!(until(PATIENCE, || hits() > 0), "no server got a request");
    assert_eq!(hits(), 1, "one was asked, and still is");
    assert_eq!(active(&source), Some(0));
}

#[test]
fn the_fastest_server_is_used() {
    let objects = objects(200);
    let net = three(&objects, Order::RoundTrip);
    for (mirror, millis) in net.mirrors.iter().zip([300, 0, 300]) {
        mirror.put("/repo/.cvmfspublished", "anything");
        let late = |path: &str| path.ends_with(".cvmfspublished");
        mirror.fault(late, Fault::Delay(Duration::from_millis(millis)));
    }
    let source = net.source();
    net.read(&source, &objects[0]);
    assert!(until(PATIENCE, || active(&source) == Some(1)), "{:?}", source.network().route);
    net.read(&source, &objects[1]);
    assert_eq!(net.mirrors[1].count(|path| path.contains("/data/")), 1);
}

#[test]
fn info_headers_name_the_object_and_the_user() {
    let objects = objects(2);
    let mut net = three(&objects, Order::Given);
    let field = |mirror: &Mirror, name: &str| {
        mirror.requests().last().and_then(|request| request.header(name).map(str::to_owned))
    };
    net.read(&net.source(), &objects[0]);
    assert_eq!(field(&net.mirrors[0], "cvmfs-info"), None);
    let fields = InfoHeaders::parse_fields("UID:1000| site : far away |").unwrap();
    let template =
        InfoHeaders::fill_in("%{path} for %{env:JOB}%{of}", |key| (key == "env:JOB").then(|| "a b".into()));
    net.servers.info_headers = InfoHeaders { what: true, template, fields };
    let mut object = objects[1].clone();
    object.wanted.what = "/a b/ü%\r\nx".into();
    net.read(&net.source(), &object);
    let told = ["cvmfs-info", "x-cvmfs-uid", "x-cvmfs-site"].map(|name| field(&net.mirrors[0], name));
    let info = told[0].as_deref().unwrap();
    assert!(info.starts_with("/a%20b/%C3%BC%25%0D%0Ax") && info.ends_with(" for  a%20b"), "{info}");
    assert_eq!((told[1].as_deref(), told[2].as_deref()), (Some("1000"), Some("far away")));
    for bad in ["nothing", "a b:c", ":c", "a:b\r\nHost: x", "ü:x"] {
        assert_eq!(InfoHeaders::parse_fields(bad), None, "{bad}");
    }
}

#[test]
fn failover_indefinitely_repeats_until_the_deadline() {
    let objects = objects(2);
    for indefinitely in [false, true] {
        let mut net = three(&objects, Order::Given);
        net.servers.timings.indefinitely = indefinitely;
        // More often than all servers are asked in the rounds there usually are.
        let rules: Vec<_> =
            net.mirrors.iter().map(|mirror| mirror.fault_times(6, |_| true, Fault::Status(503))).collect();
        let outcome = bytes(&net.rig.store(net.source()), &objects[0].wanted);
        assert_eq!(outcome.is_ok(), indefinitely, "{outcome:?}");
        rules.iter().for_each(|rule| rule.assert_hit());
    }
    // And still ends.
    let pause = Duration::from_millis(1);
    let total = Duration::from_millis(100);
    let retry = RetryPolicy {
        attempts: 2,
        total,
        first_pause: pause,
        longest_pause: pause,
        ..RetryPolicy::default()
    };
    let engine = Engine::start(EngineOptions { retry, ..EngineOptions::default() }).unwrap();
    let rig = Rig::with(engine, roomy());
    let (mirror, _folder) = serve(&objects);
    let rule = mirror.fault(|_| true, Fault::Status(503));
    let mut servers = Servers::direct(mirror.url("repo"));
    servers.timings.indefinitely = true;
    let store = rig.store(connect(&rig.engine, servers).unwrap());
    assert!(bytes(&store, &objects[0].wanted).is_err());
    assert!(rule.hits() > 2, "{}", rule.hits());
}

#[test]
fn timeouts_of_silent_proxies_and_servers_are_those_configured() {
    let objects = objects(1);
    let mut net = three(&objects, Order::Given);
    net.servers.urls.truncate(1);
    (net.servers.timings.proxy, net.servers.timings.direct) =
        (Duration::from_millis(300), Some(Duration::from_millis(700)));
    let silent = |servers: Servers, mirror: &Mirror, words: &str, least: Duration| {
        let rule = mirror.fault(|_| true, Fault::NoAnswer);
        let began = Instant::now();
        let store = net.rig.store(connect(&net.rig.engine, servers).unwrap());
        let error = bytes(&store, &objects[0].wanted).unwrap_err();
        rule.assert_hit();
        assert!(error.to_string().contains(words), "{error}");
        assert!(began.elapsed() >= least, "{:?}", began.elapsed());
    };
    silent(net.servers.clone(), &net.mirrors[0], "no answer began within 0.7 s", Duration::from_millis(700));
    let mut through = net.servers.clone();
    through.proxies = Proxies::parse(&format!("127.0.0.1:{}", net.mirrors[1].port()), None).unwrap();
    silent(through, &net.mirrors[1], "no answer began within 0.3 s", Duration::from_millis(300));
}

#[test]
fn a_broken_connection_is_retried_as_configured() {
    let objects = objects(2);
    for retries in [0, 3] {
        let mut net = three(&objects, Order::Given);
        net.servers.timings.retries = retries;
        (net.servers.timings.first_pause, net.servers.timings.longest_pause) =
            (Some(Duration::from_millis(80)), Some(Duration::from_millis(100)));
        let rule = net.mirrors[0].fault(|_| true, Fault::CloseAfter(3));
        let began = Instant::now();
        net.read(&net.source(), &objects[0]);
        assert_eq!(rule.hits(), u64::from(retries) + 1, "then the next server");
        // Half of each pause at least: of 80, 100 and 100 ms.
        let least = if retries == 3 { Duration::from_millis(140) } else { Duration::ZERO };
        assert!(began.elapsed() >= least, "{:?}", began.elapsed());
    }
}
