use std::path::PathBuf;

use anyhow::{Context, Result};
use esker_bench::performance;

/// Makes the page of what was promised and what was measured, from committed results.
///
/// Example: esker-bench report docs/performance.toml --out docs/performance.md
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// What was promised, and in which files the results are
    #[arg(value_name = "OUTLINE")]
    outline: PathBuf,

    /// The page; printed if none is named
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let page = performance::page(&args.outline)?;
    match &args.out {
        Some(path) => std::fs::write(path, page).with_context(|| format!("can't write {}", path.display())),
        None => {
            print!("{page}");
            Ok(())
        }
    }
}
