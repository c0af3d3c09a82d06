use std::path::PathBuf;

use anyhow::{Context, Result};
use esker_bench::waits;

/// Attributes the waiting time of threads while a core was idle, from a trace by perf.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Output of `perf script`
    #[arg(value_name = "FILE")]
    trace: PathBuf,

    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let text = std::fs::read_to_string(&args.trace)
        .with_context(|| format!("can't read {}", args.trace.display()))?;
    let report = waits::read(&text)?;
    println!("{}", report.table());
    super::write_json(args.json.as_deref(), &report)
}
