//! Tests of the format against the reference implementation's repositories and against SQLite itself.
#![allow(clippy::unwrap_used, reason = "code for tests: a panic is the report")]

mod catalogs;
mod databases;
mod fixtures;
mod histories;
mod trust;
