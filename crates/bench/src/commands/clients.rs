use anyhow::Result;
use esker_bench::clients;

use super::proxied::ProxiedArgs;

/// Measures many clients that fetch through one squid, and a plain fetcher of the same bytes.
///
/// Example: esker-bench clients --repository /srv/cvmfs/sw.example.org --clients 50 --megabytes 40
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    proxied: ProxiedArgs,

    /// Maximum number of concurrent requests of a client [default: as many as a mount]
    #[arg(long, value_name = "COUNT")]
    requests: Option<usize>,

    /// Connections of the plain fetcher
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    connections: usize,
}

pub(crate) fn run(args: Args) -> Result<()> {
    args.proxied.run(args.connections, |plan, say| clients::run(plan, args.requests, say))
}
