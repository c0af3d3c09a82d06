//! Esker's publishers: sessions with a service, over connections that break.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use esker_format::object::{ObjectKind, ObjectName};
use esker_gateway::{GatewayAddress, LeasePath, LeaseWish, Session, Target as _};
use esker_repository::{BuiltRevision, GatewayCommit, GatewayFailure, GatewaySession as _};
use esker_store::{Authorities, Put};

use crate::http::Running;
use crate::publisher::{object, root};
use crate::relay::{Fate, Relay};
use crate::target::Outcome;

pub(crate) fn address(url: &str, key: &str) -> GatewayAddress {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, format!("plain_text {key} {key}\n")).unwrap();
    let address = GatewayAddress::new(url, &file, Authorities::default()).unwrap();
    address.with_patience(Duration::from_secs(60))
}

pub(crate) fn wish(path: &str) -> LeaseWish<'static> {
    let path = LeasePath::parse(path).unwrap();
    LeaseWish { path, wait: Some(Duration::ZERO), waits: &|_| {}, token: None, take_over: false }
}

pub(crate) fn begin(url: &str, path: &str) -> Session {
    Session::begin(address(url, "one"), wish(path)).unwrap()
}

fn built() -> BuiltRevision<'static> {
    BuiltRevision { base: root(1), root: root(2), tag: "", description: "", removed_tags: &[] }
}

pub(crate) fn commit(session: &Session) -> u64 {
    let GatewayCommit { revision, left_out } = session.commit(&built()).unwrap();
    assert!(left_out.is_empty());
    revision.unwrap()
}

/// Some objects, of which each flush sends one.
fn objects(count: u8) -> Vec<(ObjectName, Vec<u8>)> {
    (0..count).map(|number| object(&[number; 100], ObjectKind::File)).collect()
}

fn put_all(session: &Session, objects: &[(ObjectName, Vec<u8>)]) {
    for (name, bytes) in objects {
        session.put(name, bytes).unwrap();
        session.flush().unwrap();
    }
}

impl Running {
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Fails unless the storage has all objects.
    pub(crate) fn has_all(&self, objects: &[(ObjectName, Vec<u8>)]) {
        for (name, bytes) in objects {
            let stored = self.station.r.sink().read(&name.path(), 1 << 20).unwrap();
            assert_eq!(stored.as_ref(), Some(bytes));
        }
    }
}

fn running() -> Running {
    let running = Running::new();
    running.station.r.make_folders();
    running
}

#[test]
fn objects_are_sent_once_and_a_second_session_sends_what_is_missing() {
    let running = running();
    let all = objects(9);
    let first = begin(&format!("{}/api/v1/", running.url()), "r.test/a");
    for (name, bytes) in &all[..6] {
        assert_eq!(first.put(name, bytes).unwrap(), Put::Stored);
        assert_eq!(first.put(name, bytes).unwrap(), Put::Present);
    }
    first.flush().unwrap();
    assert!(!first.settings().unwrap().nanoseconds, "those of the repository");
    running.has_all(&all[..6]);
    assert_eq!(running.station.gateway.counts().objects, 6);
    drop(first);
    assert!(running.station.gateway.leases().is_empty(), "the lease was given up");
    let second = begin(&running.url(), "r.test/a");
    all.iter().for_each(|(name, bytes)| assert_eq!(second.put(name, bytes).unwrap(), Put::Stored));
    assert_eq!(commit(&second), 2);
    assert_eq!(running.station.gateway.counts().objects, 9);
    running.has_all(&all);
    drop(second);
    assert!(running.station.gateway.leases().is_empty());
}

#[test]
fn large_and_many_objects_are_sent_in_several_packs() {
    let running = running();
    let relay = Relay::new(running.address, |_, _, _| Fate::Passes);
    let session = begin(&relay.url(), "r.test/a");
    let large: Vec<_> = (0..5_u8).map(|number| object(&vec![number; 12 << 20], ObjectKind::File)).collect();
    let small: Vec<_> =
        (0..12_000_u32).map(|number| object(&number.to_le_bytes(), ObjectKind::File)).collect();
    for (name, bytes) in large.iter().chain(&small) {
        session.put(name, bytes).unwrap();
    }
    session.flush().unwrap();
    assert_eq!(running.station.gateway.counts().objects, 12_005);
    let packs = relay.requests().iter().filter(|request| request.contains("/payloads")).count();
    assert!((3..8).contains(&packs), "{packs} packs");
}

