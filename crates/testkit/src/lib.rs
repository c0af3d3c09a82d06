//! Builds repositories, faults and scripted servers for tests.
//!
//! * [`fixture`]: the repositories under `fixtures/` and the listings with their expected content;
//! * [`check`]: checks whole repositories, without code of the product;
//! * [`cache_index`]: the index of a cache that lists objects without files;
//! * [`contents`]: lists the objects of a fixture's revision, read with SQLite itself;
//! * [`disk`]: a disk that fails or loses its power at a chosen operation, and a small one;
//! * [`doc_snippets`]: the boxes of Markdown texts, to run their commands;
//! * [`skips`]: reports of tests that can't run on a machine;
//! * [`waiting`]: waits for conditions without a notification;
//! * [`promises`]: the promises of the documentation, and the tests that quote them;
//! * [`soak`]: tests that repeat until a time limit;
//! * [`tree_scan`]: reads a directory tree and compares it with a listing;
//! * [`revision_builder`]: revisions that no publisher makes, for cases that the fixtures lack;
//! * [`programs`]: makes programs that a test starts;
//! * [`container`]: container images made by a test;
//! * [`raw_tar`]: tar headers of any bytes;
//! * [`catalog`]: catalogs from nothing, row by row;
//! * [`log_lines`]: collects the log lines of a test;
//! * [`descriptors`]: raises the limit of open files;
//! * [`signing`]: heads and whitelists made by a test, signed with the fixtures' keys;
//! * [`name_server`]: a name server with scripted replies;
//! * [`geo_database`]: databases of places for the Geo-API;
//! * [`memory_tree`]: a tree in memory with scripted replies, which checks the mount that uses it;
//! * [`slow_link`]: a slow link to a server;
//! * [`mirror`]: a web server for repositories with faults on command;
//! * [`s3`]: a server of buckets with faults on command.
//!
//! A failure in here is a broken test, so everything panics with a sentence instead of returning an error.
#![deny(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "code for tests: a panic is the report")]

pub mod cache_index;
pub mod catalog;
pub mod check;
pub mod container;
pub mod contents;
pub mod descriptors;
pub mod disk;
pub mod doc_snippets;
pub mod fixture;
pub mod geo_database;
pub mod listing;
pub mod log_lines;
mod loopback;
pub mod memory_tree;
pub mod mirror;
pub mod name_server;
pub mod object;
pub mod posix_acl;
pub mod programs;
pub mod promises;
pub mod raw_tar;
pub mod revision_builder;
pub mod s3;
pub mod signing;
pub mod skips;
pub mod slow_link;
pub mod soak;
pub mod state_space;
pub mod sys;
pub mod tree_scan;
pub mod waiting;
pub mod web;
