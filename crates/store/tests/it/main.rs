//! Tests of the store as its users see it.

mod crash;
mod damage;
mod descriptors;
mod fault_disk;
mod heads;
mod http;
mod kill;
mod quota;
mod reading;
mod restart;
mod rig;
mod single_flight;
