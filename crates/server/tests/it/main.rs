//! The server as clients see it, over real sockets.

mod batch;
mod browser;
mod chromium;
mod client;
mod client_limits;
mod crowd;
mod events;
mod files;
mod folders;
mod limits;
mod links;
mod listed;
mod malformed;
mod monitoring;
mod pages;
mod proxy;
mod ranges;
mod routed;
mod secure;
mod soak;
mod storages;
