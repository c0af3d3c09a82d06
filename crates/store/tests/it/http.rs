//! Connections: reused, bounded, demand first.

use std::sync::mpsc;
use std::time::Duration;

use esker_store::{Callback, CancelToken, Cause, Engine, ObjectStore, Warmed};
use esker_testkit::mirror::{Fault, Mirror};
use esker_testkit::waiting::until;

use crate::rig::{Made, PATIENCE, Rig, bytes, engine_with, noise, objects, roomy, serve, zlib};

/// So many requests to a server at once, near or far, and patience with silent ones.
fn at_most(count: usize) -> Engine {
    engine_with(|options| {
        options.http.connections_near = count;
        options.http.connections_far = count;
        options.http.first_byte = Duration::from_secs(600);
    })
}

#[test]
fn connections_are_bounded_and_reused() {
    let objects = objects(60);
    let (mirror, _folder) = serve(&objects);
    let engine = at_most(5);
    let rig = Rig::with(engine, roomy());
    let store = rig.open(&mirror.url("repo"));
    let (sender, answers) = mpsc::channel();
    for object in &objects {
        let sender = sender.clone();
        store.get(object.wanted.clone(), Callback::new(move |got| sender.send(got.map(drop)).unwrap()));
    }
    drop(sender);
    assert_eq!(answers.iter().filter(Result::is_ok).count(), 60);
    assert!(mirror.connections() <= 5, "{} connections", mirror.connections());
}

/// A server that closes idle connections is no error.
#[test]
fn a_connection_that_was_closed_meanwhile_is_replaced() {
    let objects = objects(2);
    let (mirror, folder) = serve(&objects);
    let engine = engine_with(|options| options.retry.attempts = 1);
    let rig = Rig::with(engine, roomy());
    let store = rig.open(&mirror.url("repo"));
    assert_eq!(bytes(&store, &objects[0].wanted).unwrap(), objects[0].plain);
    let port = mirror.port();
    mirror.stop();
    let mirror = Mirror::serve_at(folder.path(), port);
    mirror.put(&format!("/repo/{}", objects[1].wanted.name.path()), objects[1].stored.clone());
    assert_eq!(bytes(&store, &objects[1].wanted).unwrap(), objects[1].plain);
}

/// All prefetch connections are busy with a silent server; a demand is served all the same.
#[test]
fn a_prefetch_never_delays_a_demand() {
    let objects = objects(40);
    let (mirror, _folder) = serve(&objects);
    let demanded = format!("/repo/{}", objects[39].wanted.name.path());
    let rule = mirror.fault(move |path| path != demanded, Fault::NoAnswer);
    let engine = at_most(8);
    let rig = Rig::with(engine, roomy());
    let store = rig.open(&mirror.url("repo"));
    for object in &objects[..39] {
        store.warm(object.wanted.clone(), &CancelToken::new(), Callback::new(drop));
    }
    rule.wait_for_hits(6);
    assert_eq!(bytes(&store, &objects[39].wanted).unwrap(), objects[39].plain);
    assert_eq!(rule.hits(), 6, "a quarter of the places is for demands");
}

/// A response over a connection that became slow continues over another one, at the same byte.
#[test]
fn a_slow_response_continues_over_another_connection() {
    let objects = [900, 901].map(|seed| zlib(&noise(seed, 20_000_000)));
    let (mirror, _folder) = serve(&objects);
    let engine = engine_with(|options| {
        options.http.far = Duration::ZERO;
        options.retry.attempts = 1;
    });
    let rig = Rig::with(engine, roomy());
    let store = rig.open(&mirror.url("repo"));
    // It tells how fast the server can be.
    assert_eq!(bytes(&store, &objects[0].wanted).unwrap(), objects[0].plain);
    let path = format!("/repo/{}", objects[1].wanted.name.path());
    let slow = mirror.fault(
        {
            let path = path.clone();
            move |asked| asked == path
        },
        // Slow for a machine that is busy, too.
        Fault::Slow(100_000),
    );
    let (sender, answer) = mpsc::channel();
    store.get(objects[1].wanted.clone(), Callback::new(move |got| sender.send(got).unwrap()));
    slow.wait_for_hits(2);
    slow.lift();
    let got = answer.recv().unwrap().expect("the object");
    assert_eq!(got.read_all().unwrap(), objects[1].plain);
    let asked: Vec<_> = mirror.requests().into_iter().filter(|request| request.path == path).collect();
    assert!(asked[0].header("range").is_none());
    assert!(asked[1].header("range").is_some_and(|range| range.starts_with("bytes=") && range != "bytes=0-"));
}

