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
<<<<<<< HEAD
mod malformed;
mod monitoring;
=======
mod proxy;
mod pages;
>>>>>>> main
mod ranges;
mod secure;
