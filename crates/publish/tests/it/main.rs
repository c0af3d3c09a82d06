//! Changes of a publisher to a repository, judged by a checker that shares no code with it.
#![allow(clippy::unwrap_used, reason = "code for tests: a panic is the report")]

mod build_folder;
mod bundles;
mod catalog_list;
mod choices;
mod compressed_archives;
mod copies;
mod creation;
mod diffing;
mod disturbed;
mod external;
mod faults;
mod filters;
mod fixtures;
mod grafts;
mod ingest;
mod kill;
mod limits;
mod model;
mod overlay;
mod protocol;
mod remarks;
mod removals;
mod replicas;
mod round_trip;
mod scene;
mod settings;
mod side_by_side;
mod snapshots;
mod special_files;
mod submission;
mod tags;
mod time_travel;
mod upper;
mod workshop;
