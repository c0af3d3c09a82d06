//! Views over real stores and real repositories.
#![allow(clippy::unwrap_used, reason = "code for tests: a panic is the report")]

mod ahead;
mod bundles;
mod diff;
mod faults;
mod fixtures;
mod following;
mod gate;
mod holding;
mod kernel;
mod libraries;
mod looks;
mod model;
mod reading;
mod sequences;
mod strangers;
mod support;
mod watched;
