use std::path::PathBuf;

use anyhow::Result;
use esker_bench::fetch;

/// Fetches objects through the store: on demand, ahead, and on demand while others are fetched ahead.
///
/// Example: esker-bench fetch http://127.0.0.1:8000/cvmfs/sw.example.org --folder repo/sw.example.org
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// URL of the repository
    url: String,

    /// Folder of the same repository, to choose objects from
    #[arg(long, value_name = "DIR")]
    folder: PathBuf,

    /// Number of objects
    #[arg(long, value_name = "COUNT", default_value_t = 3400)]
    count: usize,

    /// Maximum stored size of an object in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 10)]
    largest: u64,

    /// Number of objects that are demanded one after the other
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    probes: usize,

    /// Maximum number of objects in a batch request, if the server offers batches; 0 for no batches
    #[arg(long, value_name = "COUNT", default_value_t = 32)]
    batch: usize,

    /// Number of rounds
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    repetitions: usize,

    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let plan = fetch::Plan {
        url: args.url,
        folder: args.folder,
        count: args.count,
        largest: args.largest,
        probes: args.probes,
        batch: args.batch,
        repetitions: args.repetitions,
    };
    let report = fetch::run(&plan, |what| eprintln!("{what}"))?;
    print!("{}", report.table());
    super::write_json(args.json.as_deref(), &report)
}
