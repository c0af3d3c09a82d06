//! Tests of the store as its users see it.

mod damage;
mod descriptors;
mod http;
mod quota;
mod reading;
mod restart;
mod rig;
mod single_flight;
