use std::path::PathBuf;
use std::thread::available_parallelism;

use anyhow::Result;
use esker_bench::pynamic;

/// Makes a tree of many shared libraries and a driver that loads them all, as Pynamic does; needs a C compiler.
///
/// Then: esker-bench startup --native DIR ... -- {root}/bin/driver
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Number of shared libraries
    #[arg(long, value_name = "COUNT", default_value_t = 495)]
    libraries: usize,

    /// Number of utility libraries, with which all others are linked [default: 215 of 495]
    #[arg(long, value_name = "COUNT")]
    utilities: Option<usize>,

    /// Functions of each, on average
    #[arg(long, value_name = "COUNT", default_value_t = 1850)]
    functions: usize,

    /// Output folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// The C compiler
    #[arg(long, value_name = "FILE", default_value = "cc")]
    compiler: String,

    /// Folder for temporary sources
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let plan = pynamic::Plan {
        libraries: args.libraries,
        utilities: args.utilities.unwrap_or(args.libraries * 215 / 495),
        functions: args.functions,
        out: args.out,
        compiler: args.compiler,
        jobs: available_parallelism().map_or(1, usize::from),
        scratch: args.scratch,
    };
    let made = pynamic::run(&plan, |what| eprintln!("{what}"))?;
    println!("{}", serde_json::to_string_pretty(&made)?);
    Ok(())
}
