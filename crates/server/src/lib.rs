//! Serves repositories over HTTP: objects, batches of them, events of new revisions, and pages to browse.
//!
//! Read [`server`] for who waits for whom, [`route`] for what can be reached at all, [`answer`] for headers.
#![forbid(unsafe_code)]

mod accept;
mod answer;
mod batch;
mod connection;
mod crowd;
mod date;
mod events;
mod file;
mod info;
mod listing;
mod lobby;
mod page;
mod range;
mod repositories;
mod request;
mod route;
mod send;
pub mod server;
mod shares;

pub use repositories::{Repositories, RootError};
pub use server::{Limits, ServeError, Served, Server, Stopper};
