use std::path::PathBuf;

use anyhow::Result;
use esker_bench::route;

/// Measures requests for a small object with and without route selection, in turns.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Number of pairs of turns
    #[arg(long, default_value_t = 40)]
    turns: usize,

    /// Number of requests in a turn
    #[arg(long, default_value_t = 500)]
    requests: usize,

    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let report = route::run(route::Size { turns: args.turns, requests: args.requests })?;
    println!("{}", report.table());
    super::write_json(args.json.as_deref(), &report)
}
