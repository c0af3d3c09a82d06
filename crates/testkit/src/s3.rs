//! A server of the protocol S3 on the loopback interface, which keeps buckets in memory and misbehaves on command.
//!
//! It has what publishers and clients use: `GET` with ranges and conditions, `HEAD`, `PUT` with `If-Match` and
//! `If-None-Match`, `DELETE`, `DeleteObjects`, `ListObjectsV2`, copies and uploads in parts. Conditional puts are atomic
//! unless [`Conditions`] says otherwise. A put must be signed, and its body must have the digest or checksum that is
//! signed. Signatures of URLs are checked, others are not.

mod azurite;
mod buckets;
mod connection;
mod fault;
mod message;
mod program;
mod signed_url;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub use azurite::AZURITE_ACCOUNT;
use buckets::Buckets;
pub use fault::{S3Fault, S3Rule};
pub use message::S3Request;
pub use program::S3Program;
pub use signed_url::put_signed;

use crate::loopback::Loopback;

/// Name of the bucket that every server has.
pub const BUCKET: &str = "bucket";

/// Support of a server for conditional puts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conditions {
    /// Condition and change are one step.
    #[default]
    Atomic,
    /// Of puts that arrive at once, two may win: the condition is checked before the body is stored.
    Racy,
    /// Every seventh answer has the version of the present content with the content before.
    Torn,
    /// Conditions are ignored.
    Ignored,
    /// Puts with conditions are refused.
    Refused,
}

/// A stored object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Object {
    /// Content.
    pub bytes: Vec<u8>,
    /// Fields that the put named: `content-type`, `cache-control`, `x-amz-storage-class`.
    pub fields: BTreeMap<String, String>,
}

/// A running server; stops when dropped.
#[derive(Debug)]
pub struct S3Server {
    state: Arc<State>,
    listener: Loopback,
}

/// State that connections share.
#[derive(Debug, Default)]
pub(crate) struct State {
    buckets: Buckets,
    rules: fault::Rules,
    log: Mutex<Vec<S3Request>>,
    under_way: UnderWay,
}

/// Counts requests whose answers are not sent yet.
#[derive(Debug, Default)]
struct UnderWay {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// A request that is under way until it is dropped.
struct Begun<'u>(&'u UnderWay);

impl UnderWay {
    fn begin(&self) -> Begun<'_> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        Begun(self)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

impl S3Server {
    /// Starts a server with an empty bucket named [`BUCKET`].
    pub fn start() -> Self {
        let state = Arc::new(State::default());
        state.buckets.make(BUCKET);
        let theirs = state.clone();
        let address = (Ipv4Addr::LOCALHOST, 0).into();
        let listener = Loopback::listen(address, move |stream| connection::serve(stream, &theirs));
        Self { state, listener }
    }

    /// Returns the URL of the server.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.listener.address())
    }

    /// Changes how conditional puts work.
    pub fn set_conditions(&self, conditions: Conditions) {
        self.state.buckets.options.lock().unwrap().conditions = conditions;
    }

    /// Makes the server refuse requests that delete several objects, as some servers do.
    pub fn refuse_batches(&self) {
        self.state.buckets.options.lock().unwrap().has_batches = false;
    }

    /// Makes the server ignore checksums of puts (`x-amz-checksum-sha1`), as some servers do.
    pub fn ignore_checksums(&self) {
        self.state.buckets.options.lock().unwrap().compares_checksums = false;
    }

    /// Sets the number of keys on a page of a listing.
    pub fn set_page(&self, keys: usize) {
        self.state.buckets.options.lock().unwrap().page = keys;
    }

    /// Makes each page of a listing the first one, with more to follow.
    pub fn repeat_listings(&self) {
        self.state.buckets.options.lock().unwrap().repeats = true;
    }

    /// Applies a fault to each request that the predicate picks.
    pub fn fault(
        &self,
        picks: impl Fn(&S3Request) -> bool + Send + Sync + 'static,
        fault: S3Fault,
    ) -> S3Rule {
        self.state.rules.add(Box::new(picks), fault, 0..u64::MAX)
    }

    /// Applies a fault to some of the requests that the predicate picks, by their number from 0.
    pub fn fault_at(
        &self,
        numbers: std::ops::Range<u64>,
        picks: impl Fn(&S3Request) -> bool + Send + Sync + 'static,
        fault: S3Fault,
    ) -> S3Rule {
        self.state.rules.add(Box::new(picks), fault, numbers)
    }

    /// Returns all objects of a bucket by key.
    pub fn objects(&self, bucket: &str) -> BTreeMap<String, S3Object> {
        self.state.buckets.all(bucket)
    }

    /// Returns an object of a bucket.
    pub fn object(&self, bucket: &str, key: &str) -> Option<S3Object> {
        self.state.buckets.get(bucket, key)
    }

    /// Stores an object, past all faults.
    pub fn put(&self, bucket: &str, key: &str, bytes: impl Into<Vec<u8>>) {
        self.state.buckets.set(bucket, key, S3Object { bytes: bytes.into(), fields: BTreeMap::new() });
    }

    /// Removes an object, past all faults.
    pub fn remove(&self, bucket: &str, key: &str) {
        self.state.buckets.remove(bucket, key);
    }

    /// Returns the number of uploads in parts that are neither complete nor aborted.
    pub fn uploads(&self) -> usize {
        self.state.buckets.uploads()
    }

    /// Returns all requests so far, in the order of arrival.
    pub fn requests(&self) -> Vec<S3Request> {
        self.state.log.lock().unwrap().clone()
    }

    /// Returns the largest number of requests that were under way at once since the last call.
    pub fn most_at_once(&self) -> usize {
        self.state.under_way.most.swap(0, Ordering::SeqCst)
    }

    /// Forgets the requests so far; returns their number.
    pub fn forget(&self) -> usize {
        std::mem::take(&mut *self.state.log.lock().unwrap()).len()
    }
}
