//! Tests of the test kit itself, and of the source tree.
mod fixtures;
mod mirror;
mod objects;
mod skips;
mod tidy;
mod tree_scan;
mod waiting;
