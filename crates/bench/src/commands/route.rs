use std::path::PathBuf;

use anyhow::Result;
use esker_bench::route;

/// Fetches a small object through the choice of a way and straight from its server, in turns.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Pairs of turns
    #[arg(long, default_value_t = 40)]
    turns: usize,

    /// Requests in a turn
    #[arg(long, default_value_t = 500)]
    requests: usize,

    /// Write everything that was measured
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let report = route::run(route::Size { turns: args.turns, requests: args.requests })?;
    println!("{}", report.table());
    super::write_json(args.json.as_deref(), &report)
}
