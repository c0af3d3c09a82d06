use std::path::PathBuf;

use anyhow::Result;
use esker_bench::clients;

/// Lets many clients fetch at once through one squid, beside a plain fetcher of the same bytes.
///
/// Example: esker-bench clients --repository /srv/cvmfs/sw.example.org --clients 50
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The repository's folder, or one that holds it
    #[arg(long, value_name = "DIR")]
    repository: PathBuf,

    /// How many clients
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    clients: usize,

    /// Megabytes that each of them fetches
    #[arg(long, value_name = "MB", default_value_t = 40)]
    megabytes: u64,

    /// Requests that each client makes at once at most; by default as many as a mount
    #[arg(long, value_name = "COUNT")]
    requests: Option<usize>,

    /// Connections of the plain fetcher
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    connections: usize,

    /// Rounds
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    repetitions: usize,

    /// The binary
    #[arg(long, value_name = "FILE", default_value = "esker")]
    binary: String,

    /// The proxy's
    #[arg(long, value_name = "FILE", default_value = "/usr/sbin/squid")]
    squid: PathBuf,

    /// Write everything that was measured
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
