//! Collects, replicas and other work on repositories, judged by a checker that shares no code with it.
#![allow(clippy::unwrap_used, reason = "code for tests: a panic is the report")]

mod branches;
mod changing;
mod collecting;
mod corpus;
mod full_disk;
mod info;
mod keeping_catalogs;
mod keys;
mod kill_side_by_side;
mod memory_bucket;
mod not_understood;
mod object_storage;
mod open_work;
mod removal_of_repositories;
mod replicating;
mod resign;
mod takeover;
mod token_keys;
#[path = "../../../publish/tests/it/upper.rs"]
mod upper;
mod upper_attributes;
#[path = "../../../publish/tests/it/workshop.rs"]
mod workshop;
