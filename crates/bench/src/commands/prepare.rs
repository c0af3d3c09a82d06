use std::path::PathBuf;

use anyhow::Result;
use esker_bench::prepare;

/// Publishes a tree in a repository among other versions and packages.
///
/// The other versions have the same files with the same sizes, and share no content with it.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Directory to prepare
    #[arg(long, value_name = "DIR")]
    tree: PathBuf,

    /// Number of versions
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    versions: usize,

    /// Number of the version that equals the tree
    #[arg(long, value_name = "NUMBER", default_value_t = 2)]
    original: usize,

    /// Further folder to publish; may be repeated
    #[arg(long, value_name = "DIR")]
    package: Vec<PathBuf>,

    /// Rule for .cvmfsdirtab, in addition to /versions/* and /packages/*; may be repeated
    #[arg(long, value_name = "RULE")]
    nested: Vec<String>,

    /// Name of the repository
    #[arg(long, value_name = "NAME", default_value = "bench.example.org")]
    name: String,

    /// Output folder, with subfolders repo and keys
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Keep all versions as directories here too, to compare with: versions/NUMBER/NAME
    #[arg(long, value_name = "DIR")]
    directories: Option<PathBuf>,

    /// Path of the esker binary
    #[arg(long, value_name = "FILE", default_value = "esker")]
    binary: PathBuf,

    /// Folder for the temporary files of one version
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
