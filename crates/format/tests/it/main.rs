//! Tests of the format against the reference implementation's repositories and against SQLite itself.

mod catalogs;
mod databases;
mod fixtures;
mod histories;
mod trust;
