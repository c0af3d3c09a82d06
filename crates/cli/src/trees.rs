//! Reads trees without a mount: finds, lists and compares entries.

pub(crate) mod browse;
pub(crate) mod compare;
pub(crate) mod entry;
pub(crate) mod revision_source;
pub(crate) mod walk;
