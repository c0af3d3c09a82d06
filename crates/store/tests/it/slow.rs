//! Slow links, servers that send slowly or withhold objects, and users of one server.
//!
//! All clocks are short, so that a transfer of seconds takes longer than each of them.

use std::collections::HashSet;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use esker_format::object::ObjectKind;
use esker_store::{
    Callback, Engine, ObjectRequest, ObjectStore, Objects, Proxies, Requester, Servers, StoreError, connect,
};
use esker_testkit::mirror::{Fault, Mirror, Rule};
use esker_testkit::soak::Soak;

use crate::rig::{Made, Rig, as_is, bytes, engine_with, noise, roomy, serve};

/// The deadline of all clocks, and of readers.
const DEADLINE: Duration = Duration::from_secs(1);

fn engine() -> Engine {
    engine_that_stalls_after(DEADLINE)
}

/// An engine that takes requests for stalled after so long.
fn engine_that_stalls_after(stall: Duration) -> Engine {
    engine_with(|options| {
        options.http.first_byte = DEADLINE;
        options.http.low_speed_window = DEADLINE;
        options.http.attempt = DEADLINE;
        options.http.attempt_speed = u64::MAX;
        options.http.stall = stall;
        options.retry.total = DEADLINE * 4;
    })
}

/// Objects of these sizes, each another one.
fn sized(seed: u64, count: u64, len: usize) -> Vec<Made> {
    (seed..seed + count).map(|seed| as_is(&noise(seed, len))).collect()
}

/// What came of a reader with a deadline, which counts from the last progress.
#[derive(Debug)]
enum Outcome {
    Read,
    Failed(StoreError),
    Late,
}

/// Reads all of them at once, each with a deadline; returns what came of each.
fn read_all(store: &Objects, user: u32, objects: &[Made]) -> Vec<Outcome> {
    let readers: Vec<_> = objects
        .iter()
        .map(|object| {
            let requester = Requester { user: Some(user), ..Requester::default() };
            let (told, answer) = mpsc::channel();
            store.get(
                object.wanted.clone().for_requester(requester.clone()),
                Callback::new(move |got| {
                    // A reader that was late has gone.
                    let _ = told.send(got);
                }),
            );
            (requester, answer, Instant::now())
        })
        .collect();
    thread::scope(|scope| {
        let waits: Vec<_> = readers
            .into_iter()
            .map(|(requester, answer, since)| {
                scope.spawn(move || {
                    loop {
                        match answer.recv_timeout(DEADLINE / 10) {
                            Ok(Ok(_)) => return Outcome::Read,
                            Ok(Err(error)) => return Outcome::Failed(error),
                            Err(RecvTimeoutError::Timeout) => {
                                let last = requester.progress.last().map_or(since, |last| last.max(since));
                                // Twice: the machine of a test stands still at times.
                                if last.elapsed() > DEADLINE * 2 {
                                    return Outcome::Late;
                                }
                            }
                            Err(RecvTimeoutError::Disconnected) => panic!("dropped"),
                        }
                    }
                })
            })
            .collect();
        waits.into_iter().map(|wait| wait.join().unwrap()).collect()
    })
}

#[track_caller]
fn all_read(outcomes: &[Outcome]) {
    let failed = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Read => None,
        Outcome::Failed(error) => Some(error.full_text()),
        Outcome::Late => Some("nothing arrived for the deadline".to_owned()),
    });
    let failed: Vec<String> = failed.collect();
    assert!(failed.is_empty(), "{} of {} failed: {}", failed.len(), outcomes.len(), failed[0]);
}

/// > P12: While bytes of the object that a request waits for keep arriving, or bytes of the queue that it stands in, the request does not fail, however long it takes.
#[test]
fn an_object_may_take_longer_than_all_deadlines() {
    let object = sized(1, 1, 4 << 20);
    let (mirror, _folder) = serve(&object);
    mirror.narrow(1 << 20);
    let rig = Rig::with(engine(), roomy());
    let store = rig.open(&mirror.url("repo"));
    let since = Instant::now();
    all_read(&read_all(&store, 1, &object));
    assert!(since.elapsed() > DEADLINE * 3, "it was slow: {:?}", since.elapsed());
}

