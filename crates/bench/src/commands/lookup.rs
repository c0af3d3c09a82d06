use std::path::PathBuf;

use anyhow::Result;
use esker_bench::lookup;

/// Measures lookups of paths in large catalogs.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Entries of each catalog
    #[arg(long, value_delimiter = ',', default_values_t = [1_000_000])]
    entries: Vec<usize>,

    /// Number of threads that run at the same time
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    threads: Vec<usize>,

    /// Lookups of a thread in a round
    #[arg(long, value_name = "COUNT", default_value_t = 300_000)]
    lookups: usize,

    /// Number of rounds
    #[arg(long, value_name = "COUNT", default_value_t = 7)]
    repetitions: usize,

    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let plan = lookup::Plan {
        entries: args.entries,
        threads: args.threads,
        lookups: args.lookups,
        repetitions: args.repetitions,
    };
    let report = lookup::run(&plan, |what| eprintln!("{what}"))?;
    print!("{}", report.table());
    super::write_json(args.json.as_deref(), &report)
}
