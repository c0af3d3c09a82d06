use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use esker_bench::jitter;

/// Measures the noise of a mount at rest and in use, with a loop of fixed work on each core.
///
/// Example: esker-bench jitter --repository /srv/cvmfs/sw.example.org --public-key sw.example.org.pub
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Folder of the repository
    #[arg(long, value_name = "DIR")]
    repository: PathBuf,

    /// Public key of the repository
    #[arg(long, value_name = "FILE")]
    public_key: PathBuf,

    /// Path of the esker binary
    #[arg(long, value_name = "FILE", default_value = "esker")]
    binary: String,

    /// Length of each round in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    seconds: u64,

    /// Number of rounds
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    repetitions: usize,

    /// Lookups in a second of the mount in use
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    lookups: u32,

    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let plan = jitter::Plan {
        repository: args.repository,
        key: args.public_key,
        esker: args.binary,
        window: Duration::from_secs(args.seconds),
        repetitions: args.repetitions,
        lookups: args.lookups,
    };
    let report = jitter::run(&plan, |what| eprintln!("{what}"))?;
    print!("{}", report.table());
    super::write_json(args.json.as_deref(), &report)
}
