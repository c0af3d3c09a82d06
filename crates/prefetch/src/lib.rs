//! Observes which files and parts of files programs read, and returns the candidates that they will read next.
//!
//! Each way of predicting is a predictor (`predictor.rs`), which handles events and queues candidates; the [`Planner`] has
//! them in order. Nothing here fetches: `esker-view` asks the store for the candidates, and the
//! [replayer](RecordingTree) has the kernel read them.
#![forbid(unsafe_code)]

mod budget;
mod budgets;
mod bundles;
mod cached_reads;
mod candidate;
mod cluster;
mod elf_files;
mod elf_needed;
mod event;
mod folders;
mod learned_reads;
mod negative_lookups;
mod neighbours;
mod node_paths;
pub mod objects;
mod pending;
mod planner;
mod predictor;
mod python_imports;
mod queue;
mod recent_reads;
mod recording_tree;
mod remaining;
mod replayer;
mod sequences;
mod sequential_readers;
mod walker;
mod world;

pub use budgets::{Budgets, Settled};
pub use candidate::Candidate;
pub use cluster::{CatalogRequest, FileContent, FileLookup, FileObjects};
pub use elf_files::ElfFile;
pub use elf_needed::within;
pub use event::{Action, Ended, Event, Outcome, Purpose, Read, Source};
pub use folders::{FOLDERS_MAX, FOLDERS_NEARBY, Folder, Folders, SmallFile, is_library, kind, small_max};
pub use pending::{Arrival, PrefetchEvent, PrefetchListener};
pub use planner::Planner;
pub use recent_reads::RecentReads;
pub use recording_tree::{HeldBack, RecordingTree, ReplayGate};
pub use replayer::{ReplayerCommand, RunningReplayer, StartReplayer};
pub use sequences::{NAME, NAMES, NamedStep, Observation, PART, Prediction, SequenceStore, Sequences};
pub use walker::replay;
pub use world::{FAR_ROUND_TRIP, File, World};
