use std::path::PathBuf;

use anyhow::Result;
use esker_bench::costs;

/// Measures operations with a small and a large cache, catalog and number of mounts.
///
/// Example: esker-bench costs --json costs.json
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Path of the esker binary
    #[arg(long, value_name = "FILE", default_value = "esker")]
    binary: String,

    /// Objects of the large cache
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000)]
    objects: u64,

    /// Entries of the large catalog
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000)]
    entries: usize,

    /// Number of many mounts
    #[arg(long, value_name = "COUNT", default_value_t = 64)]
    mounts: usize,

    /// Number of turns of all sizes
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    repetitions: usize,

    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let plan = costs::Plan {
        esker: args.binary,
        objects: [100, args.objects],
        entries: [costs::FEWEST_ENTRIES, args.entries],
        mounts: [1, args.mounts],
        rounds: args.repetitions,
    };
    let report = costs::run(&plan, |what| eprintln!("{what}"))?;
    print!("{}", report.table());
    super::write_json(args.json.as_deref(), &report)
}
