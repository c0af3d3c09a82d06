//! Views over real stores and real repositories.

mod difference;
mod faults;
mod fixtures;
mod following;
mod gate;
mod holding;
mod kernel;
mod model;
mod reading;
mod support;
