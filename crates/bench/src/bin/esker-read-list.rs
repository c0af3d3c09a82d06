//! `esker-read-list [--keep-open] ROOT PART LIST…`: reads each file of recorded lists below ROOT once.
//!
//! PART is a share of the files, each share in an order of its own: `3/8` is the third of eight, `0/1` all files. With
//! `--keep-open` all files are open at the same time, until the end of its input. It is a separate program because 256
//! of them run at once, and the cost of starting each counts.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a program of its own, with a terminal to talk to")]

use std::env::args_os;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use esker_bench::lists::{self, Part};

/// Percentage of files that two readers read.
const SHARED_PERCENT: usize = 10;

fn main() -> Result<()> {
    let mut arguments = args_os().skip(1).peekable();
    let usage = "usage: esker-read-list [--keep-open] ROOT PART LIST...";
    let keep_open = arguments.next_if(|first| first == "--keep-open").is_some();
    let root = arguments.next().context(usage)?;
    let part = arguments.next().and_then(|part| part.into_string().ok()).context(usage)?;
    let part: Part = part.parse().map_err(|error| anyhow!("{error}"))?;
    let files = lists::union(&arguments.map(PathBuf::from).collect::<Vec<_>>())?;
    let root = Path::new(&root);
    let files = lists::deal(&files, part, SHARED_PERCENT);
    let open = if keep_open { lists::open(root, &files)? } else { Vec::new() };
    let amount = lists::read(root, &files)?;
    println!("{} files, {} bytes", amount.files, amount.bytes);
    if keep_open {
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    }
    drop(open);
    Ok(())
}
