//! Views over real stores and real repositories.

mod difference;
mod fixtures;
mod following;
mod kernel;
mod model;
mod support;
