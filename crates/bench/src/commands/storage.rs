use std::path::PathBuf;

use anyhow::Result;
use esker_bench::storage;

/// Measures publishing a tree to object storage on the loopback interface, beside a folder.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Directory to publish
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

    /// URL of a server that runs already [default: the server of the tests is started]
    #[arg(long, value_name = "URL", requires = "bucket")]
    endpoint: Option<String>,

    /// Bucket of that server, like s3://BUCKET/PREFIX
    #[arg(long, value_name = "URL", requires = "endpoint")]
    bucket: Option<String>,

    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let plan = storage::Plan {
        tree: args.tree,
        esker: args.binary,
        scratch: args.scratch,
        repetitions: args.repetitions,
        server: args.endpoint.zip(args.bucket),
    };
    let report = storage::run(&plan, |round| eprintln!("round {} of {}", round + 1, args.repetitions))?;
    print!("{}", report.table());
    super::write_json(args.json.as_deref(), &report)
}
