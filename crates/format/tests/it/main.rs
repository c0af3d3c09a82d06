//! Tests of the format against the reference implementation's repositories and against SQLite itself.
#![allow(clippy::unwrap_used, reason = "code for tests: a panic is the report")]

mod catalogs;
mod databases;
mod deflate;
mod fixtures;
mod fuzz_corpus;
mod histories;
mod trust;

/// The bodies of the fuzz targets, which need no nightly toolchain themselves.
#[allow(unreachable_pub, reason = "they are public in the crate that libFuzzer runs")]
#[path = "../../../../fuzz/src/lib.rs"]
mod targets;
