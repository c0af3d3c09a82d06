//! The server as clients see it, over real sockets.

mod batch;
mod browser;
mod chromium;
mod client;
mod events;
mod files;
mod folders;
mod limits;
mod links;
mod listed;
mod pages;
mod proxy;
mod ranges;
