use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use esker_bench::conditions::Conditions;
use esker_bench::link::Profile;
use esker_bench::serve::Served;
use esker_bench::startup::report::{Report, Results};
use esker_bench::startup::roots::{Client, Clients, Root};
use esker_bench::startup::{self, State};

/// Starts a command from a directory and from mounts, cold, warm and hot.
///
/// Example: esker-bench startup --native /opt/python --esker http://server/cvmfs/sw.example.org
/// --public-key sw.example.org.pub --inside python -- {root}/bin/python3 -B -c "import numpy"
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Directory to compare the others with [default: the first of the others]
    #[arg(long, value_name = "DIR", required_unless_present_any = ["esker", "serve", "clients"])]
    native: Option<PathBuf>,

    /// Compare a copy of it in memory too
    #[arg(long, requires = "native")]
    tmpfs: bool,

    /// URL of the repository that Esker mounts
    #[arg(long, value_name = "URL", requires = "public_key")]
    esker: Option<String>,

    /// Folder of the repository, which is served on loopback during the measurement
    #[arg(long, value_name = "DIR", requires = "public_key", conflicts_with = "esker")]
    serve: Option<PathBuf>,

    /// Master public key of the repository
    #[arg(long, value_name = "FILE")]
    public_key: Option<PathBuf>,

    /// Options of a mount of Esker to measure; may be given more than once
    #[arg(long, value_name = "OPTIONS", default_values = ["", "--fixed"], allow_hyphen_values = true)]
    variant: Vec<String>,

    /// Options that disable the prefetches of an Esker mount, to find out which objects are needed
    #[arg(long, value_name = "OPTIONS", default_value = "", allow_hyphen_values = true)]
    without_prefetch: String,

    /// Emulated distance of the server in cold runs: proxy, local, continent, ocean
    #[arg(long, value_name = "PROFILE", value_delimiter = ',')]
    link: Vec<Profile>,

    /// Number of processes that run the command at the same time
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_values_t = [1])]
    processes: Vec<usize>,

    /// Path of the tree in the repository
    #[arg(long, value_name = "PATH", default_value = ".")]
    inside: PathBuf,

    /// Path of the esker binary
    #[arg(long, value_name = "FILE", default_value = "esker")]
    binary: String,

    /// File that describes other clients, see docs/benchmarks.md
    #[arg(long, value_name = "FILE")]
    clients: Option<PathBuf>,

    /// Names of the clients to measure [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "clients")]
    only: Vec<String>,

    /// States to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["cold", "warm", "hot"])]
    states: Vec<State>,

    /// Runs of each root in each state
    #[arg(long, value_name = "COUNT", default_value_t = 11)]
    repetitions: usize,

    /// Run the command once, unmeasured, before each hot run: for kernels that reclaim idle pages
    #[arg(long)]
    once_before: bool,

    /// Folder on a disk for mountpoints, caches and output of the command
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,

    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Command; {root} is replaced by the directory, {process} by number and count of the process (0/8),
    /// {scratch} by an empty folder
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    startup::end_on_signals()?;
    std::fs::create_dir_all(&args.scratch)
        .with_context(|| format!("can't make {}", args.scratch.display()))?;
    let mut roots = Vec::new();
    if let Some(native) = &args.native {
        roots.push(Root::directory(native)?);
        if args.tmpfs {
            roots.push(Root::in_memory(native)?);
        }
    }
    let served = args.serve.as_deref().map(|folder| Served::start(&args.binary, folder)).transpose()?;
    let url = served.as_ref().map(|served| served.url.clone()).or(args.esker);
    let esker = |name: &str, options: &str| {
        let key = args.public_key.as_deref().context("a repository's public key is needed")?;
        Root::of_client(esker_client(name, &args.binary, options, key, &args.inside)?, &args.scratch)
    };
    if url.is_some() {
        for options in &args.variant {
            roots.push(esker(format!("esker {options}").trim(), options)?);
        }
    }
    let clients = args.clients.as_deref().map(Clients::read).transpose()?.unwrap_or_default().client;
    let chosen = |client: &Client| args.only.is_empty() || args.only.contains(&client.name);
    for client in clients.into_iter().filter(chosen) {
        roots.push(Root::of_client(client, &args.scratch)?);
    }
    let mut conditions = Conditions::now(&[&args.binary]);
    for root in &roots {
        conditions.versions.extend(root.about()?);
    }
    if conditions.load > 0.5 * conditions.cores as f64 {
        eprintln!("the machine is busy (load {}); what follows says little", conditions.load);
    }
    let plan = startup::Plan {
        states: args.states,
        links: args.link,
        processes: args.processes,
        command: args.command,
        repetitions: args.repetitions,
        once_before: args.once_before,
        url,
        scratch: args.scratch.clone(),
    };
    let (mut needed, mut held) = (None, None);
    if !plan.links.is_empty() && plan.states.contains(&State::Cold) {
        eprintln!("finding out what is needed");
        needed = Some(startup::needed(&mut esker("without prefetch", &args.without_prefetch)?, &plan)?);
        if let Some(folder) = &args.serve {
            let files = held.insert(startup::hold_what_was_served(folder)?).files();
            conditions.versions.push(format!("the server has {files} files in memory"));
        }
    }
    let series = startup::run(&mut roots, &plan, |what| eprintln!("{what}"))?;
    drop(held);
    let report = Report::from(Results { conditions, command: plan.command, needed, series });
    print!("{}", report.table());
    super::write_json(args.json.as_deref(), &report)
}

/// Returns the client's description that mounts with Esker itself, in the form of all clients.
fn esker_client(name: &str, binary: &str, options: &str, key: &Path, inside: &Path) -> Result<Client> {
    let key = key.canonicalize().with_context(|| format!("can't find {}", key.display()))?;
    let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
    let Some(key) = key.to_str() else { bail!("{} isn't text", key.display()) };
    let esker = quoted(binary);
    Ok(Client {
        name: name.into(),
        mount: format!(
            "{esker} mount '{{url}}' {{mountpoint}} --public-key {} --cache {{cache}} {options}",
            quoted(key)
        ),
        unmount: format!("{esker} umount {{mountpoint}}"),
        // The folder is exchanged anyway.
        drop_cache: "true".into(),
        status: Some(format!("{esker} status --json {{mountpoint}}")),
        about: None,
        inside: inside.to_owned(),
    })
}
