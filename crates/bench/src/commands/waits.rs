use std::path::PathBuf;

use anyhow::{Context, Result};
use esker_bench::waits;

/// Tells from a trace by perf what waited for a thread while a core had nothing to do.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// What `perf script` printed
    #[arg(value_name = "FILE")]
    trace: PathBuf,

    /// What programs are called, by the trace, that ran in place of nothing
    #[arg(long, value_name = "NAME")]
    rests: Option<String>,

    /// Write everything that was measured
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let text = std::fs::read_to_string(&args.trace)
        .with_context(|| format!("can't read {}", args.trace.display()))?;
    let report = waits::read(&text, args.rests.as_deref())?;
    println!("{}", report.table());
    super::write_json(args.json.as_deref(), &report)
}
