//! Observes which files and parts of files programs read, and returns the candidates that they will read next.
//!
//! Nothing here fetches: `esker-view` asks the store for the candidates, and the [replayer](RecordingTree) has the kernel
//! read them.
#![forbid(unsafe_code)]

pub mod budget;
pub mod bundles;
pub mod candidate;
pub mod elf_files;
pub mod elf_needed;
mod negative_lookups;
pub mod neighbours;
mod node_paths;
pub mod objects;
pub mod pending;
pub mod python_imports;
pub mod recent_reads;
mod recording_tree;
pub mod remaining;
mod replayer;
mod sequences;
mod walker;

pub use pending::{Arrival, PrefetchEvent, PrefetchListener};
pub use recording_tree::{HeldBack, RecordingTree, ReplayGate};
pub use replayer::ReplayerCommand;
pub use sequences::{NAME, NAMES, NamedStep, Observation, PART, Prediction, SequenceStore, Sequences};
pub use walker::replay;