#[test]
fn many_readers_of_a_slow_link_are_all_served() {
    let objects = sized(100, 64, 64 << 10);
    let (mirror, _folder) = serve(&objects);
    mirror.narrow(1 << 20);
    let rig = Rig::with(engine(), roomy());
    let store = rig.open(&mirror.url("repo"));
    let since = Instant::now();
    all_read(&read_all(&store, 1, &objects));
    assert!(since.elapsed() > DEADLINE * 3, "it was slow: {:?}", since.elapsed());
}

/// What was sent waits in the queue of a server that answers one request after the other.
#[test]
fn readers_of_a_server_that_answers_one_after_the_other_are_all_served() {
    // A request that later ones overtake has a second, eight objects here: a busy server starts on requests that come
    // together in another order than they were sent in.
    let objects = sized(200, 40, 128 << 10);
    let (mirror, _folder) = serve(&objects);
    mirror.narrow(1 << 20);
    mirror.one_at_a_time();
    // A machine that stands still for a moment is no server that sends nothing.
    let rig = Rig::with(engine_that_stalls_after(DEADLINE * 10), roomy());
    let store = rig.open(&mirror.url("repo"));
    let since = Instant::now();
    all_read(&read_all(&store, 1, &objects));
    assert!(since.elapsed() > DEADLINE * 4, "it was slow: {:?}", since.elapsed());
}

/// > P13: A server that sends an object slower than the low-speed limit (1 KiB a second, or what `CVMFS_LOW_SPEED_LIMIT` says) makes no progress: it is left for another way after ten seconds, or the time-out of its kind, and fails a read that has no other at its deadline.
#[test]
fn another_server_replaces_a_trickling_one() {
    let objects = sized(300, 1, 64 << 10);
    let ((hostile, _one), (good, _two)) = (serve(&objects), serve(&objects));
    let trickle = hostile.fault(|_| true, Fault::Slow(10));
    let rig = Rig::with(engine(), roomy());
    let servers = Servers { urls: vec![hostile.url("repo"), good.url("repo")], ..Servers::direct("") };
    let store = rig.store(connect(&rig.engine, servers).unwrap());
    let since = Instant::now();
    all_read(&read_all(&store, 1, &objects));
    trickle.assert_hit();
    assert!(since.elapsed() < DEADLINE * 4, "it took {:?}", since.elapsed());
    // Where there is no other way a trickle is no progress.
    let alone = Rig::with(engine(), roomy());
    let store = alone.open(&hostile.url("repo"));
    let since = Instant::now();
    let outcomes = read_all(&store, 1, &objects);
    assert!(!matches!(outcomes[0], Outcome::Read), "{outcomes:?}");
    assert!(since.elapsed() < DEADLINE * 20, "it took {:?}", since.elapsed());
}

/// An engine that takes an object of 1 MiB for late after half a second.
fn engine_that_hedges() -> Engine {
    engine_with(|options| {
        options.http.hedge = DEADLINE / 4;
        options.http.hedge_speed = 4 << 20;
    })
}

/// Returns objects of 1 MiB in the forms that reads have: content of known size, a chunk, and a catalog of unknown size.
fn of_all_forms(seed: u64) -> Vec<Made> {
    let forms = [(ObjectKind::File, true), (ObjectKind::Chunk, true), (ObjectKind::Catalog, false)];
    let made = sized(seed, forms.len() as u64, 1 << 20).into_iter().zip(forms);
    made.map(|(mut object, (kind, is_sized))| {
        object.wanted.name.kind = kind;
        object.wanted.size = object.wanted.size.filter(|_| is_sized);
        object
    })
    .collect()
}

/// A hostile or broken way: the fault of its server, and whether the bytes are wrong.
const HOSTILE: [(Fault, bool); 3] =
    [(Fault::Slow(64 << 10), false), (Fault::Slow(64 << 10), true), (Fault::SlowCut(64 << 10), false)];

