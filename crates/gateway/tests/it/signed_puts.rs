//! Objects that publishers store in a bucket themselves, with requests that the gateway has signed.

use esker_format::object::{ObjectKind, ObjectName};
use esker_gateway::{GatewayError, IntakeError, KeyLimits, Session, Token};
use esker_repository::GatewaySession as _;
use esker_server::Limits;
use esker_store::SignedPut;
use esker_testkit::s3::{BUCKET, S3Fault, S3Request, S3Server, put_signed};

use crate::client::{begin, commit};
use crate::http::Running;
use crate::publisher::{LIFE, Station, object, pack};
use crate::relay::{Fate, Relay};
use crate::target::TestTarget;

fn station(server: &S3Server, limits: KeyLimits) -> Station {
    Station::of(TestTarget::in_bucket(server), limits)
}

fn is_signed_put(request: &S3Request) -> bool {
    request.method == "PUT" && request.asks("X-Amz-Signature") && request.key.starts_with("data/")
}

fn signed_puts(server: &S3Server) -> usize {
    server.requests().iter().filter(|request| is_signed_put(request)).count()
}

fn file(byte: u8, len: usize) -> (ObjectName, Vec<u8>) {
    object(&vec![byte; len], ObjectKind::File)
}

/// Puts objects, and waits until they are stored.
fn put_all(session: &Session, objects: &[(ObjectName, Vec<u8>)]) {
    for (name, bytes) in objects {
        session.put(name, bytes).unwrap();
    }
    session.flush().unwrap();
}

impl Station {
    /// Returns the requests for objects of key `one`.
    fn signed(
        &self,
        token: &Token,
        objects: &[&(ObjectName, Vec<u8>)],
    ) -> Result<Vec<(ObjectName, SignedPut)>, GatewayError> {
        let objects: Vec<_> = objects.iter().map(|(name, bytes)| (*name, bytes.len() as u64)).collect();
        self.gateway.signed_puts(&self.signer("one"), token, &objects)
    }

    fn is_missing(&self, token: &Token, (name, _): &(ObjectName, Vec<u8>)) -> bool {
        !self.gateway.missing(&self.signer("one"), token, &[*name]).unwrap().is_empty()
    }

    fn send(&self, token: &Token, objects: &[(ObjectName, Vec<u8>)]) -> Result<(), GatewayError> {
        let (payload, body) = pack(objects);
        self.gateway.submit(&self.signer("one"), token, &payload, &mut &*body).map(drop)
    }
}

/// Large files pass the gateway by; small ones and catalogs are sent in packs.
#[test]
fn large_objects_are_stored_without_the_gateway() {
    for compares in [true, false] {
        let server = S3Server::start();
        if !compares {
            server.ignore_checksums();
        }
        let running = Running::of(station(&server, KeyLimits::default()), Limits::default());
        let mut all: Vec<_> = (0..12).map(|byte| file(byte, 100_000)).collect();
        all.extend((12..20).map(|byte| file(byte, 100)));
        all.push(object(&[1; 100_000], ObjectKind::Catalog));
        let session = begin(&running.url(), "r.test/a");
        put_all(&session, &all);
        running.has_all(&all);
        assert_eq!(signed_puts(&server), if compares { 12 } else { 0 });
        assert_eq!(running.station.gateway.counts().objects, all.len() as u64);
        assert_eq!(server.objects(BUCKET).len(), all.len(), "nothing else is left");
        assert_eq!(commit(&session), 2);
        // Another session stores nothing again.
        let again = begin(&running.url(), "r.test/a");
        put_all(&again, &all);
        assert_eq!(running.station.gateway.counts().objects, all.len() as u64);
    }
}

/// What a publisher can't store itself is sent, and the gateway is not asked for signed requests again.
#[test]
fn objects_that_the_bucket_refuses_are_sent_in_packs() {
    let server = S3Server::start();
    let running = Running::of(station(&server, KeyLimits::default()), Limits::default());
    let relay = Relay::new(running.address, |_, _, _| Fate::Passes);
    let all: Vec<_> = (0..4).map(|byte| file(byte, 100_000)).collect();
    let some = all[1].0.path();
    // One of three in the first batch, and all of the second.
    let rule =
        server.fault(move |request| is_signed_put(request) && request.key == some, S3Fault::Status(403));
    let session = begin(&relay.url(), "r.test/a");
    put_all(&session, &all[..3]);
    assert_eq!((rule.hits(), signed_puts(&server)), (1, 3));
    server.fault(is_signed_put, S3Fault::Status(403));
    put_all(&session, &all[3..]);
    put_all(&session, &[file(9, 100_000)]);
    running.has_all(&all);
    let asked = |about: &str| relay.requests().iter().filter(|request| request.contains(about)).count();
    assert_eq!((asked("/uploads"), asked("/payloads")), (2, 3));
    assert_eq!(commit(&session), 2);
}

