//! Records which parts of files programs read in sequence, and replays such sequences ahead of them.
#![forbid(unsafe_code)]

mod customs;
mod learned;
mod paths;
mod scout;
mod scouted;
mod walk;

pub use learned::{Heard, Keeper, Learned, NAME, NAMES, NamedStep, PART, Sight};
pub use scout::Launch;
pub use scouted::{Near, Scouted};
pub use walk::walk;
