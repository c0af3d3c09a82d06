use std::path::PathBuf;

use anyhow::Result;
use esker_bench::publisher::{self, Scenario};

/// Measures the publisher's side, beside the reference implementation if --reference names a build of it.
///
/// Example: esker-bench publisher /opt/python --reference /build/cvmfs --json publisher.json
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Directory for the first publish, such as one of 66,000 files; without it that part is left out
    #[arg(value_name = "DIR")]
    tree: Option<PathBuf>,

    /// Folder in which CernVM-FS was compiled, with cvmfs2 and cvmfs_swissknife; needs root
    #[arg(long, value_name = "DIR")]
    reference: Option<PathBuf>,

    /// Parts to measure [default: all]
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Scenario>,

    /// Entries of the repository in which one file changes
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000)]
    entries: usize,

    /// Entries of the repository with many revisions, and of that of the series
    #[arg(long, value_name = "COUNT", default_value_t = 200_000)]
    aged_entries: usize,

    /// Entries of each nested catalog
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    catalog: usize,

    /// Revisions of the repository that is checked and collected
    #[arg(long, value_name = "COUNT", default_value_t = 500)]
    revisions: usize,

    /// Files that each of these revisions changes
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    changed: usize,

    /// Revisions before the head that a collect keeps
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    kept: usize,

    /// Revisions of the series
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    series: usize,

    /// Number of rounds of each part but the series
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    repetitions: usize,

    /// Path of the esker binary
    #[arg(long, value_name = "FILE", default_value = "esker")]
    binary: PathBuf,

    /// Folder for temporary repositories
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,

    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let mut scenarios = args.only;
    if scenarios.is_empty() {
        scenarios = vec![Scenario::Change, Scenario::Collect, Scenario::Series];
        scenarios.extend(args.tree.is_some().then_some(Scenario::First));
    }
    let plan = publisher::Plan {
        esker: args.binary,
        reference: args.reference,
        scratch: args.scratch,
        scenarios,
        tree: args.tree,
        entries: args.entries,
        aged_entries: args.aged_entries,
        catalog: args.catalog,
        revisions: args.revisions,
        changed: args.changed,
        kept: args.kept,
        series: args.series,
        repetitions: args.repetitions,
    };
    let report = publisher::run(&plan, |text| eprintln!("{text}"))?;
    print!("{}", report.table());
    super::write_json(args.json.as_deref(), &report)
}
