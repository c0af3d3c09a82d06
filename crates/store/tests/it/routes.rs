//! Several servers, several proxies, and what happens when some of them fail.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use esker_store::{Engine, EngineOptions, Proxies, RetryPolicy, Servers, Source, connect};
use esker_testkit::log_lines::LogLines;
use esker_testkit::mirror::{Fault, Mirror};
use tempfile::TempDir;

use crate::rig::{Made, Rig, bytes, objects, roomy, serve};

/// A route of mirrors, as servers or as proxies (which have everything in their caches).
struct Net {
    rig: Rig,
    servers: Servers,
    lines: LogLines,
    /// The state of a route is dropped with its last user.
    held: Mutex<Vec<Arc<dyn Source>>>,
    _folders: Vec<TempDir>,
}

fn engine() -> Engine {
    let pause = Duration::from_millis(10);
    let retry =
        RetryPolicy { attempts: 2, first_pause: pause, longest_pause: pause, ..RetryPolicy::default() };
    Engine::start(EngineOptions { retry, ..EngineOptions::default() }).unwrap()
}

impl Net {
    /// Mirrors of the same objects, and a route that has none of them yet.
    fn of(objects: &[Made], mirrors: usize) -> (Net, Vec<Mirror>) {
        let (mirrors, folders): (Vec<_>, Vec<_>) = (0..mirrors).map(|_| serve(objects)).unzip();
        let lines = LogLines::collect();
        let rig = Rig::with(engine(), roomy());
        let mut servers = Servers::direct("");
        servers.timings.proxy = Duration::from_millis(500);
        servers.timings.direct = Some(Duration::from_millis(500));
        (Net { rig, servers, lines, held: Mutex::default(), _folders: folders }, mirrors)
    }

    fn source(&self) -> Arc<dyn Source> {
        let source = connect(&self.rig.engine, self.servers.clone()).unwrap();
        self.held.lock().unwrap().push(source.clone());
        source
    }

    fn proxies(&mut self, groups: &str) {
        self.servers.proxies = Proxies::parse(groups, None).unwrap();
    }

    /// Reads all of them; everything must be right.
    #[track_caller]
    fn reads(&self, objects: &[Made]) {
        let store = self.rig.store(self.source());
        for object in objects {
            assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain);
        }
    }
}

fn at(mirror: &Mirror) -> String {
    format!("http://127.0.0.1:{}", mirror.port())
}

/// An address without a listener.
fn absent_proxy() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[test]
fn the_next_server_replaces_a_failed_one() {
    let faults = [
        Fault::Status(500),
        Fault::Status(429),
        Fault::RetryAfter(3600),
        Fault::Missing,
        Fault::Html,
        Fault::FlipByte(100),
        Fault::Truncate(10),
        Fault::CloseAfter(10),
        Fault::StallAfter(10),
        Fault::NoAnswer,
        Fault::Slow(10),
    ];
    for fault in faults {
        let objects = objects(4);
        let (mut net, mirrors) = Net::of(&objects, 2);
        net.servers.urls = mirrors.iter().map(|mirror| mirror.url("repo")).collect();
        net.servers.timings.low_speed = Some(4096);
        net.reads(&objects[..1]);
        let rule = mirrors[0].fault(|_| true, fault.clone());
        net.reads(&objects[1..]);
        rule.assert_hit();
        let route = net.source().network().route;
        assert_eq!((route.server_failovers, route.servers[1].active), (1, true), "{fault:?}: {route:?}");
        let lines = &net.lines;
        assert!(lines.contain("is out of use, going on with"), "{fault:?}: {lines:?}");
    }
}

#[test]
fn requests_go_through_a_proxy_of_the_first_group_that_answers() {
    let objects = objects(6);
    let (mut net, mirrors) = Net::of(&objects, 3);
    let [near, far, origin] = &mirrors[..] else { panic!("three mirrors") };
    net.servers.urls = vec![origin.url("repo")];
    net.proxies(&format!("{}|{};{}", absent_proxy(), at(near), at(far)));
    net.reads(&objects[..2]);
    assert_eq!((near.requests().len(), far.requests().len(), origin.requests().len()), (2, 0, 0));
    let host = format!("127.0.0.1:{}", origin.port());
    assert!(near.requests().iter().all(|request| request.header("host") == Some(&host)));
    // The whole group fails, in the middle of an answer.
    let rule = near.fault(|_| true, Fault::CloseAfter(20));
    net.reads(&objects[2..4]);
    rule.assert_hit();
    assert_eq!((far.requests().len(), origin.requests().len()), (2, 0));
    let route = net.source().network().route;
    assert!(route.proxies[0].iter().all(|proxy| proxy.out) && route.proxies[1][0].active, "{route:?}");
    // It answers again when it is needed, whether or not its time has come.
    rule.lift();
    far.leave();
    net.reads(&objects[4..]);
    let route = net.source().network().route;
    assert!(route.recoveries > 0 && route.retries > 0, "{route:?}");
    assert!(net.lines.contain("answers again"));
}

