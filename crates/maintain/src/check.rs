//! Checks a repository in a folder or on a server, and repairs one in a folder from a mirror.
//!
//! ```text
//! head: signatures, whitelist, certificate ─► history, reflog ─► catalogs: rows, counters, mountpoints
//!                                                                  └─ lists ─► storage: presence, with `data` all bytes
//! ```
//!
//! A fault never ends a check: it becomes a [`Finding`], and what depends on it is left out. A check writes nothing but
//! lists of hashes, and those only into a publisher's state folder that is there already. Its caller may note the outcome in
//! the storage ([`note_outcome`]).

mod catalog;
mod catalogs;
mod changing;
mod counters;
mod entries;
mod error;
mod finding;
mod head;
mod history;
mod mirror;
mod options;
mod outcome;
mod paths;
mod reading;
mod reflog;
mod remote;
mod repair;
mod run;
mod scrub;
mod storage;
mod target;

pub use error::CheckError;
pub use finding::{Finding, FindingKind, Fix};
pub use mirror::{Mirror, MirrorServer, Verdict};
pub use options::{Check, CheckPlace, CheckProgress, CheckReport, DataCheck};
pub use outcome::note_outcome;
pub use repair::{Repair, Repaired};
