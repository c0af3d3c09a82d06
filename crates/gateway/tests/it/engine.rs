//! Leases, payloads and commits of a gateway, without HTTP.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use esker_format::object::ObjectKind;
use esker_gateway::{
    Candidate, GatewayError, IntakeError, KeyLimits, Millis, PublishFailure, Refused, Request, Signer,
    Target as _, Token, wire,
};
use esker_testkit::waiting::until;

use crate::http::PATIENCE;
use crate::publisher::{LIFE, Station, acquire, object, pack, payload, request, root};
use crate::target::Outcome;

fn invalid(error: &GatewayError) -> bool {
    matches!(error, GatewayError::Lease(Refused::OtherKey | Refused::Unknown))
}

#[test]
fn objects_are_stored_once_their_hashes_are_right() {
    let station = Station::new();
    station.r.make_folders();
    let (one, token) = (station.signer("one"), station.lease("one", "r.test/a"));
    let objects = [
        object(b"first", ObjectKind::File),
        object(b"", ObjectKind::File),
        object(b"c", ObjectKind::Catalog),
    ];
    let (payload, body) = pack(&objects);
    let stored = station.gateway.submit(&one, &token, &payload, &mut &*body).unwrap();
    assert_eq!((stored.objects, stored.bytes, stored.catalogs), (3, 6, vec![objects[2].0.hash]));
    for (name, bytes) in &objects {
        assert_eq!(station.r.sink().read(&name.path(), 100).unwrap().as_ref(), Some(bytes));
    }
    let absent = object(b"absent", ObjectKind::File).0;
    let names = [objects[0].0, absent];
    assert_eq!(station.gateway.missing(&one, &token, &names).unwrap(), [absent]);
}

#[test]
fn damaged_payloads_are_refused_and_store_nothing_wrong() {
    let station = Station::new();
    station.r.make_folders();
    let (one, token) = (station.signer("one"), station.lease("one", "r.test/a"));
    let right = object(b"right", ObjectKind::File);
    let wrong = (object(b"promised", ObjectKind::File).0, b"delivered".to_vec());
    let submit =
        |payload, body: &[u8]| station.gateway.submit(&one, &token, &payload, &mut &*body).unwrap_err();
    let (described, body) = pack(std::slice::from_ref(&wrong));
    let error = submit(described, &body);
    assert!(
        matches!(error, GatewayError::Intake(IntakeError::WrongHash(name)) if name == wrong.0),
        "{error}"
    );
    let (described, body) = pack(std::slice::from_ref(&right));
    for cut in [0, 5, body.len() - 1] {
        let error = submit(described.clone(), &body[..cut]);
        assert!(matches!(error, GatewayError::Intake(IntakeError::Truncated { .. })), "{cut}: {error}");
    }
    let error = submit(described.clone(), &[&*body, b"x"].concat());
    assert!(matches!(error, GatewayError::Intake(IntakeError::Trailing)), "{error}");
    let error = submit(payload(&described.payload_digest, usize::MAX), &body);
    assert!(matches!(error, GatewayError::Intake(IntakeError::LongHeader(_))), "{error}");
    let error = submit(payload("0000", 5), &body);
    assert!(matches!(error, GatewayError::Intake(IntakeError::Header(_))), "{error}");
    assert_eq!(station.r.sink().len_of(&wrong.0).unwrap(), None);
}

#[test]
fn a_lease_serves_its_key_only() {
    let station = Station::new();
    let (two, token) = (station.signer("two"), station.lease("one", "r.test/b"));
    let (payload, body) = pack(&[object(b"x", ObjectKind::File)]);
    let gateway = &station.gateway;
    assert!(invalid(&gateway.submit(&two, &token, &payload, &mut &*body).unwrap_err()));
    assert!(invalid(&gateway.missing(&two, &token, &[]).unwrap_err()));
    assert!(invalid(&gateway.renew(&two, &token, None).unwrap_err()));
    assert!(invalid(&gateway.give_up(&two, &token).unwrap_err()));
    assert!(invalid(&gateway.commit(&two, &token, &request(1)).unwrap_err()));
    assert!(invalid(&gateway.give_up(&two, &Token::named("other")).unwrap_err()));
    assert_eq!(station.r.head(), []);
    assert_eq!(gateway.lease(&token).unwrap().key, "one");
}

