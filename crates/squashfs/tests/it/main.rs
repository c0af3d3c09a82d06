//! Images made by other programs, read back through the tree; images that we make, read by other programs.
#![allow(clippy::unwrap_used, reason = "code for tests: a panic is the report")]

mod archives;
mod codecs;
mod damage;
mod made;
mod walk;
mod writing;

/// The body of the fuzz target, which needs no nightly toolchain itself.
#[allow(unreachable_pub, reason = "it is public in the crate that libFuzzer runs")]
#[path = "../../../../fuzz/src/image.rs"]
mod image;
