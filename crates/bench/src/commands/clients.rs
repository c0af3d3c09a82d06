use std::path::PathBuf;

use anyhow::Result;
use esker_bench::clients;

/// Measures many clients that fetch through one squid, and a plain fetcher of the same bytes.
///
/// Example: esker-bench clients --repository /srv/cvmfs/sw.example.org --clients 50
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Folder of the repository, or a folder that contains it
    #[arg(long, value_name = "DIR")]
    repository: PathBuf,

    /// Number of clients
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    clients: usize,

    /// Megabytes that each client fetches
    #[arg(long, value_name = "MB", default_value_t = 40)]
    megabytes: u64,

    /// Maximum number of concurrent requests of a client [default: as many as a mount]
    #[arg(long, value_name = "COUNT")]
    requests: Option<usize>,

    /// Connections of the plain fetcher
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    connections: usize,

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
    let plan = clients::Plan {
        repository: args.repository,
        clients: args.clients,
        bytes: args.megabytes * 1_000_000,
        requests: args.requests,
        connections: args.connections,
        repetitions: args.repetitions,
        esker: args.binary,
        squid: args.squid,
    };
    let report = clients::run(&plan, |what| eprintln!("{what}"))?;
    print!("{}", report.table());
    super::write_json(args.json.as_deref(), &report)
}