#[test]
fn limits_of_a_key_are_kept() {
    let limits = KeyLimits { leases: Some(1), lease_bytes: Some(8), lease_seconds: Some(60), requests: None };
    let station = Station::limited(limits);
    station.r.make_folders();
    let (one, token) = (station.signer("one"), station.lease("one", "r.test/a"));
    let refused = station.gateway.acquire(&one, &acquire("r.test/b")).unwrap_err();
    assert!(matches!(refused, GatewayError::TooManyLeases(1)), "{refused}");
    let submit = |text: &[u8]| {
        let (payload, body) = pack(&[object(text, ObjectKind::File)]);
        station.gateway.submit(&one, &token, &payload, &mut &*body)
    };
    submit(b"12345").unwrap();
    let refused = submit(b"1234").unwrap_err();
    assert!(matches!(refused, GatewayError::Intake(IntakeError::Quota { left: 3, bytes: 4 })), "{refused}");
    submit(b"123").unwrap();
    let left = station.gateway.lease(&token).unwrap().expires.0 - station.gateway.now().0;
    assert!(left <= 60_000, "{left}");
    // Neither what a lease has sent nor what an operator said is forgotten.
    let repository = &station.gateway.keys().repositories()[0].clone();
    station.gateway.set_enabled(repository, false).unwrap();
    let station = station.restart();
    let (payload, body) = pack(&[object(b"1", ObjectKind::File)]);
    let refused = station.gateway.submit(&one, &token, &payload, &mut &*body).unwrap_err();
    assert!(matches!(refused, GatewayError::Intake(IntakeError::Quota { left: 0, bytes: 1 })), "{refused}");
    let disabled = station.gateway.acquire(&station.signer("two"), &acquire("r.test/b")).unwrap_err();
    assert!(matches!(disabled, GatewayError::Disabled), "{disabled}");
    station.gateway.set_enabled(repository, true).unwrap();
    assert!(!station.restart().gateway.is_disabled(repository));
}

#[test]
fn a_publisher_takes_over_the_leases_of_its_key_only() {
    let station = Station::limited(KeyLimits { leases: Some(1), ..KeyLimits::default() });
    let (one, two) = (station.signer("one"), station.signer("two"));
    let dead = station.lease("one", "r.test/b/c");
    let again = |signer: &Signer, named: &[&Token]| {
        let named = named.iter().map(|token| token.short().to_owned()).collect();
        let request = wire::Acquire { take_over: Some(named), ..acquire("r.test/b") };
        station.gateway.acquire(signer, &request)
    };
    let refused = again(&two, &[&dead]).unwrap_err();
    assert!(matches!(refused, GatewayError::Lease(Refused::Busy { .. })), "{refused}");
    let refused = again(&one, &[]).unwrap_err();
    let own = vec![dead.short().to_owned()];
    assert!(matches!(&refused, GatewayError::Lease(Refused::Own(leases)) if *leases == own), "{refused}");
    let (token, _) = again(&one, &[&dead]).unwrap();
    let log = station.gateway.records(2).unwrap();
    let events: Vec<_> = log.iter().map(|record| (&*record.event, &*record.lease)).collect();
    assert_eq!(events, [("acquired", token.short()), ("taken over", dead.short())]);
    // A request that a publisher sent before it was killed arrives late.
    for late in [&[][..], &[&dead]] {
        let refused = again(&one, late).unwrap_err();
        assert!(matches!(refused, GatewayError::Lease(Refused::Own(_))), "{refused}");
    }
    let refused = station.gateway.commit(&one, &dead, &request(1)).unwrap_err();
    assert!(matches!(refused, GatewayError::Lease(Refused::Unknown)), "{refused}");
    assert_eq!(station.gateway.commit(&one, &token, &request(2)).unwrap().revision, 2);
}

#[test]
fn a_commit_is_answered_again_and_published_once() {
    let station = Station::new();
    let (one, token) = (station.signer("one"), station.lease("one", "r.test/a"));
    assert_eq!(station.gateway.commit(&one, &token, &request(1)).unwrap().revision, 2);
    let station = station.restart();
    assert_eq!(station.gateway.commit(&one, &token, &request(1)).unwrap().revision, 2);
    let refused = station.gateway.commit(&one, &token, &request(2)).unwrap_err();
    assert!(matches!(refused, GatewayError::Lease(Refused::Ended)), "{refused}");
    assert_eq!(station.r.head(), [Candidate { root: root(1).to_string(), revision: 2 }]);
    assert!(station.gateway.leases().is_empty());
    let events: Vec<_> =
        station.gateway.records(10).unwrap().into_iter().map(|record| record.event).collect();
    assert_eq!(events, ["published", "head to be replaced", "commit began", "acquired"]);
}

#[test]
fn a_conflict_names_paths_and_leaves_the_lease() {
    let station = Station::new();
    let (one, token) = (station.signer("one"), station.lease("one", "r.test/a"));
    station.r.conflict(&["/a/x", "/a/y"]);
    let error = station.gateway.commit(&one, &token, &request(1)).unwrap_err();
    assert_eq!(error.to_string(), "merge_error: other publishers changed /a/x, /a/y");
    assert_eq!(station.gateway.commit(&one, &token, &request(2)).unwrap().revision, 2);
}