/// Serves objects as a hostile way does.
fn serve_hostile(objects: &[Made], fault: &Fault, is_wrong: bool) -> (Mirror, tempfile::TempDir, Rule) {
    let (mirror, folder) = serve(objects);
    for object in objects.iter().filter(|_| is_wrong) {
        let wrong: Vec<u8> = object.stored.iter().map(|byte| !byte).collect();
        mirror.put(&format!("/repo/{}", object.wanted.name.path()), wrong);
    }
    let rule = mirror.fault(|_| true, fault.clone());
    (mirror, folder, rule)
}

/// > W9: While another way is good, a way that delivers an object slowly, wrong or never whole delays a read of it by ten seconds and one for each MiB, and once it was slower than another way it is used last for a while.
#[test]
fn a_hostile_server_does_not_hold_reads_that_another_would_answer() {
    for (number, (fault, is_wrong)) in (0..).zip(&HOSTILE) {
        let objects = of_all_forms(400 + 10 * number);
        let (hostile, _one, rule) = serve_hostile(&objects, fault, *is_wrong);
        let (good, _two) = serve(&objects);
        let rig = Rig::with(engine_that_hedges(), roomy());
        let servers = Servers { urls: vec![hostile.url("repo"), good.url("repo")], ..Servers::direct("") };
        let store = rig.store(connect(&rig.engine, servers).unwrap());
        let since = Instant::now();
        for object in &objects {
            assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain);
        }
        rule.assert_hit();
        // The hostile one needs 16 seconds for each.
        assert!(since.elapsed() < DEADLINE * 8, "{fault:?}, {is_wrong}: {:?}", since.elapsed());
        assert!(rule.hits() < 3, "{fault:?}, {is_wrong}: it is used first again, {} times", rule.hits());
    }
}

#[test]
fn a_hostile_proxy_does_not_hold_reads_that_another_would_answer() {
    for (number, (fault, is_wrong)) in (0..).zip(&HOSTILE) {
        for groups in ["HOSTILE|GOOD", "HOSTILE;GOOD", "HOSTILE;DIRECT"] {
            let objects = of_all_forms(500 + 10 * number);
            let (hostile, _one, rule) = serve_hostile(&objects, fault, *is_wrong);
            let (good, _two) = serve(&objects);
            let at = |mirror: &Mirror| format!("http://127.0.0.1:{}", mirror.port());
            let groups = groups.replace("HOSTILE", &at(&hostile)).replace("GOOD", &at(&good));
            let rig = Rig::with(engine_that_hedges(), roomy());
            let servers = Servers {
                proxies: Proxies::parse(&groups, None).unwrap(),
                ..Servers::direct(good.url("repo"))
            };
            let store = rig.store(connect(&rig.engine, servers).unwrap());
            let since = Instant::now();
            for object in &objects {
                assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain);
            }
            assert!(since.elapsed() < DEADLINE * 8, "{groups}, {fault:?}, {is_wrong}: {:?}", since.elapsed());
            if groups.contains(';') {
                rule.assert_hit();
            }
        }
    }
}

/// Also one that ends again and again just before the last byte.
#[test]
fn the_attempts_of_a_request_are_bounded_together() {
    let objects = sized(600, 1, 64 << 10);
    let (mirror, _folder) = serve(&objects);
    // Each attempt takes a second, and each round has four.
    let rule = mirror.fault(|_| true, Fault::SlowCut(64 << 10));
    let rig = Rig::with(
        engine_with(|options| {
            (options.retry.total, options.http.attempt) = (DEADLINE * 2, DEADLINE);
            (options.retry.attempts, options.http.attempt_speed) = (100, u64::MAX);
        }),
        roomy(),
    );
    let mut servers = Servers { urls: vec![mirror.url("repo"), mirror.url("repo")], ..Servers::direct("") };
    servers.timings.retries = 100;
    let store = rig.store(connect(&rig.engine, servers).unwrap());
    let since = Instant::now();
    bytes(&store, &objects[0].wanted).unwrap_err();
    assert!(rule.hits() > 1, "it is tried again");
    assert!(since.elapsed() < DEADLINE * 8, "it took {:?}", since.elapsed());
}

