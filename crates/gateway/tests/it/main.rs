//! The gateway as its publishers and its operators see it.
#![allow(clippy::unwrap_used, reason = "code for tests: a panic is the report")]

mod bucket;
mod client;
mod database;
mod disk;
mod engine;
mod http;
mod model;
mod overwriting;
mod publisher;
mod publishing;
mod relay;
mod repository;
mod signed_puts;
mod target;
