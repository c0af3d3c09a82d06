//! A demanded object from a far server, in pieces over several connections.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use esker_store::{Callback, CancelToken, Engine, ObjectStore, Objects};
use esker_testkit::mirror::{Fault, Mirror, Request};

use crate::rig::{Made, Rig, as_is, bytes, engine_with, noise, roomy, serve, zlib};

/// Bytes that are worth more than one round trip, however well they are taken to compress.
const LARGE: usize = 300_000;

/// A server that is taken for a far one, with objects.
struct Stand {
    mirror: Mirror,
    objects: Vec<Made>,
    rig: Rig,
    store: Objects,
    _folder: tempfile::TempDir,
}

fn far() -> Engine {
    engine_with(|options| {
        options.http.far = Duration::ZERO;
        options.http.pieces = Duration::ZERO;
    })
}

impl Stand {
    /// The first object has been read, which tells what the server offers.
    fn new(objects: Vec<Made>, engine: Engine, fields: &[(&str, &str)]) -> Self {
        let mut all = vec![zlib(&noise(0, 900))];
        all.extend(objects);
        let (mirror, folder) = serve(&all);
        for (name, value) in fields {
            mirror.say(name, value);
        }
        let rig = Rig::with(engine, roomy());
        let store = rig.open(&mirror.url("repo"));
        bytes(&store, &all[0].wanted).unwrap();
        Self { mirror, objects: all.split_off(1), rig, store, _folder: folder }
    }

    fn of_one(fields: &[(&str, &str)]) -> Self {
        Self::new(vec![as_is(&noise(1, LARGE))], far(), fields)
    }

    /// The requests for one of the objects.
    fn requests(&self, object: &Made) -> Vec<Request> {
        let path = path_of(object);
        self.mirror.requests().into_iter().filter(|request| request.path.ends_with(&path)).collect()
    }

    fn parts(&self, object: &Made) -> usize {
        self.requests(object).iter().filter(|request| request.range.is_some()).count()
    }
}

fn path_of(object: &Made) -> String {
    object.wanted.name.path()
}

/// Of every length around those at which something changes, and of more and fewer bytes than are expected of them.
#[test]
fn objects_of_all_lengths_are_fetched_in_pieces_completely() {
    let lens = [0, 1, 14_599, 14_600, 14_601, 29_200, 36_500, 36_501, 100_000, LARGE, 1 << 20, 3 << 20];
    let mut objects: Vec<Made> = (1..).zip(lens).map(|(seed, len)| as_is(&noise(seed, len))).collect();
    objects.extend((100..).zip(lens).map(|(seed, len)| zlib(&noise(seed, len))));
    // A hundredth of it is left of these.
    objects.extend([1 << 20, 4 << 20].map(|len| zlib(&vec![7; len])));
    let stand = Stand::new(objects, far(), &[]);
    for object in &stand.objects {
        assert_eq!(bytes(&stand.store, &object.wanted).unwrap(), object.plain);
        let requests = stand.requests(object);
        let parts = stand.parts(object);
        if object.stored.len() >= LARGE {
            assert!((8..=64).contains(&parts) && parts == requests.len(), "{parts}: {requests:?}");
        }
        let begin: BTreeSet<u64> = requests.iter().filter_map(|request| Some(request.range?.0)).collect();
        assert_eq!(begin.len(), parts, "nothing is asked for twice");
    }
    let status = stand.store.status();
    assert_eq!(status.network.route.retries, 0);
    let stored: usize = stand.objects.iter().map(|object| object.stored.len()).sum();
    let received = stand.store.status().network.received_bytes as usize;
    assert!(received < stored + 1000, "{received} bytes for {stored}");
}

