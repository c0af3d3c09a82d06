//! Views over real stores and real repositories.

mod fixtures;
mod support;