/// A slow line that all ways share is no reason to send everything twice.
#[test]
fn a_narrow_line_is_not_hedged() {
    let objects = sized(700, 16, 512 << 10);
    let (mirror, _folder) = serve(&objects);
    // Three times as fast as demanded for the sum of all, and too slow for each alone.
    mirror.narrow(3 << 20);
    let engine =
        engine_with(|options| (options.http.hedge, options.http.hedge_speed) = (DEADLINE / 4, 1 << 20));
    let rig = Rig::with(engine, roomy());
    let servers = Servers { urls: vec![mirror.url("repo"), mirror.url("repo")], ..Servers::direct("") };
    let store = rig.store(connect(&rig.engine, servers).unwrap());
    all_read(&read_all(&store, 1, &objects));
    let sent = mirror.requests().len();
    assert!(sent <= objects.len() + 1, "{sent} requests for {} objects", objects.len());
}

/// > P15: Objects that a server withholds keep no request from the other objects of that server.
#[test]
fn withheld_objects_do_not_delay_others() {
    let (bad, good) = (sized(1000, 600, 100), sized(2000, 4, 1000));
    let (mirror, _folder) = serve(&[bad.clone(), good.clone()].concat());
    let names: Vec<String> = good.iter().map(|object| object.wanted.name.path()).collect();
    let rule =
        mirror.fault(move |path| !names.iter().any(|name| path.ends_with(name.as_str())), Fault::NoAnswer);
    // As in a mount, a request stalls well before it times out: a retry after a time-out is the newest in the queue.
    let rig = Rig::with(engine_that_stalls_after(DEADLINE / 10), roomy());
    let store = rig.open(&mirror.url("repo"));
    let ask = |object: &Made| store.get(object.wanted.clone(), Callback::new(drop));
    bad.iter().for_each(ask);
    rule.wait_for_hits(16);
    for object in &good {
        let since = Instant::now();
        let got = bytes(&store, &object.wanted).unwrap();
        assert_eq!(got, object.plain);
        assert!(since.elapsed() < DEADLINE * 5, "it took {:?}", since.elapsed());
    }
}

/// Another server that sends the objects gets the request.
#[test]
fn an_object_one_server_withholds_comes_from_another() {
    let objects = sized(8000, 300, 100);
    let ((hostile, _one), (good, _two)) = (serve(&objects), serve(&objects));
    let silent = hostile.fault(|_| true, Fault::NoAnswer);
    let rig = Rig::with(engine(), roomy());
    let mut servers = Servers { urls: vec![hostile.url("repo"), good.url("repo")], ..Servers::direct("") };
    // As in a mount, a server is given up well before a reader's deadline: nothing else takes back the last requests.
    servers.timings.direct = Some(DEADLINE / 3);
    let store = rig.store(connect(&rig.engine, servers).unwrap());
    all_read(&read_all(&store, 1, &objects));
    silent.assert_hit();
}

/// Reads one after the other.
fn reads_in_turn(store: &Objects, user: u32, objects: &[Made]) -> Duration {
    let since = Instant::now();
    for object in objects {
        let requester = Requester { user: Some(user), ..Requester::default() };
        let wanted: ObjectRequest = object.wanted.clone().for_requester(requester);
        Callback::wait(|done| store.get(wanted, done)).unwrap();
    }
    since.elapsed()
}

fn flooded(mirror: &Mirror, rig: &Rig, flood: &[Made]) -> Objects {
    let store = rig.open(&mirror.url("repo"));
    for object in flood {
        let requester = Requester { user: Some(1), ..Requester::default() };
        store.get(object.wanted.clone().for_requester(requester), Callback::new(drop));
    }
    store
}

