//! Replaces, lists and revokes the keys of a repository, and has whitelists signed on another machine.

mod certificates;
mod request;
mod rotation;

pub use certificates::{ListedCertificate, list_certificates};
pub use request::{SignAnswer, SignRequest};
pub use rotation::{Rotate, Rotated};
