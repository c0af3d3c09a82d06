//! The writing side: databases, heads and whitelists as the reference implementation would have written them.
//!
//! * [`sqlite`]: makes whole SQLite files, page by page, always the same bytes for the same rows;
//! * [`catalog`], [`history`], [`reflog`]: the databases of a repository, written through it;
//! * [`head`]: manifests and whitelists, signed;
//! * [`encode`], [`deflate`]: plain bytes become stored ones, the latter as zlib itself writes them;
//! * [`bundle`]: specifications of bundles;
//! * [`keys`]: the private keys and the certificate of a publisher.
//!
//! Nothing here asks for the time or a random number: both come from the caller.

pub mod bundle;
pub mod catalog;
pub mod deflate;
pub mod encode;
pub mod head;
pub mod history;
pub mod keys;
pub mod reflog;
pub mod sqlite;