#[test]
fn a_route_marked_down_is_used_again_after_a_while() {
    let objects = objects(200);
    let (mut net, mirrors) = Net::of(&objects, 2);
    net.servers.urls = mirrors.iter().map(|mirror| mirror.url("repo")).collect();
    // Long over before all reads are.
    net.servers.timings.server_reset = Some(Duration::from_millis(1));
    // Its manifest is what is asked for to see whether it answers.
    mirrors[0].put("/repo/.cvmfspublished", "anything");
    let rule = mirrors[0].fault(|_| true, Fault::Status(503));
    net.reads(&objects[..1]);
    rule.assert_hit();
    rule.lift();
    let before = mirrors[0].requests().len();
    // Each read is a chance to look; none of them waits for it.
    for object in &objects[1..] {
        net.reads(std::slice::from_ref(object));
        if net.source().network().route.servers[0].active {
            break;
        }
        std::thread::yield_now();
    }
    mirrors[0].wait_for(before + 1, |_| true);
    assert!(mirrors[0].count(|path| path.ends_with(".cvmfspublished")) > 0);
    net.reads(&objects);
    assert!(net.source().network().route.servers[0].active);
}

#[test]
fn shared_proxies_each_serve_their_own_objects() {
    let objects = objects(60);
    let (mut net, mirrors) = Net::of(&objects, 3);
    net.servers.urls = vec!["http://origin.invalid/repo".to_owned()];
    net.proxies(&mirrors.iter().map(at).collect::<Vec<_>>().join("|"));
    net.servers.sharding = true;
    net.reads(&objects);
    let counts: Vec<usize> = mirrors.iter().map(|mirror| mirror.requests().len()).collect();
    assert!(counts.iter().sum::<usize>() == 60 && counts.iter().all(|count| *count > 0), "{counts:?}");
    let paths: Vec<String> = mirrors[0].requests().into_iter().map(|request| request.path).collect();
    let again = Rig::with(engine(), roomy());
    let store = again.store(connect(&again.engine, net.servers.clone()).unwrap());
    for object in &objects {
        bytes(&store, &object.wanted).unwrap();
    }
    let second: Vec<String> =
        mirrors[0].requests().into_iter().skip(paths.len()).map(|request| request.path).collect();
    assert_eq!(paths, second, "another node asks the same proxy for the same object");
}

#[test]
fn errors_of_a_proxy_are_distinguished_from_those_of_the_server() {
    let objects = objects(1);
    let (mut net, mirrors) = Net::of(&objects, 1);
    net.servers.urls = vec!["http://origin.invalid/repo".to_owned()];
    net.proxies(&absent_proxy());
    let store = net.rig.store(net.source());
    let error = bytes(&store, &objects[0].wanted).unwrap_err();
    assert_eq!((error.blame(), error.may_pass()), (esker_store::Blame::Proxy, true), "{error}");
    net.proxies(&at(&mirrors[0]));
    let rule = mirrors[0].fault(|_| true, Fault::Status(404));
    let store = net.rig.store(net.source());
    let error = bytes(&store, &objects[0].wanted).unwrap_err();
    rule.assert_hit();
    assert_eq!((error.blame(), error.may_pass()), (esker_store::Blame::Host, false), "{error}");
    assert!(error.to_string().contains("through the proxy"), "{error}");
}

#[test]
fn a_thousand_requests_to_a_silent_server_fail_over_together() {
    let objects = objects(1000);
    let (mut net, mirrors) = Net::of(&objects, 2);
    net.servers.urls = mirrors.iter().map(|mirror| mirror.url("repo")).collect();
    let rule = mirrors[0].fault(|_| true, Fault::NoAnswer);
    let store = net.rig.store(net.source());
    let (told, outcomes) = std::sync::mpsc::channel();
    for object in &objects {
        let told = told.clone();
        let done = esker_store::Callback::new(move |outcome| told.send(outcome.is_ok()).unwrap());
        esker_store::ObjectStore::get(&store, object.wanted.clone(), done);
    }
    for _ in &objects {
        assert!(outcomes.recv_timeout(Duration::from_secs(60)).expect("an answer"));
    }
    rule.assert_hit();
    let sent = mirrors[0].requests().len();
    assert!(sent < 100, "{sent} requests were sent to a server that is known to be silent");
}

