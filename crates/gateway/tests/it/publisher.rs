//! Gateways of the tests, and what publishers send to them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::{ObjectKind, ObjectName};
use esker_gateway::wire;
use esker_gateway::{
    Authorization, Database, Gateway, GatewayOptions, KeyLimits, KeyRing, LeasePath, Millis, PackHeader,
    PackedObject, PublisherKey, Request, Secret, Signer, Token,
};
use tempfile::TempDir;

use crate::target::{TestTarget, opens};

/// Time that leases live, in milliseconds.
pub(crate) const LIFE: i64 = 3_600_000;

/// A gateway with the repositories `r.test` and `s.test`.
///
/// Its keys `one`, `two` and `boss` have their names as secrets.
pub(crate) struct Station {
    pub(crate) folder: TempDir,
    pub(crate) r: Arc<TestTarget>,
    pub(crate) s: Arc<TestTarget>,
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) time: Time,
}

/// Time of a gateway, in milliseconds.
pub(crate) type Time = Arc<AtomicI64>;

pub(crate) fn keys(limits: KeyLimits) -> KeyRing {
    let key = |name: &str, grants: &[&str], admin: bool| {
        let grants = grants.iter().map(|grant| LeasePath::parse(grant).unwrap()).collect();
        (name.to_owned(), PublisherKey { secret: Secret::new(name), grants, admin, limits, old: None })
    };
    KeyRing::new([
        key("one", &["r.test/", "s.test/"], false),
        key("two", &["r.test/b"], false),
        key("boss", &[], true),
    ])
}

pub(crate) fn options(folder: &Path, time: &Time) -> GatewayOptions {
    let time = time.clone();
    GatewayOptions {
        lease_max: LIFE,
        result_kept: LIFE,
        temporary: folder.to_owned(),
        signed_puts: true,
        clock: Arc::new(move || Millis(time.load(Ordering::Relaxed))),
    }
}

impl Station {
    pub(crate) fn new() -> Self {
        Self::limited(KeyLimits::default())
    }

    pub(crate) fn limited(limits: KeyLimits) -> Self {
        Self::of(TestTarget::new(), limits)
    }

    /// Makes a gateway with a target for `r.test`.
    pub(crate) fn of(r: Arc<TestTarget>, limits: KeyLimits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let s = TestTarget::new();
        let time = Time::default();
        let gateway = open(folder.path(), (&r, &s), limits, &time);
        Self { folder, r, s, gateway, time }
    }

    /// Ends the gateway and starts another one with its database.
    pub(crate) fn restart(self) -> Self {
        let Self { folder, r, s, gateway, time } = self;
        drop(Arc::into_inner(gateway).expect("no thread uses the gateway"));
        let gateway = open(folder.path(), (&r, &s), KeyLimits::default(), &time);
        Self { folder, r, s, gateway, time }
    }

    pub(crate) fn pass(&self, milliseconds: i64) {
        self.time.fetch_add(milliseconds, Ordering::Relaxed);
    }

    pub(crate) fn signer(&self, key: &str) -> Signer {
        self.gateway.signer(Some(&sign(key, b"x")), b"x").unwrap()
    }

    pub(crate) fn lease(&self, key: &str, path: &str) -> Token {
        self.gateway.acquire(&self.signer(key), &acquire(path)).unwrap().0
    }
}

fn open(
    folder: &Path,
    (r, s): (&Arc<TestTarget>, &Arc<TestTarget>),
    limits: KeyLimits,
    time: &Time,
) -> Arc<Gateway> {
    let database = Database::open(&folder.join("db")).unwrap();
    let targets = opens(&[("r.test", r.clone()), ("s.test", s.clone())]);
    Arc::new(Gateway::new(database, keys(limits), targets, options(folder, time)).unwrap())
}

/// Returns the header that a key signs an input with; its secret is its name.
pub(crate) fn sign(key: &str, input: &[u8]) -> String {
    Authorization::sign(key, key.as_bytes(), input).header()
}

pub(crate) fn acquire(path: &str) -> wire::Acquire {
    wire::Acquire {
        path: path.to_owned(),
        api_version: 2,
        hostname: "h".to_owned(),
        take_over: None,
        token: None,
    }
}

pub(crate) fn root(number: u8) -> ContentHash {
    ContentHash::of(HashAlgorithm::Sha1, &[number])
}

/// Returns the request to publish a root catalog.
pub(crate) fn request(number: u8) -> Request {
    Request { new_root: format!("{}C", root(number)), ..Request::default() }
}

/// Objects of a pack.
pub(crate) fn object(bytes: &[u8], kind: ObjectKind) -> (ObjectName, Vec<u8>) {
    (ObjectName::new(ContentHash::of(HashAlgorithm::Sha1, bytes), kind), bytes.to_vec())
}

/// Returns the description and the body of a pack.
pub(crate) fn pack(objects: &[(ObjectName, Vec<u8>)]) -> (wire::Payload, Vec<u8>) {
    let packed = objects.iter().map(|(name, bytes)| PackedObject { name: *name, len: bytes.len() as u64 });
    let (text, digest) = PackHeader { objects: packed.collect() }.to_text();
    let mut body = text.clone().into_bytes();
    objects.iter().for_each(|(_, bytes)| body.extend(bytes));
    (payload(&digest, text.len()), body)
}

pub(crate) fn payload(digest: &str, header: usize) -> wire::Payload {
    wire::Payload {
        session_token: String::new(),
        payload_digest: digest.to_owned(),
        header_size: header as u64,
    }
}
