//! Lists the commands: one module each with its arguments, whose comments are the help.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

pub(crate) mod backing;
pub(crate) mod clients;
pub(crate) mod costs;
pub(crate) mod jitter;
pub(crate) mod link;
pub(crate) mod prepare;
mod proxied;
pub(crate) mod publisher;
pub(crate) mod pynamic;
pub(crate) mod record_list;
pub(crate) mod scale;
pub(crate) mod site;
pub(crate) mod startup;
pub(crate) mod storage;

pub(crate) fn write_json(path: Option<&Path>, report: &impl Serialize) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    std::fs::write(path, text).with_context(|| format!("can't write {}", path.display()))
}