#[test]
fn servers_that_a_metalink_server_names_are_used() {
    let objects = objects(4);
    let (mut net, mirrors) = Net::of(&objects, 3);
    let [metalink, one, other] = &mirrors[..] else { panic!("three") };
    let of = |mirror: &Mirror, object: &Made| {
        let path = format!("/repo/{}", object.wanted.name.path());
        mirror.count(|asked| asked == path)
    };
    let target = one.url(&format!("repo/{}", objects[0].wanted.name.path()));
    let link = |mirror: &Mirror, pri: u8| {
        format!(
            "<{}>; rel=duplicate; pri={pri}",
            mirror.url(&format!("repo/{}", objects[0].wanted.name.path()))
        )
    };
    metalink.say("Link", &format!("{}, {}", link(other, 2), link(one, 1)));
    let redirected = metalink.fault(|path| path.starts_with("/repo/data/"), Fault::Redirect(target));
    net.servers.urls = vec![metalink.url("repo")];
    net.servers.metalink = Some(Duration::from_secs(3600));
    let source = net.source();
    let read = |object: &Made| {
        assert_eq!(bytes(&net.rig.store(source.clone()), &object.wanted).unwrap(), object.plain)
    };
    read(&objects[0]);
    redirected.assert_hit();
    // The links are used without the metalink server, in their order.
    read(&objects[1]);
    assert_eq!([metalink, one, other].map(|mirror| of(mirror, &objects[1])), [0, 1, 0]);
    let down = one.fault(|_| true, Fault::Status(503));
    read(&objects[2]);
    down.assert_hit();
    assert_eq!([metalink, other].map(|mirror| of(mirror, &objects[2])), [0, 1]);
    // Once no linked server works, the metalink server is asked again; it has the object itself.
    let all_down = other.fault(|_| true, Fault::Status(503));
    redirected.lift();
    metalink.say("Link", "");
    read(&objects[3]);
    all_down.assert_hit();
    assert_eq!(of(metalink, &objects[3]), 1);
}

#[test]
fn what_a_partial_replica_lacks_comes_from_servers_with_all() {
    let objects = objects(3);
    let (mut net, mirrors) = Net::of(&objects, 2);
    let lacked = format!("/repo/{}", objects[1].wanted.name.path());
    let missing = mirrors[0].fault(move |asked| asked == lacked, Fault::Missing);
    net.servers.urls = vec![mirrors[0].url("repo")];
    net.servers.full = vec![mirrors[1].url("repo")];
    net.reads(&objects[..2]);
    missing.assert_hit();
    assert_eq!(mirrors[1].count(|_| true), 1, "only what is missing");
    // Other failures are not hidden.
    let failed = format!("/repo/{}", objects[2].wanted.name.path());
    mirrors[0].fault(move |asked| asked == failed, Fault::Status(500));
    assert!(bytes(&net.rig.store(net.source()), &objects[2].wanted).is_err());
    assert_eq!(mirrors[1].count(|_| true), 1);
}

#[test]
fn redirects_are_followed_if_configured() {
    let objects = objects(2);
    let (mut net, mirrors) = Net::of(&objects, 1);
    net.servers.urls = vec![mirrors[0].url("elsewhere")];
    let path = format!("/elsewhere/{}", objects[0].wanted.name.path());
    let target = mirrors[0].url(&format!("repo/{}", objects[0].wanted.name.path()));
    mirrors[0].fault(move |asked| asked == path, Fault::Redirect(target));
    let store = net.rig.store(net.source());
    assert!(bytes(&store, &objects[0].wanted).unwrap_err().to_string().contains("redirects"));
    net.servers.redirects = true;
    net.reads(&objects[..1]);
    // One that never ends does, after a few.
    let around = format!("/elsewhere/{}", objects[1].wanted.name.path());
    let picked = around.clone();
    mirrors[0].fault(move |asked| asked == picked, Fault::Redirect(mirrors[0].url(&around)));
    let store = net.rig.store(net.source());
    assert!(bytes(&store, &objects[1].wanted).is_err());
    assert_eq!(mirrors[0].count(|path| path == around), 5);
}
