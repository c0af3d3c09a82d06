//! Sorted lists of the objects that catalogs name, and set operations on them with bounded memory.
//!
//! Catalogs are immutable, so the list of a catalog is made once and kept in the publisher's state folder. A list can be
//! rebuilt from its catalog at any time: a damaged one counts as absent.
//!
//! ```text
//! catalog ─► HashList ─► .esker/lists/XX/HASH
//!                 └─► Sorter ─► sorted runs on disk ─► SortedSet ─► union, difference
//! ```
//!
//! Memory: one catalog with its list for each thread, one 25-byte record buffer of a given size, and while runs are
//! merged a buffer of [`READ`](sorter::READ) bytes for each of at most [`FAN_IN`](sorter::FAN_IN) runs. With the default
//! of 64 MiB for the buffer, a set of 100 million objects takes 68 MiB of memory and 2.5 GB of disk.

pub(crate) mod list;
pub(crate) mod record;
pub(crate) mod sorter;
pub(crate) mod stored;
pub(crate) mod walk;

pub(crate) use record::{Owner, Record, Tagged};
pub(crate) use sorter::{SortedSet, Sorter, minus};
pub(crate) use stored::HashLists;
pub(crate) use walk::{Closure, Incomplete};
