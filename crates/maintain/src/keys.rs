//! Replaces, lists and revokes the keys of a repository, and has whitelists signed on another machine.

mod certificates;
mod error;
mod request;
mod rotation;

pub use certificates::{ListedCertificate, list_certificates};
pub use error::KeysError;
pub use request::{SignAnswer, SignRequest};
pub use rotation::{Rotate, Rotated};