/// A demand that waits for the server does not keep prefetches from coming.
#[test]
fn prefetches_continue_while_objects_are_demanded() {
    let objects = objects(40);
    let (mirror, _folder) = serve(&objects);
    let demanded = format!("/repo/{}", objects[39].wanted.name.path());
    let rule = mirror.fault(move |path| path == demanded, Fault::NoAnswer);
    let rig = Rig::with(at_most(16), roomy());
    let store = rig.open(&mirror.url("repo"));
    let (sender, answers) = mpsc::channel();
    store.get(objects[39].wanted.clone(), Callback::new(drop));
    rule.wait_for_hits(1);
    for object in &objects[..39] {
        let sender = sender.clone();
        let done = Callback::new(move |warmed| sender.send(warmed).unwrap());
        store.warm(object.wanted.clone(), &CancelToken::new(), done);
    }
    drop(sender);
    let warmed: Vec<Warmed> = answers.iter().map(Result::unwrap).collect();
    assert_eq!(warmed.len(), 39);
    assert_eq!(store.status().network.requests, 40);
    assert!(store.status().network.connections <= 16);
}

/// Before the path is measured, few objects are requested, although more requests would be allowed: new connections
/// bring little at once, so it is their number that counts and not the size of what they bring.
#[test]
fn few_prefetches_are_in_flight_at_first() {
    let objects: Vec<Made> = (0..20).map(|seed| zlib(&noise(seed, 400_000))).collect();
    let (mirror, _folder) = serve(&objects);
    let demanded = format!("/repo/{}", objects[19].wanted.name.path());
    let rule = mirror.fault(move |path| path != demanded, Fault::Delay(Duration::from_secs(600)));
    let rig = Rig::with(at_most(16), roomy());
    let store = rig.open(&mirror.url("repo"));
    let (sender, answers) = mpsc::channel();
    for object in &objects[..19] {
        let sender = sender.clone();
        let done = Callback::new(move |warmed| sender.send(warmed).unwrap());
        store.warm(object.wanted.clone(), &CancelToken::new(), done);
    }
    drop(sender);
    rule.wait_for_hits(8);
    assert_eq!(bytes(&store, &objects[19].wanted).unwrap(), objects[19].plain);
    assert_eq!(rule.hits(), 8);
    rule.lift();
    assert!(answers.iter().all(|warmed| warmed.is_ok()));
}

/// A failing server does not get the rest of the queue at once; demands are still sent.
#[test]
fn prefetches_are_held_back_from_a_server_in_trouble() {
    let objects = objects(41);
    let (mirror, _folder) = serve(&objects);
    let demanded = format!("/repo/{}", objects[40].wanted.name.path());
    let rule = mirror.fault(move |path| path != demanded, Fault::RetryAfter(20));
    let rig = Rig::with(at_most(16), roomy());
    let store = rig.open(&mirror.url("repo"));
    let (sender, answers) = mpsc::channel();
    let token = CancelToken::new();
    for object in &objects[..40] {
        let sender = sender.clone();
        let done = Callback::new(move |warmed| sender.send(warmed).unwrap());
        store.warm(object.wanted.clone(), &token, done);
    }
    assert!(answers.recv().unwrap().is_err());
    rule.assert_hit();
    assert_eq!(bytes(&store, &objects[40].wanted).unwrap(), objects[40].plain);
    assert!(rule.hits() <= 8, "{} requests went to a server that refuses them", rule.hits());
}

/// On a long way connections are opened before they are needed.
#[test]
fn connections_are_opened_ahead() {
    let objects = objects(30);
    let (mirror, _folder) = serve(&objects);
    let engine = engine_with(|options| {
        options.http.far = Duration::ZERO;
        options.http.connections_far = 12;
    });
    let rig = Rig::with(engine, roomy());
    let store = rig.open(&mirror.url("repo"));
    let connections = || store.status().network.connections;
    let wait_for = |count| {
        assert!(until(PATIENCE, || connections() >= count), "{} of {count} connections", connections());
    };
    bytes(&store, &objects[0].wanted).unwrap();
    wait_for(3);
    let rule = mirror.fault(|_| true, Fault::Delay(Duration::from_secs(600)));
    for object in &objects[1..] {
        store.warm(object.wanted.clone(), &CancelToken::new(), Callback::new(drop));
    }
    rule.wait_for_hits(8);
    wait_for(9);
    assert!(connections() <= 12);
}

