//! Tests of the format against repositories of the reference implementation and against SQLite.
#![allow(clippy::unwrap_used, reason = "code for tests: a panic is the report")]

mod catalogs;
mod databases;
mod deflate;
mod fixtures;
mod fuzz_corpus;
mod histories;
mod trust;

/// Bodies of the fuzz targets, which run here without a nightly toolchain.
#[allow(unreachable_pub, reason = "they are public in the crate that libFuzzer runs")]
#[path = "../../../../fuzz/src/lib.rs"]
mod targets;
