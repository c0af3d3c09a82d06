//! Copies a repository from a server: a Stratum 1.
//!
//! ```text
//! manifest, certificate, whitelist: verified, never older than those here
//!   └─ catalogs that are not here ─► staged ─► objects that they name and that are not here ─► stored, made durable
//!                                      └─ under the lock of the head: reflog, catalogs, whitelist, manifest
//! ```
//!
//! A catalog lies below `data` only once everything that it leads to does, and after the reflog lists its root. So the
//! presence of a catalog means that its whole subtree is present, a revision that changes ten files costs the changed
//! catalogs and ten objects, and a run that was killed goes on where it stopped. Condemned catalogs are the exception:
//! a collect may have deleted a part of what they name, so they are walked as if they were absent.

mod commit;
mod error;
mod fetcher;
mod history;
mod offer;
mod options;
mod origin;
mod replica;
mod retrying;
mod run;
mod schedule;
mod space;
mod walk;

pub use commit::PARTIAL;
pub use error::ReplicateError;
pub use options::{Replicate, ReplicateProgress, Replicated, ReplicationPlan, Retries, RevisionLimit};
pub use schedule::{Replicable, ReplicationSchedule};
pub(crate) use walk::is_selected;