#[test]
fn wrong_bytes_are_no_object() {
    for compares in [true, false] {
        let server = S3Server::start();
        if !compares {
            server.ignore_checksums();
        }
        let station = station(&server, KeyLimits::default());
        let token = station.lease("one", "r.test/a");
        let file = file(1, 1000);
        let (name, put) = station.signed(&token, &[&file]).unwrap().remove(0);
        assert_eq!(name, file.0);
        assert!(station.is_missing(&token, &file));
        assert_eq!(put_signed(&put.url, &put.fields, &[2; 1000]), if compares { 400 } else { 200 });
        assert!(station.is_missing(&token, &file));
        assert_eq!(server.objects(BUCKET).len(), 0);
        // The right is there until it is used.
        assert_eq!(put_signed(&put.url, &put.fields, &file.1), 200);
        assert!(!station.is_missing(&token, &file));
        assert_eq!(server.object(BUCKET, &name.path()).unwrap().bytes, file.1);
    }
}

#[test]
fn signed_requests_end_with_the_lease_and_are_for_its_key_and_for_files() {
    let server = S3Server::start();
    let station = station(&server, KeyLimits::default());
    let token = station.lease("one", "r.test/a");
    let seconds = |number: u8| {
        let (_, put) = station.signed(&token, &[&file(number, 10)]).unwrap().remove(0);
        let (_, rest) = put.url.split_once("X-Amz-Expires=").unwrap();
        rest.split('&').next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(seconds(1), 600);
    station.pass(LIFE - 5500);
    assert_eq!(seconds(2), 5);
    let others = [
        object(b"c", ObjectKind::Catalog),
        object(b"h", ObjectKind::History),
        object(b"x", ObjectKind::Certificate),
    ];
    assert!(station.signed(&token, &others.each_ref()).unwrap().is_empty());
    let wanted = [(file(3, 10).0, 10)];
    let stranger = station.gateway.signed_puts(&station.signer("two"), &token, &wanted);
    assert!(matches!(stranger, Err(GatewayError::Lease(_))), "{stranger:?}");
    station.pass(5000);
    assert!(station.signed(&token, &[&file(4, 10)]).unwrap().is_empty(), "half a second is left");
    station.pass(500);
    assert!(matches!(station.signed(&token, &[&file(5, 10)]), Err(GatewayError::Lease(_))));
}

/// An object is counted once, whether its publisher stores it or sends it.
#[test]
fn bytes_of_signed_requests_are_bytes_of_the_lease() {
    let server = S3Server::start();
    let limits = KeyLimits { lease_bytes: Some(1000), ..KeyLimits::default() };
    let station = station(&server, limits);
    let token = station.lease("one", "r.test/a");
    let (first, second, third) = (file(1, 600), file(2, 600), file(3, 400));
    let put = station.signed(&token, &[&first]).unwrap().remove(0).1;
    assert!(station.signed(&token, &[&first]).unwrap().is_empty(), "there is a request for it");
    let too_many = |refused: Result<(), GatewayError>| {
        let is_it =
            matches!(refused, Err(GatewayError::Intake(IntakeError::Quota { left: 400, bytes: 600 })));
        assert!(is_it, "{refused:?}");
    };
    too_many(station.signed(&token, &[&second]).map(drop));
    too_many(station.send(&token, std::slice::from_ref(&second)));
    station.send(&token, std::slice::from_ref(&first)).unwrap();
    assert_eq!(put_signed(&put.url, &put.fields, &first.1), 200);
    station.send(&token, &[third]).unwrap();
    assert!(station.send(&token, &[first]).is_err(), "it is sent a second time");
}

#[test]
fn a_folder_has_no_signed_requests() {
    let running = Running::new();
    running.station.r.make_folders();
    let relay = Relay::new(running.address, |_, _, _| Fate::Passes);
    let session = begin(&relay.url(), "r.test/a");
    let all: Vec<_> = (0..2).map(|byte| file(byte, 100_000)).collect();
    all.chunks(1).for_each(|one| put_all(&session, one));
    running.has_all(&all);
    let asked = relay.requests().iter().filter(|request| request.contains("/uploads")).count();
    assert_eq!(asked, 1);
    let limits = KeyLimits { lease_bytes: Some(1000), ..KeyLimits::default() };
    let station = Station::limited(limits);
    let token = station.lease("one", "r.test/a");
    let all = [file(1, 900)];
    assert!(station.signed(&token, &all.each_ref()).unwrap().is_empty());
    station.r.make_folders();
    station.send(&token, &all).unwrap();
}
