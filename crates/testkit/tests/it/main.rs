//! Tests of the test kit itself, and of the source tree.
mod fixtures;
mod mirror;
mod objects;
mod skips;
mod survey;
mod tidy;
mod waiting;
