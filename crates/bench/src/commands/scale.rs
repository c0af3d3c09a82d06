use std::path::PathBuf;

use anyhow::Result;
use esker_bench::scale;

/// Measures the same operation with a growing number of threads.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Kinds of operation
    #[arg(value_enum, value_name = "WORK", default_values = ["lookup", "read", "miss", "null"])]
    work: Vec<scale::Work>,

    /// Number of threads that run at the same time
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 16])]
    threads: Vec<usize>,

    /// Operations of a round; by default as many as take some tenths of a second
    #[arg(long, value_name = "COUNT")]
    operations: Option<usize>,

    /// Number of rounds
    #[arg(long, value_name = "COUNT", default_value_t = 11)]
    repetitions: usize,

    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let plan = scale::Plan {
        work: args.work,
        threads: args.threads,
        operations: args.operations,
        repetitions: args.repetitions,
    };
    let report = scale::run(&plan, |what| eprintln!("{what}"))?;
    print!("{}", report.table());
    super::write_json(args.json.as_deref(), &report)
}
