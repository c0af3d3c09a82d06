//! Objects on their way to the storage: in packs, which the gateway hashes, and straight from publishers by signed URLs.
//!
//! A URL is for one object of a known length, and ends with the lease or before. Where the storage compares the bytes with the
//! object's name, they are stored as that object; elsewhere as a file that is no object before the gateway has hashed it.

use std::collections::BTreeSet;
use std::io::Read;
use std::sync::atomic::Ordering;
use std::time::Duration;

use esker_format::hash::ContentHash;
use esker_format::object::ObjectName;
use esker_store::{LargeWriter, SignedPut, Sink};

use super::{Gateway, NAMES_MAX, Signer};
use crate::error::GatewayError;
use crate::granted::Grant;
use crate::intake::{self, IntakeError, OBJECT_MAX, Stored};
use crate::lease::Lease;
use crate::token::Token;
use crate::wire;

/// Longest time for which a URL is valid.
const VALID: Duration = Duration::from_secs(600);

impl Gateway {
    /// Receives a payload of a lease.
    pub fn submit(
        &self,
        signer: &Signer,
        token: &Token,
        payload: &wire::Payload,
        body: &mut dyn Read,
    ) -> Result<Stored, GatewayError> {
        let lease = self.open_lease(signer, token)?;
        let served = self.served(&lease.path.repository)?;
        let header = intake::header(payload, body)?;
        // Bytes of objects that were to be stored by URLs are reserved already.
        let of_urls = header.objects.iter().filter_map(|object| self.granted.take(token, &object.name));
        let bytes = header.bytes().saturating_sub(of_urls.map(|grant| grant.len).sum());
        self.reserve(signer, token, bytes)?;
        let stored = intake::objects(&header, body, served.target.sink(), &self.options.temporary);
        let stored = stored.inspect_err(|_| self.usage.release(token, bytes))?;
        if !stored.catalogs.is_empty() {
            self.noted(self.database.note_catalogs(token, &stored.catalogs))?;
        }
        self.count(stored.objects as u64, stored.bytes);
        Ok(stored)
    }

    /// Counts bytes that a lease is to send, and refuses them if they are too many.
    fn reserve(&self, signer: &Signer, token: &Token, bytes: u64) -> Result<(), GatewayError> {
        let reserved = self.usage.reserve(token, bytes, signer.key.limits.lease_bytes);
        let sent = reserved.map_err(|left| IntakeError::Quota { left, bytes })?;
        if signer.key.limits.lease_bytes.is_some() {
            let noted = self.noted(self.database.note_sent(token, sent));
            noted.inspect_err(|_| self.usage.release(token, bytes))?;
        }
        Ok(())
    }

    fn count(&self, objects: u64, bytes: u64) {
        self.counters.objects.fetch_add(objects, Ordering::Relaxed);
        self.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns true if publishers may store objects in the storage themselves.
    pub fn signs_puts(&self) -> bool {
        self.options.signed_puts
    }

    /// Returns URLs by which a publisher stores some of its objects itself. The others are sent in packs.
    pub fn signed_puts(
        &self,
        signer: &Signer,
        token: &Token,
        objects: &[(ObjectName, u64)],
    ) -> Result<Vec<(ObjectName, SignedPut)>, GatewayError> {
        if objects.len() > NAMES_MAX {
            return Err(GatewayError::TooManyNames(NAMES_MAX));
        }
        let lease = self.open_lease(signer, token)?;
        let left = u64::try_from(lease.expires.0.saturating_sub(self.now().0)).unwrap_or(0);
        // Signatures count seconds.
        let valid = Duration::from_secs(left / 1000).min(VALID);
        if !self.options.signed_puts || valid.is_zero() {
            return Ok(Vec::new());
        }
        let served = self.served(&lease.path.repository)?;
        // The gateway remembers catalogs that it received, which may be the base of others.
        let may_be_put = |(name, len): &&(ObjectName, u64)| name.kind.is_content() && *len <= OBJECT_MAX;
        let wanted: Vec<_> = objects.iter().filter(may_be_put).copied().collect();
        let wanted = self.granted.new_of(token, &wanted);
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let bytes = wanted.iter().map(|(_, len)| len).sum();
        self.reserve(signer, token, bytes)?;
        let signed = served.target.sink().signed_puts(&wanted, valid).map_err(IntakeError::Storage);
        let signed = signed.inspect_err(|_| self.usage.release(token, bytes))?;
        let Some(signed) = signed else {
            self.usage.release(token, bytes);
            return Ok(Vec::new());
        };
        let given = wanted.into_iter().zip(signed).map(|((name, len), put)| {
            self.granted.add(token, name, Grant { len, staged: put.staged.clone() });
            (name, put)
        });
        Ok(given.collect())
    }

    /// Returns those of some objects that the storage lacks.
    pub fn missing(
        &self,
        signer: &Signer,
        token: &Token,
        names: &[ObjectName],
    ) -> Result<Vec<ObjectName>, GatewayError> {
        if names.len() > NAMES_MAX {
            return Err(GatewayError::TooManyNames(NAMES_MAX));
        }
        let lease = self.open_lease(signer, token)?;
        let served = self.served(&lease.path.repository)?;
        let sink = served.target.sink();
        let lacking = sink.missing(names).map_err(IntakeError::Storage)?;
        let lacked: BTreeSet<&ObjectName> = lacking.iter().collect();
        for name in names.iter().filter(|name| !lacked.contains(name)) {
            if let Some(grant) = self.granted.take(token, name) {
                self.count(1, grant.len);
            }
        }
        let mut missing = Vec::new();
        for name in &lacking {
            if !self.take_staged(token, sink, name)? {
                missing.push(*name);
            }
        }
        Ok(missing)
    }

    /// Stores an object that its publisher has stored as a file which is none yet; returns false if there is no such file, or
    /// another content.
    fn take_staged(&self, token: &Token, sink: &dyn Sink, name: &ObjectName) -> Result<bool, IntakeError> {
        // A right stays while its URL may be used, so that its bytes are not counted again.
        let Some(Grant { len, staged: Some(path) }) = self.granted.get(token, name) else { return Ok(false) };
        let mut bytes = LargeWriter::new(&self.options.temporary, len);
        if sink.read_to(&path, &mut bytes)?.is_none() {
            return Ok(false);
        }
        let bytes = bytes.finish().map_err(IntakeError::Temporary)?;
        let is_right = ContentHash::of(name.hash.algorithm(), &bytes) == name.hash;
        if is_right {
            sink.put(name, &bytes)?;
            sink.flush()?;
            self.granted.take(token, name);
            self.count(1, len);
        }
        sink.remove_root(&path)?;
        Ok(is_right)
    }

    /// Returns a lease that its publisher may send objects for.
    pub(super) fn open_lease(&self, signer: &Signer, token: &Token) -> Result<Lease, GatewayError> {
        let lease = self.leases.read().find(token, &signer.name, self.now())?.clone();
        // The key may have lost the directory since.
        self.keys().check(&signer.key, &lease.path)?;
        Ok(lease)
    }
}
