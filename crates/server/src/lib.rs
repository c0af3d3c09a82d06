//! Serves repositories over HTTP: objects, batches of them, events of new revisions, and pages to browse.
//!
//! Read [`server`] for threads and limits, [`route`] for the served paths, [`answer`] for headers.
#![forbid(unsafe_code)]

mod accept;
mod admission;
mod answer;
mod batch;
mod connection;
mod dashboard;
mod date;
mod events;
mod file;
mod info;
mod listing;
mod pages;
mod pending_clients;
mod range;
mod repositories;
mod request;
mod route;
mod send;
pub mod server;
mod shares;

pub use repositories::{Repositories, RootError};
pub use server::{Limits, ServeError, Served, Server, Stopper};
