use std::path::PathBuf;

use anyhow::Result;
use esker_bench::prepare;

/// Publishes a tree among other versions of it and other packages, so that it is a small part of a repository.
///
/// The other versions have the same files with the same sizes, and share no content with it.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The tree
    #[arg(long, value_name = "DIR")]
    tree: PathBuf,

    /// Versions of it
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    versions: usize,

    /// Which of them is the tree as it is
    #[arg(long, value_name = "NUMBER", default_value_t = 2)]
    original: usize,

    /// A folder to publish beside it; may be given more than once
    #[arg(long, value_name = "DIR")]
    package: Vec<PathBuf>,

    /// A rule of .cvmfsdirtab beside /versions/* and /packages/*; may be given more than once
    #[arg(long, value_name = "RULE")]
    nested: Vec<String>,

    /// Name of the repository
    #[arg(long, value_name = "NAME", default_value = "bench.example.org")]
    name: String,

    /// Where it is made: repo and keys in this folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Keep all versions as directories here too, to compare with: versions/NUMBER/NAME
    #[arg(long, value_name = "DIR")]
    directories: Option<PathBuf>,

    /// The binary
    #[arg(long, value_name = "FILE", default_value = "esker")]
    binary: PathBuf,

    /// Where one version at a time is written and removed again
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let plan = prepare::Plan {
        tree: args.tree,
        versions: args.versions,
        original: args.original,
        packages: args.package,
        nested: args.nested,
        name: args.name,
        out: args.out,
        esker: args.binary,
        scratch: args.scratch,
        directories: args.directories,
    };
    let prepared = prepare::run(&plan, |what| eprintln!("{what}"))?;
    println!("{}", serde_json::to_string_pretty(&prepared)?);
    Ok(())
}