/// A storage may lose the answer of a request that it carried out.
#[test]
fn the_head_decides_how_a_commit_ended() {
    let station = Station::new();
    let (one, token) = (station.signer("one"), station.lease("one", "r.test/a"));
    station.r.on_head(|| Outcome::Failed);
    let error = station.gateway.commit(&one, &token, &request(1)).unwrap_err();
    assert!(matches!(error, GatewayError::Publish(PublishFailure::Failed(_))), "{error}");
    station.r.on_head(|| Outcome::ReplacedAndFailed);
    assert_eq!(station.gateway.commit(&one, &token, &request(1)).unwrap().revision, 2);
    assert_eq!(station.r.head().len(), 1);
}

#[test]
fn an_interrupted_commit_is_found_out_after_a_restart() {
    for is_replaced in [true, false] {
        let station = Station::new();
        let (one, token) = (station.signer("one"), station.lease("one", "r.test/a"));
        let outcome = if is_replaced { Outcome::ReplacedAndFailed } else { Outcome::Failed };
        station.r.on_head(move || outcome);
        station.r.set_away(true);
        station.gateway.commit(&one, &token, &request(1)).unwrap_err();
        // Neither a restart nor another publisher changes what is not known.
        let station = station.restart();
        let busy = station.gateway.acquire(&one, &acquire("r.test/")).unwrap_err();
        assert!(matches!(busy, GatewayError::Lease(Refused::Busy { .. })), "{busy}");
        station.gateway.give_up(&one, &token).unwrap_err();
        station.r.set_away(false);
        let station = station.restart();
        assert_eq!(station.gateway.leases().is_empty(), is_replaced);
        assert_eq!(station.gateway.commit(&one, &token, &request(1)).unwrap().revision, 2);
        assert_eq!(station.r.head().len(), 1);
    }
}

/// Holds the next commit up when it replaces the head; returns a notification of that, and the sender that lets it go on.
fn held_commit(station: &Station) -> (Receiver<()>, Sender<()>) {
    let (reached, is_reached) = channel();
    let (go_on, may_go_on) = channel::<()>();
    station.r.on_head(move || {
        reached.send(()).unwrap();
        may_go_on.recv().unwrap();
        Outcome::Replaced
    });
    (is_reached, go_on)
}

#[test]
fn commits_of_several_repositories_run_side_by_side_and_leases_go_on() {
    let station = Station::new();
    let one = station.signer("one");
    let tokens = ["r.test/a", "r.test/b", "s.test/"].map(|path| station.lease("one", path));
    let (is_reached, go_on) = held_commit(&station);
    thread::scope(|scope| {
        let first = scope.spawn(|| station.gateway.commit(&one, &tokens[0], &request(1)).unwrap().revision);
        is_reached.recv().unwrap();
        // The first commit stands in the middle of the head's replacement.
        let again = station.gateway.commit(&one, &tokens[0], &request(1)).unwrap_err();
        assert!(matches!(again, GatewayError::UnderWay), "{again}");
        assert!(station.gateway.give_up(&one, &tokens[0]).is_err());
        assert_eq!(station.gateway.commit(&one, &tokens[2], &request(3)).unwrap().revision, 2);
        assert_eq!(station.gateway.leases().len(), 2);
        station.lease("one", "r.test/c");
        let second = scope.spawn(|| station.gateway.commit(&one, &tokens[1], &request(2)).unwrap().revision);
        go_on.send(()).unwrap();
        assert_eq!((first.join().unwrap(), second.join().unwrap()), (2, 3));
    });
}

/// Requests that wait for a commit are carried out by the next one, but for those with a tag.
#[test]
fn waiting_commits_become_one_revision() {
    let station = Station::new();
    let one = station.signer("one");
    let tokens = ["r.test/a", "r.test/b", "r.test/c", "r.test/d"].map(|path| station.lease("one", path));
    let (is_reached, go_on) = held_commit(&station);
    let commit = |number: u8| {
        let tag = if number == 4 { "v1".to_owned() } else { String::new() };
        let request = Request { tag, ..request(number) };
        station.gateway.commit(&one, &tokens[usize::from(number) - 1], &request).unwrap().revision
    };
    let revisions = thread::scope(|scope| {
        let first = scope.spawn(|| commit(1));
        is_reached.recv().unwrap();
        let waiting = [2, 3, 4].map(|number| scope.spawn(move || commit(number)));
        assert!(until(PATIENCE, || station.gateway.waiting_commits() == 3));
        go_on.send(()).unwrap();
        let mut revisions = vec![first.join().unwrap()];
        revisions.extend(waiting.map(|commit| commit.join().unwrap()));
        revisions
    });
    assert_eq!(revisions[0], 2);
    assert_eq!(revisions[1], revisions[2], "{revisions:?}");
    assert_ne!(revisions[1], revisions[3], "{revisions:?}");
    assert_eq!(station.r.head().len(), 3);
    let records = station.gateway.records(100).unwrap();
    let of = |event: &str| records.iter().filter(|record| record.event == event).count();
    assert_eq!((of("head to be replaced"), of("published")), (4, 4), "each of them is in the log");
}