/// Near servers, those behind a proxy, those that don't say that they send parts.
#[test]
fn pieces_are_not_requested_from_near_or_proxied_servers() {
    for fields in [("Via", "1.1 squid"), ("Age", "5")] {
        let stand = Stand::of_one(&[fields]);
        assert_eq!(bytes(&stand.store, &stand.objects[0].wanted).unwrap(), stand.objects[0].plain);
        assert_eq!((stand.requests(&stand.objects[0]).len(), stand.parts(&stand.objects[0])), (1, 0));
    }
    let near = engine_with(|options| options.http.pieces = Duration::from_secs(60));
    let stand = Stand::new(vec![as_is(&noise(1, LARGE))], near, &[]);
    assert_eq!(bytes(&stand.store, &stand.objects[0].wanted).unwrap(), stand.objects[0].plain);
    assert_eq!(stand.parts(&stand.objects[0]), 0);
}

#[test]
fn a_prefetch_uses_one_connection() {
    let stand = Stand::of_one(&[]);
    let (sender, outcome) = channel();
    let done = Callback::new(move |warmed| sender.send(warmed).unwrap());
    stand.store.warm(stand.objects[0].wanted.clone(), &CancelToken::new(), done);
    outcome.recv().unwrap().unwrap();
    assert_eq!((stand.requests(&stand.objects[0]).len(), stand.parts(&stand.objects[0])), (1, 0));
}

/// Number of pieces in which the object of [`Stand::of_one`] arrives.
fn pieces_of_one() -> u64 {
    let stand = Stand::of_one(&[]);
    bytes(&stand.store, &stand.objects[0].wanted).unwrap();
    let count = stand.parts(&stand.objects[0]) as u64;
    assert!(count > 1);
    count
}

/// After any failure of any request the object arrives; later objects use one connection, unless the failure may have
/// been temporary.
#[test]
fn a_file_failing_in_pieces_is_fetched_whole() {
    let faults = || [Fault::Status(500), Fault::Status(403), Fault::CloseAfter(100), Fault::Whole];
    for fault in faults() {
        for number in 0..pieces_of_one() {
            let objects = (1..3).map(|seed| as_is(&noise(seed, LARGE))).collect();
            let stand = Stand::new(objects, far(), &[]);
            let (first, second) = (&stand.objects[0], &stand.objects[1]);
            let (path, seen) = (path_of(first), AtomicU64::new(0));
            let picks =
                move |asked: &str| asked.ends_with(&path) && seen.fetch_add(1, Ordering::Relaxed) == number;
            let rule = stand.mirror.fault(picks, fault.clone());
            assert_eq!(bytes(&stand.store, &first.wanted).unwrap(), first.plain, "{fault:?} {number}");
            rule.assert_hit();
            assert!(stand.parts(first) > 1);
            bytes(&stand.store, &second.wanted).unwrap();
            let in_pieces = stand.parts(second) > 1;
            assert_eq!(in_pieces, matches!(fault, Fault::CloseAfter(_)), "{fault:?}");
            assert!(in_pieces || stand.requests(second).len() == 1);
        }
    }
}

#[test]
fn a_file_damaged_in_pieces_is_fetched_again_whole() {
    let stand = Stand::of_one(&[]);
    let object = &stand.objects[0];
    let path = path_of(object);
    // All the pieces of the first time.
    let rule =
        stand.mirror.fault_times(pieces_of_one(), move |asked| asked.ends_with(&path), Fault::FlipByte(3));
    assert_eq!(bytes(&stand.store, &object.wanted).unwrap(), object.plain);
    rule.assert_hit();
    let requests = stand.requests(object);
    assert!(requests.last().is_some_and(|request| request.range.is_none()), "{requests:?}");
}

#[test]
fn a_missing_object_in_pieces_is_reported_as_missing() {
    let stand = Stand::of_one(&[]);
    let path = path_of(&stand.objects[0]);
    let rule = stand.mirror.fault(move |asked| asked.ends_with(&path), Fault::Missing);
    let error = bytes(&stand.store, &stand.objects[0].wanted).unwrap_err();
    rule.assert_hit();
    assert!(error.full_text().contains("no such object"), "{}", error.full_text());
    assert_eq!(stand.rig.cache.status().objects, 1);
}
