use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use esker_bench::scale;
use esker_bench::scale::processes::{self, ProcessPlan};
use esker_bench::scale::site_model::Site;

/// Measures the same operation with a growing number of threads, or many processes on one mount.
///
/// With --repository, many processes read from a mount of it: the same files, and each its own. From what one node fetches
/// follows a model of a site of such nodes.
///
/// Example: esker-bench scale --repository /srv/cvmfs/sw.example.org --public-key sw.example.org.pub --processes 256
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Kinds of operation
    #[arg(value_enum, value_name = "WORK", default_values = ["lookup", "read", "miss", "null"])]
    work: Vec<scale::Work>,

    /// Number of threads that run at the same time
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 16])]
    threads: Vec<usize>,

    /// Operations of a round; by default as many as take some tenths of a second
    #[arg(long, value_name = "COUNT")]
    operations: Option<usize>,

    /// Number of rounds
    #[arg(long, value_name = "COUNT", default_value_t = 11)]
    repetitions: usize,

    /// Folder of a repository, for many processes on one mount in place of the operations
    #[arg(long, value_name = "DIR", requires = "public_key")]
    repository: Option<PathBuf>,

    #[command(flatten)]
    many: ManyArgs,

    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Options of processes on one mount, and of the model.
#[derive(clap::Args, Debug)]
struct ManyArgs {
    /// Public key of the repository
    #[arg(long, value_name = "FILE")]
    public_key: Option<PathBuf>,

    /// Path of the esker binary
    #[arg(long, value_name = "FILE", default_value = "esker")]
    binary: String,

    /// Number of processes
    #[arg(long, value_name = "COUNT", default_value_t = 256)]
    processes: usize,

    /// Files that each process reads
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    files: usize,

    /// Number of nodes of the modelled site
    #[arg(long, value_name = "COUNT", default_value_t = 1024)]
    nodes: u64,

    /// Number of proxies of the site
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    proxies: u64,

    /// Megabytes that a proxy sends in a second
    #[arg(long, value_name = "MB", default_value_t = 1250.0)]
    proxy_rate: f64,

    /// Throughput of a proxy, in requests per second
    #[arg(long, value_name = "COUNT", default_value_t = 10_000.0)]
    proxy_requests: f64,

    /// Megabytes that the link to the servers carries in a second
    #[arg(long, value_name = "MB", default_value_t = 125.0)]
    link_rate: f64,

    /// Requests that the servers answer in a second
    #[arg(long, value_name = "COUNT", default_value_t = 10_000.0)]
    server_requests: f64,
}

impl ManyArgs {
    fn site(&self) -> Site {
        Site {
            nodes: self.nodes,
            proxies: self.proxies,
            proxy_bytes: self.proxy_rate * 1e6,
            proxy_requests: self.proxy_requests,
            link_bytes: self.link_rate * 1e6,
            server_requests: self.server_requests,
            node_bytes: self.proxy_rate * 1e6,
        }
    }
}

fn run_many(repository: PathBuf, args: &ManyArgs, json: Option<&Path>) -> Result<()> {
    let plan = ProcessPlan {
        repository,
        key: args.public_key.clone().context("name the public key with --public-key FILE")?,
        esker: args.binary.clone(),
        processes: args.processes,
        files: args.files,
    };
    let report = processes::run(&plan, |what| eprintln!("{what}"))?;
    println!("{}", report.table());
    if let Some(node) = report.node() {
        print!("{}", args.site().table(node));
    }
    super::write_json(json, &report)
}

pub(crate) fn run(args: Args) -> Result<()> {
    if let Some(repository) = args.repository {
        return run_many(repository, &args.many, args.json.as_deref());
    }
    let plan = scale::Plan {
        work: args.work,
        threads: args.threads,
        operations: args.operations,
        repetitions: args.repetitions,
    };
    let report = scale::run(&plan, |what| eprintln!("{what}"))?;
    print!("{}", report.table());
    super::write_json(args.json.as_deref(), &report)
}
