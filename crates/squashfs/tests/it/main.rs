//! Images made by other programs, read back through the tree; images that we make, read by other programs.
#![allow(clippy::unwrap_used, reason = "code for tests: a panic is the report")]

mod codecs;
mod made;
mod walk;
mod writing;
