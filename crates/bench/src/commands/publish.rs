use std::path::PathBuf;

use anyhow::Result;
use esker_bench::publish;

/// Measures publishing a tree, and tar with pigz for comparison.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Directory to measure
    #[arg(value_name = "DIR")]
    tree: PathBuf,

    /// Path of the esker binary
    #[arg(long, value_name = "FILE", default_value = "esker")]
    binary: PathBuf,

    /// Number of rounds
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    repetitions: usize,

    /// Folder for temporary repositories
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,

    /// Write the results as JSON to this file
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
