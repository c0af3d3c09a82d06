//! Tests of the store as its users see it.

mod damage;
mod http;
mod reading;
mod restart;
mod rig;
mod single_flight;