/// Of four requests, one gets lost, one is carried out without an answer, and one is answered with an error of a server.
#[test]
fn a_publish_succeeds_over_connections_that_break() {
    let running = running();
    let relay = Relay::new(running.address, |number, _, _| match number % 4 {
        0 => Fate::Lost,
        1 => Fate::AnswerLost,
        2 => Fate::Answered(503, "busy"),
        _ => Fate::Passes,
    });
    let all = objects(3);
    let session = begin(&relay.url(), "r.test/a");
    put_all(&session, &all);
    assert_eq!(commit(&session), 2);
    running.has_all(&all);
    assert_eq!(running.station.r.head().len(), 1, "the commit was carried out once");
    assert!(relay.struck() >= 3 * 9, "{}", relay.struck());
}

#[test]
fn a_restart_of_the_gateway_is_a_pause() {
    let before = running();
    let relay = Arc::new(Relay::new(before.address, |_, _, _| Fate::Passes));
    let session = begin(&relay.url(), "r.test/a");
    let all = objects(4);
    put_all(&session, &all[..2]);
    relay.set_gateway(None);
    let (after, sent) = std::thread::scope(|scope| {
        let sending = scope.spawn(|| put_all(&session, &all[2..]));
        relay.wait_until_struck(2);
        let after = before.restart();
        relay.set_gateway(Some(after.address));
        (after, sending.join())
    });
    sent.unwrap();
    assert_eq!(commit(&session), 2);
    after.has_all(&all);
}

#[test]
fn refusals_say_what_is_wrong() {
    let running = running();
    let failure = |key: &str, path: &str| Session::begin(address(&running.url(), key), wish(path)).err();
    let denied = |text: &str| Some(GatewayFailure::Denied(text.to_owned()));
    assert_eq!(failure("none", "r.test/a"), denied("invalid_hmac"));
    assert_eq!(failure("two", "r.test/a"), denied("authorization error: invalid_path"));
    let session = begin(&running.url(), "r.test/a");
    let busy = failure("one", "r.test/a/b");
    let is_busy = |path: &str, remaining: &str| path == "r.test/a/b" && remaining == "1h0m0s";
    assert!(matches!(&busy, Some(GatewayFailure::Busy { path, remaining }) if is_busy(path, remaining)));
    running.station.r.conflict(&["/a/x", "/a/y"]);
    let conflict = GatewayFailure::Conflict(vec!["/a/x".to_owned(), "/a/y".to_owned()]);
    assert_eq!(session.commit(&built()), Err(conflict));
    running.station.r.lack(2);
    let (known, bytes) = object(b"known", ObjectKind::File);
    assert_eq!(session.put(&known, &bytes).unwrap(), Put::Stored);
    assert_eq!(session.commit(&built()), Err(GatewayFailure::Lacks(2)));
    assert_eq!(session.put(&known, &bytes).unwrap(), Put::Stored, "it is asked for again");
    // An object that an earlier session is thought to have sent.
    let absent = object(b"absent", ObjectKind::File).0;
    assert!(session.has(&absent).unwrap());
    assert_eq!(session.commit(&built()), Err(GatewayFailure::Lacks(1)));
    running.station.gateway.end_below(&LeasePath::parse("r.test/").unwrap()).unwrap();
    let (name, bytes) = object(b"late", ObjectKind::File);
    session.put(&name, &bytes).unwrap();
    let late = session.flush().unwrap_err().full_text();
    assert!(late.contains("the lease has ended"), "{late}");
    assert!(matches!(session.commit(&built()), Err(GatewayFailure::LeaseEnded(_))));
    let absent = Relay::new(running.address, |_, _, _| Fate::Lost);
    let unreachable = Session::begin(address(&absent.url(), "one"), wish("r.test/a")).err();
    assert!(matches!(unreachable, Some(GatewayFailure::Unavailable(_))), "{unreachable:?}");
    assert!(absent.struck() > 2);
}

#[test]
fn a_publisher_waits_for_a_directory_and_says_so_once() {
    let running = running();
    let holder = begin(&running.url(), "r.test/a");
    let (waits, waiting) = channel();
    let second = std::thread::scope(|scope| {
        let begun = scope.spawn(|| {
            let waits = |failure: &GatewayFailure| waits.send(failure.clone()).unwrap();
            let wish = LeaseWish { wait: None, waits: &waits, ..wish("r.test/") };
            Session::begin(address(&running.url(), "one"), wish)
        });
        while running.station.gateway.waiting() == 0 {
            std::thread::yield_now();
        }
        drop(holder);
        begun.join().unwrap().unwrap()
    });
    assert_eq!(running.station.gateway.leases().len(), 1);
    assert!(waiting.try_iter().count() <= 1);
    drop(second);
}

