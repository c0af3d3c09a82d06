//! Views over real stores and real repositories.

mod difference;
mod fixtures;
mod kernel;
mod model;
mod support;
