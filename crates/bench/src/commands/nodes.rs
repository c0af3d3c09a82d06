use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use esker_bench::nodes::{self, Bounds, Site};
use esker_bench::startup::report::{Report, Results};
use serde::Serialize;

/// Models many nodes that start the program of a measurement from one parallel file system.
///
/// Takes the runs with an empty page cache that read a disk: the first root is a tree of files on the file system, the others are
/// images, single files on it. All rates are of the file system that is imagined; look at yours.
///
/// Example: esker-bench nodes images.json --nodes 1024 --stripes 8
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Result file of `esker-bench startup --states cold --json FILE`
    #[arg(value_name = "FILE")]
    measured: PathBuf,

    /// Number of nodes that start at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 1024)]
    nodes: u64,

    /// Object servers of the file system
    #[arg(long, value_name = "COUNT", default_value_t = 16)]
    servers: u64,

    /// Number of object servers that store parts of an image
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    stripes: u64,

    /// Bandwidth of an object server in GB/s
    #[arg(long, value_name = "GB/S", default_value_t = 5.0)]
    server_bandwidth: f64,

    /// Requests that an object server answers in a second
    #[arg(long, value_name = "RATE", default_value_t = 50_000.0)]
    server_requests: f64,

    /// Names that all metadata servers together look up in a second
    #[arg(long, value_name = "RATE", default_value_t = 100_000.0)]
    metadata: f64,

    /// Bandwidth of a node in GB/s
    #[arg(long, value_name = "GB/S", default_value_t = 12.5)]
    link: f64,

    /// Number of names and listings that the program requests, if no client in FILE has counted them
    #[arg(long, value_name = "COUNT")]
    names: Option<f64>,

    /// Write the result as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Model<'a> {
    site: Site,
    bounds: &'a [Bounds],
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let site = Site {
        nodes: args.nodes,
        servers: args.servers,
        stripes: args.stripes,
        server_bytes: args.server_bandwidth * 1e9,
        server_requests: args.server_requests,
        metadata: args.metadata,
        node_bytes: args.link * 1e9,
    };
    let rates = [site.server_bytes, site.server_requests, site.metadata, site.node_bytes];
    let possible = rates.iter().all(|rate| *rate > 0.0) && site.servers > 0 && site.stripes > 0;
    ensure!(possible, "a file system needs servers, and rates above 0");
    let name = args.measured.display();
    let text = std::fs::read_to_string(&args.measured).with_context(|| format!("can't read {name}"))?;
    let results: Results = serde_json::from_str(&text).with_context(|| format!("{name} is no result"))?;
    let report = Report::from(results);
    let names = args.names.or_else(|| nodes::names(&report.rows)).with_context(|| {
        format!("no client in {name} has counted names: add one that counts, or say --names COUNT")
    })?;
    let bounds: Vec<Bounds> =
        nodes::measured(&report.rows, names).into_iter().map(|one| site.bounds(one)).collect();
    ensure!(
        !bounds.is_empty(),
        "{name} has no cold runs that tell what the disk read: measure --states cold"
    );
    print!("{}\n{}", site.assumptions(), nodes::table(&bounds));
    super::write_json(args.json.as_deref(), &Model { site, bounds: &bounds })
}
