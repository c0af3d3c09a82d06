//! Publishes for publishers without keys of a repository: leases, payloads and commits over HTTP.
//!
//! ```text
//!   publisher ── lease ──► service ─► leases ─► database
//!             ── packs ──► service ─► every object hashed ─► storage of the repository
//!             ── commit ─► service ─► the changes below the lease, rebased onto the newest head ─► head
//! ```
//!
//! The protocol is that of the reference's gateway, with additions for Esker's publishers. The gateway holds the keys of the
//! repositories; publishers hold a key that is shared with the gateway, which limits what they may change.
#![forbid(unsafe_code)]

mod authorization;
mod client;
mod clock;
mod database;
mod error;
mod gateway;
mod granted;
mod intake;
mod key_files;
mod keys;
mod lease;
mod lease_path;
mod pack;
mod published_repository;
mod queue;
mod service;
mod target;
mod token;
mod usage;
pub mod wire;

pub use authorization::Authorization;
pub use client::{GatewayAddress, HeldLease, LeaseWish, Operator, Session};
pub use clock::{Clock, steady_clock};
pub use database::{Database, DatabaseError, OpenFile, Record};
pub use error::GatewayError;
pub use gateway::{Counts, Gateway, GatewayOptions, Signer};
pub use intake::{IntakeError, Stored};
pub use key_files::{is_key_name, key_file, write_key, write_plain_key};
pub use keys::{AccessError, KeyError, KeyLimits, KeyRing, OldSecret, PublisherKey, Secret, plain_key};
pub use lease::{Candidate, Change, Commit, Lease, Leases, Millis, Refused, Request, State};
pub use lease_path::{LeasePath, LeasePathError};
pub use pack::{HEADER_MAX, PackError, PackHeader, PackedObject};
pub use published_repository::{OpenRepository, PublishedRepository};
pub use service::{BLOCKING_THREADS, service};
pub use target::{
    BeforeHead, OpenTarget, PublicFiles, PublishFailure, Published, Submission, Submissions, Target,
};
pub use token::Token;
