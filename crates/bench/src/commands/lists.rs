use std::path::PathBuf;

use anyhow::{Context, Result};
use esker_bench::lists::{self, Part};

/// Records which files below a directory a command opens; needs strace.
///
/// Example: esker-bench record-list --root /opt/python --out numpy.list -- {root}/bin/python3 -c "import numpy"
#[derive(clap::Args, Debug)]
pub(crate) struct Record {
    /// The directory
    #[arg(long, value_name = "DIR")]
    root: PathBuf,

    /// The list
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// The command; {root} stands for the directory
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Reads the files of recorded lists, each once.
///
/// A small process, of which many fit on a machine; for commands of `esker-bench startup`.
#[derive(clap::Args, Debug)]
pub(crate) struct Read {
    /// The directory that the lists are relative to
    #[arg(long, value_name = "DIR")]
    root: PathBuf,

    /// A recorded list; may be given more than once
    #[arg(long, value_name = "FILE", required = true)]
    list: Vec<PathBuf>,

    /// Which share to read, in an order of its own: 0/8 is the first of eight
    #[arg(long, value_name = "NUMBER/COUNT", default_value = "0/1")]
    part: Part,

    /// Of a hundred files, how many are in two parts
    #[arg(long, value_name = "PERCENT", default_value_t = 10)]
    shared: usize,
}

pub(crate) fn record(args: &Record) -> Result<()> {
    let files = lists::record(&args.root, &args.command)?;
    std::fs::write(&args.out, lists::text(&files))
        .with_context(|| format!("can't write {}", args.out.display()))?;
    println!("{} files", files.len());
    Ok(())
}

pub(crate) fn read(args: &Read) -> Result<()> {
    let files = lists::union(&args.list)?;
    let amount = lists::read(&args.root, &lists::deal(&files, args.part, args.shared))?;
    println!("{} files, {} bytes", amount.files, amount.bytes);
    Ok(())
}
