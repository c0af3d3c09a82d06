//! Tests of repositories in buckets, with servers of S3.
#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

mod bucket_faults;
mod bucket_lies;
mod bucket_races;
mod bucket_servers;
mod buckets;
mod interruption;
mod signed_puts;
