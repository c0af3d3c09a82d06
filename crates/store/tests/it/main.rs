//! Tests of the store as its users see it.
#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

mod admin;
mod batch;
mod bounded;
mod costs;
mod crash;
mod damage;
mod descriptors;
mod destinations;
mod full_disk;
mod heads;
mod http;
mod kill;
mod lower;
mod names;
mod order;
mod pieces;
mod proxy_lists;
mod proxy_login;
mod quota;
mod reading;
mod restart;
mod rig;
mod routes;
mod secure;
mod single_flight;
mod slow;
mod sources;
mod spooled;
mod statuses;
mod warm;
