//! Builds repositories, faults and scripted servers for tests.
//!
//! * [`fixture`]: the repositories under `fixtures/` and the listings that say how they must read;
//! * [`check`]: judges whole repositories, with nothing of the product in it;
//! * [`contents`]: which objects a revision of a fixture consists of, read with SQLite itself;
//! * [`disk`]: a disk that fails or loses its power at a chosen operation, and a small one;
//! * [`guide`]: the boxes of Markdown texts, to try what they say;
//! * [`skips`]: reports of tests that can't run on a machine;
//! * [`waiting`]: waits for what tells nobody;
//! * [`promises`]: the promises of the documentation, and the tests that quote them;
//! * [`soak`]: tests that go on for as long as they are let;
//! * [`survey`]: what a directory tree really reads as, and how that differs from a listing;
//! * [`craft`]: revisions that no publisher made, for what the fixtures lack;
//! * [`container`]: container images of a test's own making;
//! * [`raw_tar`]: tar headers of any bytes;
//! * [`catalog`]: catalogs from nothing, row by row;
//! * [`descriptors`]: room for tests that open many files at once;
//! * [`signing`]: heads and whitelists of a test's own making, signed with the fixtures' keys;
//! * [`name_server`]: a name server that answers what it is told to;
//! * [`mirror`]: a web server that serves them and misbehaves on command.
//!
//! A failure in here is a broken test, so everything panics with a sentence instead of returning an error.
#![deny(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "code for tests: a panic is the report")]

pub mod catalog;
pub mod check;
pub mod container;
pub mod contents;
pub mod descriptors;
pub mod disk;
pub mod doc_snippets;
pub mod fixture;
pub mod listing;
pub mod mirror;
pub mod name_server;
pub mod object;
pub mod promises;
pub mod raw_tar;
pub mod revision_builder;
pub mod signing;
pub mod skips;
pub mod soak;
pub mod sys;
pub mod tree_scan;
pub mod waiting;
pub mod web;
