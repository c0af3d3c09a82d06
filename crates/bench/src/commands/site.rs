use std::path::PathBuf;

use anyhow::Result;
use esker_bench::site;

/// Measures the cold start of many plain clients through `esker proxy` and through squid.
///
/// Example: esker-bench site --repository /srv/cvmfs/sw.example.org --clients 50
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Folder of the repository, or a folder that contains it
    #[arg(long, value_name = "DIR")]
    repository: PathBuf,

    /// Number of clients
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    clients: usize,

    /// Number of connections of each client
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    connections: usize,

    /// Megabytes that each client fetches
    #[arg(long, value_name = "MB", default_value_t = 20)]
    megabytes: u64,

    /// Number of rounds
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    repetitions: usize,

    /// Path of the esker binary
    #[arg(long, value_name = "FILE", default_value = "esker")]
    binary: String,

    /// Path of the squid binary
    #[arg(long, value_name = "FILE", default_value = "/usr/sbin/squid")]
    squid: PathBuf,

    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let plan = site::Plan {
        repository: args.repository,
        clients: args.clients,
        connections: args.connections,
        bytes: args.megabytes * 1_000_000,
        repetitions: args.repetitions,
        esker: args.binary,
        squid: args.squid,
    };
    let report = site::run(&plan, |what| eprintln!("{what}"))?;
    print!("{}", report.table());
    super::write_json(args.json.as_deref(), &report)
}
