use std::path::PathBuf;

use anyhow::Result;
use esker_bench::publish;

/// Publishes a tree, beside tar and pigz.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The tree
    #[arg(value_name = "DIR")]
    tree: PathBuf,

    /// The binary
    #[arg(long, value_name = "FILE", default_value = "esker")]
    binary: PathBuf,

    /// Rounds
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    repetitions: usize,

    /// Where repositories are made and removed again
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,

    /// Write everything that was measured
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let plan = publish::Plan {
        tree: args.tree,
        esker: args.binary,
        scratch: args.scratch,
        repetitions: args.repetitions,
    };
    let report = publish::run(&plan, |round| eprintln!("round {} of {}", round + 1, args.repetitions))?;
    print!("{}", report.table());
    super::write_json(args.json.as_deref(), &report)
}
