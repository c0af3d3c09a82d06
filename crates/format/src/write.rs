//! Writes databases, heads and whitelists as the reference implementation does.
//!
//! * [`sqlite`]: writes whole SQLite files, page by page, with the same bytes for the same rows;
//! * [`catalog`], [`history`], [`reflog`]: the databases of a repository, written through it;
//! * [`head`]: manifests and whitelists, signed;
//! * [`encode`], [`deflate`]: compression of objects, the latter byte for byte as zlib;
//! * [`bundle`]: specifications of bundles;
//! * [`keys`]: the private keys and the certificate of a publisher.
//!
//! This module reads no clock and no random numbers: both come from the caller.

pub mod bundle;
pub mod catalog;
pub mod deflate;
pub mod encode;
mod encrypted_key;
pub mod head;
pub mod history;
pub mod keys;
pub mod reflog;
pub mod signer;
pub mod sqlite;
