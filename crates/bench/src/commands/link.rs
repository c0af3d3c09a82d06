use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use esker_bench::link::{self, Profile};

/// Emulates a distant server: relays connections with delay, a bottleneck and losses.
///
/// Example: esker-bench link --to 127.0.0.1:8000 --profile ocean
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Address of the server
    #[arg(long, value_name = "ADDR:PORT", required_unless_present = "check")]
    to: Option<SocketAddr>,

    /// Emulated distance: proxy, local, continent or ocean
    #[arg(long)]
    profile: Profile,

    /// Address to listen at
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// Compare the link's measured times with its model, on loopback
    #[arg(long, conflicts_with = "to")]
    check: bool,

    /// Rounds of the comparison
    #[arg(long, value_name = "COUNT", default_value_t = 11, requires = "check")]
    repetitions: usize,

    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE", requires = "check")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let Some(to) = args.to else {
        let report = link::check(args.profile, args.repetitions)?;
        print!("{}", report.table());
        return super::write_json(args.json.as_deref(), &report);
    };
    let link = link::Link::start(args.profile, to, args.listen)
        .with_context(|| format!("can't listen at {}", args.listen))?;
    println!("{} is {} behind {}", to, link.profile(), link.address());
    link.wait().context("the link ended")
}
