use anyhow::Result;
use esker_bench::site;

use super::proxied::ProxiedArgs;

/// Measures the cold start of many plain clients through `esker proxy` and through squid.
///
/// Example: esker-bench site --repository /srv/cvmfs/sw.example.org --clients 50
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    proxied: ProxiedArgs,

    /// Number of connections of each client
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    connections: usize,
}

pub(crate) fn run(args: Args) -> Result<()> {
    args.proxied.run(args.connections, |plan, say| site::run(plan, say))
}
