//! What a publisher does to a repository, judged by a checker that shares no code with it.

mod faults;
mod fixtures;
mod ingest;
mod round_trip;
mod workshop;