/// A restart asks the storage once for the candidate of a joint commit, so many leases don't hold it up.
#[test]
fn a_restart_looks_for_a_joint_commit_once() {
    let station = Station::new();
    let one = station.signer("one");
    let tokens = ["r.test/a", "r.test/b", "r.test/c"].map(|path| station.lease("one", path));
    let (is_reached, go_on) = held_commit(&station);
    let commit = |station: &Station, number: u8| {
        let token = &tokens[usize::from(number) - 1];
        station.gateway.commit(&one, token, &request(number)).map(|published| published.revision)
    };
    thread::scope(|scope| {
        let first = scope.spawn(|| commit(&station, 1));
        is_reached.recv().unwrap();
        let waiting = [2, 3].map(|number| {
            scope.spawn({
                let station = &station;
                move || commit(station, number)
            })
        });
        assert!(until(PATIENCE, || station.gateway.waiting_commits() == 2));
        station.r.on_head(|| Outcome::ReplacedAndFailed);
        station.r.set_away(true);
        go_on.send(()).unwrap();
        assert_eq!(first.join().unwrap().unwrap(), 2);
        assert!(waiting.into_iter().all(|commit| commit.join().unwrap().is_err()));
    });
    station.r.set_away(false);
    let asked = station.r.asked();
    let station = station.restart();
    assert_eq!(station.r.asked() - asked, 1);
    assert!(station.gateway.leases().is_empty());
    assert_eq!([2, 3].map(|number| commit(&station, number).unwrap()), [3, 3]);
}

#[test]
fn an_expired_lease_serves_nobody_and_frees_its_directory() {
    let station = Station::new();
    let (one, token) = (station.signer("one"), station.lease("one", "r.test/b"));
    station.pass(LIFE - 1);
    station.gateway.renew(&one, &token, Some(2)).unwrap();
    station.pass(1);
    assert!(station.gateway.missing(&one, &token, &[]).is_ok());
    station.pass(1999);
    let (payload, body) = pack(&[object(b"x", ObjectKind::File)]);
    assert!(invalid(&station.gateway.submit(&one, &token, &payload, &mut &*body).unwrap_err()));
    assert!(invalid(&station.gateway.renew(&one, &token, None).unwrap_err()));
    assert!(invalid(&station.gateway.commit(&one, &token, &request(1)).unwrap_err()));
    station.lease("two", "r.test/b");
    assert_eq!(station.gateway.leases().len(), 1);
    station.pass(LIFE);
    station.gateway.expire().unwrap();
    assert_eq!(station.gateway.records(1).unwrap()[0].event, "expired");
}

/// The lease is asked for once more when the head is about to be replaced.
#[test]
fn a_lease_that_expires_while_its_commit_runs_publishes_nothing() {
    let station = Station::new();
    let (one, token) = (station.signer("one"), station.lease("one", "r.test/a"));
    let time = station.time.clone();
    station.r.before_head(move || {
        time.fetch_add(LIFE, Ordering::Relaxed);
    });
    let error = station.gateway.commit(&one, &token, &request(1)).unwrap_err();
    assert!(matches!(error, GatewayError::Publish(PublishFailure::LeaseEnded)), "{error}");
    assert_eq!(station.r.head(), []);
    // Once the candidate is noted, no other publisher gets the directory before the commit has ended.
    let token = station.lease("one", "r.test/a");
    let (gateway, time, one_too) = (station.gateway.clone(), station.time.clone(), one.clone());
    station.r.on_head(move || {
        time.fetch_add(LIFE, Ordering::Relaxed);
        let busy = gateway.acquire(&one_too, &acquire("r.test/")).unwrap_err();
        assert!(matches!(busy, GatewayError::Lease(Refused::Busy { remaining: Millis(0), .. })), "{busy}");
        Outcome::Replaced
    });
    assert_eq!(station.gateway.commit(&one, &token, &request(1)).unwrap().revision, 2);
}

#[test]
fn operators_end_leases_below_a_directory() {
    let station = Station::new();
    for path in ["r.test/a/b", "r.test/a/c", "r.test/ab"] {
        station.lease("one", path);
    }
    let path = esker_gateway::LeasePath::parse("r.test/a").unwrap();
    assert_eq!(station.gateway.end_below(&path).unwrap(), 2);
    assert_eq!(station.gateway.leases().len(), 1);
}