/// > P14: However many reads of one user wait for a server, another user's reads of objects that the server sends end within twice the time they take alone and the time that one object of the first takes among the others.
#[test]
fn one_users_many_reads_do_not_delay_another_users_small_reads() {
    const SPEED: u64 = 2 << 20;
    const LARGE: usize = 128 << 10;
    let (small, flood) = (sized(3000, 40, 64 << 10), sized(4000, 420, LARGE));
    let (mirror, _folder) = serve(&[small.clone(), flood.clone()].concat());
    mirror.narrow(SPEED);
    // The first user has at most 16 of them under way.
    let one_object = Duration::from_secs_f64((16 * LARGE) as f64 / SPEED as f64);
    let in_time = || {
        // The engine's own clocks, so that no read fails because the machine stands still for a moment.
        let rig = || Rig::with(engine_with(|_| {}), roomy());
        let alone = {
            let rig = rig();
            reads_in_turn(&rig.open(&mirror.url("repo")), 2, &small)
        };
        let rig = rig();
        let before = mirror.requests().len();
        let store = flooded(&mirror, &rig, &flood);
        mirror.wait_for(before + 16, |_| true);
        let beside = reads_in_turn(&store, 2, &small);
        println!("{beside:?} beside a flood, {alone:?} alone");
        // A machine that is busy needs more; a queue of all of them would take 26 seconds, and equal parts of the link 21.
        beside <= alone * 2 + one_object + DEADLINE * 4
    };
    // Once is enough, for a machine may do something else meanwhile; a read that waits for the flood would do so each time.
    assert!((0..3).any(|_| in_time()), "another user's flood delayed small reads");
}

/// The same where the objects of the flood never come.
#[test]
fn one_users_reads_of_withheld_objects_do_not_delay_another_user() {
    let (small, flood) = (sized(5000, 8, 1000), sized(6000, 420, 1000));
    let (mirror, _folder) = serve(&[small.clone(), flood.clone()].concat());
    let names: Vec<String> = small.iter().map(|object| object.wanted.name.path()).collect();
    let rule =
        mirror.fault(move |path| !names.iter().any(|name| path.ends_with(name.as_str())), Fault::NoAnswer);
    let rig = Rig::with(engine(), roomy());
    let store = flooded(&mirror, &rig, &flood);
    rule.wait_for_hits(16);
    let took = reads_in_turn(&store, 2, &small);
    assert!(took < DEADLINE * 3, "{took:?}");
}

/// An object of a flood that another user waits for, too, has that user's share.
#[test]
fn an_object_of_a_long_queue_is_advanced_for_another_user() {
    let flood = sized(7000, 200, 128 << 10);
    let (mirror, _folder) = serve(&flood);
    mirror.narrow(4 << 20);
    let rig = Rig::with(engine(), roomy());
    let store = flooded(&mirror, &rig, &flood);
    mirror.wait_for(16, |_| true);
    // In the order of the flood it would come after six seconds.
    let took = reads_in_turn(&store, 2, &flood[199..]);
    assert!(took < DEADLINE * 2, "{took:?}");
}

/// One user requests withheld and large objects on a slow link: all reads of another user succeed.
#[test]
fn soak_honest_reads_beside_a_hostile_user_on_a_slow_link() {
    let mut soak = Soak::begin("soak_honest_reads_beside_a_hostile_user_on_a_slow_link");
    let folder = tempfile::tempdir().unwrap();
    let mirror = Mirror::serve(folder.path());
    mirror.narrow(4 << 20);
    let sent: Arc<Mutex<HashSet<String>>> = Arc::default();
    let known = sent.clone();
    let withheld = mirror.fault(move |path| !known.lock().unwrap().contains(path), Fault::NoAnswer);
    let rig = Rig::with(engine(), roomy());
    let store = rig.open(&mirror.url("repo"));
    let put = |objects: &[Made]| {
        for object in objects {
            let path = format!("/repo/{}", object.wanted.name.path());
            mirror.put(&path, object.stored.clone());
            sent.lock().unwrap().insert(path);
        }
    };
    let mut seed = 100_000;
    let mut reads = 0;
    while soak.goes_on() {
        let (never, large) = (sized(seed, 50, 100), sized(seed + 50, 2, 256 << 10));
        let honest = sized(seed + 60, 8, 32 << 10);
        seed += 100;
        [&large, &honest].into_iter().for_each(|objects| put(objects));
        for object in never.iter().chain(&large) {
            let requester = Requester { user: Some(1), ..Requester::default() };
            store.get(object.wanted.clone().for_requester(requester), Callback::new(drop));
        }
        all_read(&read_all(&store, 2, &honest));
        reads += honest.len();
    }
    withheld.assert_hit();
    soak.finish(&[("honest reads", &reads), ("withheld", &withheld.hits())]);
}
