//! Images of other programs, read through the tree; images of our writer, read by other programs.
#![allow(clippy::unwrap_used, reason = "code for tests: a panic is the report")]

mod archives;
mod codecs;
mod damage;
mod samples;
mod walk;
mod writing;

/// Body of the fuzz target, which runs here without a nightly toolchain.
#[allow(unreachable_pub, reason = "it is public in the crate that libFuzzer runs")]
#[path = "../../../../fuzz/src/image.rs"]
mod image;
