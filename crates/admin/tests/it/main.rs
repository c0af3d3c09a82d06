//! Changes of a publisher to a repository, judged by a checker that shares no code with it.
#![allow(clippy::unwrap_used, reason = "code for tests: a panic is the report")]

mod branches;
mod bundles;
mod collecting;
mod compressed_archives;
mod corpus;
mod creation;
mod diffing;
mod disturbed;
mod faults;
mod filters;
mod fixtures;
mod info;
mod ingest;
mod keys;
mod kill;
mod kill_side_by_side;
mod model;
mod overlay;
mod protocol;
mod removal_of_repositories;
mod removals;
mod replicas;
mod resign;
mod round_trip;
mod scene;
mod settings;
mod side_by_side;
mod snapshots;
mod tags;
mod takeover;
mod time_travel;
mod token_keys;
mod workshop;
