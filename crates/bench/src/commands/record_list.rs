use std::path::PathBuf;

use anyhow::{Context, Result};
use esker_bench::lists;

/// Records the files that a command opens below a directory; needs strace.
///
/// Example: esker-bench record-list --root /opt/python --out numpy.list -- {root}/bin/python3 -c "import numpy"
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Directory to record
    #[arg(long, value_name = "DIR")]
    root: PathBuf,

    /// Output file
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// The command; {root} stands for the directory
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let files = lists::record(&args.root, &args.command)?;
    std::fs::write(&args.out, lists::text(&files))
        .with_context(|| format!("can't write {}", args.out.display()))?;
    println!("{} files", files.len());
    Ok(())
}