/// A demand that joins a queued prefetch takes it to the front.
#[test]
fn a_demand_upgrades_the_prefetch_it_joins() {
    let objects = objects(10);
    let (mirror, _folder) = serve(&objects);
    let last = format!("/repo/{}", objects[9].wanted.name.path());
    let rule = mirror.fault(move |path| path != last, Fault::NoAnswer);
    let engine = at_most(4);
    let rig = Rig::with(engine, roomy());
    let store = rig.open(&mirror.url("repo"));
    for object in &objects {
        store.warm(object.wanted.clone(), &CancelToken::new(), Callback::new(drop));
    }
    rule.wait_for_hits(3);
    assert_eq!(bytes(&store, &objects[9].wanted).unwrap(), objects[9].plain);
    assert_eq!(store.status().traffic.joined, 1);
}

/// A thousand reads wait for a server that doesn't answer. What is cached is answered on the calling thread,
/// before the call returns; another repository is fetched from as if nothing were.
#[test]
fn a_thousand_waiting_reads_do_not_delay_others() {
    let objects = objects(1002);
    let (mirror, _folder) = serve(&objects[..1]);
    let engine = engine_with(|options| options.http.first_byte = Duration::from_secs(600));
    let rig = Rig::with(engine, roomy());
    let store = rig.open(&mirror.url("repo"));
    bytes(&store, &objects[0].wanted).unwrap();
    let rule = mirror.fault(|_| true, Fault::NoAnswer);
    for object in &objects[1..1001] {
        store.get(object.wanted.clone(), Callback::new(drop));
    }
    rule.wait_for_hits(16);
    assert!(store.cached(&objects[0].wanted).is_some());
    let (sender, answer) = mpsc::channel();
    store.get(objects[0].wanted.clone(), Callback::new(move |got| sender.send(got.map(drop)).unwrap()));
    answer.try_recv().expect("answered before the call returned").unwrap();
    let other = rig.store(crate::rig::Shelf::new(&[&objects[1001]]));
    assert_eq!(bytes(&other, &objects[1001].wanted).unwrap(), objects[1001].plain);
}

#[test]
fn an_unknown_name_is_an_error() {
    let engine = engine_with(|options| options.retry.attempts = 1);
    let rig = Rig::with(engine, roomy());
    // Reserved never to exist (RFC 6761); with or without a name server this can't be resolved.
    let store = rig.open("http://esker.invalid/repo");
    let error = bytes(&store, &objects(1)[0].wanted).unwrap_err();
    let expected = matches!(error.cause(), Cause::Unresolved { .. } | Cause::TimedOut { .. });
    assert!(expected, "{error}");
    assert!(error.to_string().contains("esker.invalid"), "{error}");
}

/// Names in `/etc/hosts` are known without a name server.
#[test]
fn localhost_is_known() {
    let objects = objects(1);
    let (mirror, _folder) = serve(&objects);
    let rig = Rig::new();
    let store = rig.open(&format!("http://localhost:{}/repo", mirror.port()));
    assert_eq!(bytes(&store, &objects[0].wanted).unwrap(), objects[0].plain);
}

#[test]
fn requests_in_flight_are_answered_when_everything_is_dropped() {
    let objects = objects(3);
    let (mirror, _folder) = serve(&objects);
    let rule = mirror.fault(|_| true, Fault::NoAnswer);
    let rig = Rig::new();
    let store = rig.open(&mirror.url("repo"));
    let (sender, answers) = mpsc::channel();
    for object in &objects {
        let sender = sender.clone();
        store.get(object.wanted.clone(), Callback::new(move |got| sender.send(got.is_err()).unwrap()));
    }
    rule.wait_for_hits(3);
    drop((store, rig, sender));
    assert_eq!(answers.iter().filter(|failed| *failed).count(), 3);
}
