//! The machine: its check by `doctor`, and its configuration by `setup`.

pub(crate) mod doctor;
pub(crate) mod import;
pub(crate) mod setup;
