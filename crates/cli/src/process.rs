//! This process: its limits, signals, privileges, confinement, and its start in the background.

pub(crate) mod confine;
pub(crate) mod limits;
pub(crate) mod opener;
pub(crate) mod privileges;
pub(crate) mod respawn;
pub(crate) mod signals;
pub(crate) mod supervising;
pub(crate) mod tuning;