#[test]
fn a_kept_lease_goes_on_in_a_later_session() {
    let running = running();
    let session = begin(&running.url(), "r.test/a");
    let token = session.token().to_owned();
    session.keep(true);
    drop(session);
    let resume = || LeaseWish { token: Some(token.clone()), ..wish("r.test/a") };
    let again = Session::begin(address(&running.url(), "one"), resume()).unwrap();
    assert_eq!(again.token(), token);
    drop(again);
    // It has ended, so there is a new one.
    let new = Session::begin(address(&running.url(), "one"), resume()).unwrap();
    assert_ne!(new.token(), token);
}

#[test]
fn a_lease_of_a_publisher_that_is_gone_is_taken_over() {
    let running = running();
    let gone = running.token("r.test/a/b");
    let wish = LeaseWish { take_over: true, ..wish("r.test/a") };
    let session = Session::begin(address(&running.url(), "one"), wish).unwrap();
    assert_ne!(session.token(), gone);
    assert_eq!(running.station.gateway.leases().len(), 1);
}

#[test]
fn a_lease_is_renewed_while_a_session_lasts() {
    let limits = esker_gateway::KeyLimits { lease_seconds: Some(1), ..Default::default() };
    let running = Running::of(crate::publisher::Station::limited(limits), esker_server::Limits::default());
    let (renewed, was_renewed) = channel();
    let relay = Relay::new(running.address, move |_, method, _| {
        if method == "PATCH" {
            // The test ends before the last ones.
            let _ = renewed.send(());
        }
        Fate::Passes
    });
    let session = begin(&relay.url(), "r.test/a");
    // Twice that time may pass between two renewals: the next one may be on its way already.
    for _ in 0..4 {
        was_renewed.recv_timeout(Duration::from_secs(60)).unwrap();
        running.station.pass(450);
    }
    was_renewed.recv_timeout(Duration::from_secs(60)).unwrap();
    was_renewed.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(commit(&session), 2);
}

/// A gateway that answers as the reference's: without additions and renewals.
fn as_reference(
    mut fate: impl FnMut(&str, &str) -> Fate + Send + 'static,
) -> impl FnMut(usize, &str, &str) -> Fate {
    move |_, method, path| match (method, path) {
        ("GET", "/api/v1") => Fate::Answered(200, r#"{"welcome":"You are in an open field"}"#),
        ("PATCH", _) => Fate::Answered(405, "405 method not allowed"),
        _ if path.starts_with("/api/esker") => Fate::Answered(404, "404 page not found"),
        _ => fate(method, path),
    }
}

#[test]
fn the_reference_is_asked_for_nothing_that_it_lacks() {
    let running = running();
    let relay = Relay::new(running.address, as_reference(|_, _| Fate::Passes));
    let session = begin(&relay.url(), "r.test/a");
    let all = objects(3);
    assert!(!session.has(&all[0].0).unwrap());
    assert_eq!(session.settings(), None);
    put_all(&session, &all);
    assert_eq!(commit(&session), 2);
    running.has_all(&all);
    assert!(relay.requests().iter().all(|request| !request.contains("/esker/")), "{:?}", relay.requests());
}

/// The reference carries a repeated commit out again, so it is asked for the lease, which has ended.
#[test]
fn a_lost_answer_to_a_commit_of_the_reference_is_replaced_by_a_look_at_the_lease() {
    for outcome in [Outcome::Replaced, Outcome::Failed] {
        let running = running();
        let commits = Arc::new(AtomicUsize::new(0));
        let counted = commits.clone();
        let relay = Relay::new(
            running.address,
            as_reference(move |method, path| match method == "POST" && path.contains("/leases/") {
                true if counted.fetch_add(1, Ordering::Relaxed) == 0 => Fate::AnswerLost,
                _ => Fate::Passes,
            }),
        );
        let patience = Duration::from_millis(200);
        let session = Session::begin(address(&relay.url(), "one").with_patience(patience), wish("r.test/a"));
        let session = session.unwrap();
        running.station.r.on_head(move || outcome);
        let committed = session.commit(&built());
        match outcome {
            Outcome::Failed => {
                assert!(matches!(committed, Err(GatewayFailure::Unavailable(_))), "{committed:?}");
            }
            _ => assert_eq!(committed, Ok(GatewayCommit::default())),
        }
        assert_eq!(commits.load(Ordering::Relaxed), 1);
    }
}
