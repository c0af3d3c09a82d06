//! `esker-read-list ROOT PART LIST…`: reads the files of recorded lists below ROOT, each once.
//!
//! PART is `0/1` for all of them, or which share of how many: `3/8`, in an order of its own. A program of its own,
//! because 256 of it run at once and what each costs to start counts.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a program of its own, with a terminal to talk to")]

use std::env::args_os;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use esker_bench::lists::{self, Part};

/// Of a hundred files, so many are read by two.
const SHARED_PERCENT: usize = 10;

fn main() -> Result<()> {
    let mut arguments = args_os().skip(1);
    let usage = "usage: esker-read-list ROOT PART LIST...";
    let root = arguments.next().context(usage)?;
    let part = arguments.next().and_then(|part| part.into_string().ok()).context(usage)?;
    let part: Part = part.parse().map_err(|error| anyhow!("{error}"))?;
    let files = lists::union(&arguments.map(PathBuf::from).collect::<Vec<_>>())?;
    let amount = lists::read(Path::new(&root), &lists::deal(&files, part, SHARED_PERCENT))?;
    println!("{} files, {} bytes", amount.files, amount.bytes);
    Ok(())
}
