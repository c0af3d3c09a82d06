//! `esker-bench`: what docs/benchmarks.md describes.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program of its own, with a terminal to talk to"
)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use esker_bench::conditions::Conditions;
use esker_bench::link::{self, Profile};
use esker_bench::startup::report::Report;
use esker_bench::startup::roots::{Client, Clients, Root};
use esker_bench::startup::{self, State};
use esker_bench::{lookup, prepare, publish};
use serde::Serialize;

/// Measures Esker beside other ways to the same thing.
#[derive(Parser)]
#[command(name = "esker-bench", version, max_term_width = 100)]
struct Bench {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Subcommand)]
enum Scenario {
    Startup(Startup),
    Publish(Publish),
    Lookup(Lookup),
    Link(Link),
    Prepare(Prepare),
}

/// Starts a command from a directory and from mounts, cold, warm and hot.
///
/// Example: esker-bench startup --native /opt/python --esker http://server/cvmfs/sw.example.org
/// --public-key sw.example.org.pub --inside python -- {root}/bin/python3 -B -c "import numpy"
#[derive(clap::Args)]
struct Startup {
    /// The directory that the others are compared with
    #[arg(long, value_name = "DIR")]
    native: PathBuf,

    /// Compare a copy of it in memory too
    #[arg(long)]
    tmpfs: bool,

    /// URL of the repository that Esker mounts
    #[arg(long, value_name = "URL", requires = "public_key")]
    esker: Option<String>,

    /// Its master public key
    #[arg(long, value_name = "FILE")]
    public_key: Option<PathBuf>,

    /// Where in the repository the tree lies
    #[arg(long, value_name = "PATH", default_value = ".")]
    inside: PathBuf,

    /// The binary
    #[arg(long, value_name = "FILE", default_value = "esker")]
    binary: String,

    /// Other clients, as docs/benchmarks.md describes them
    #[arg(long, value_name = "FILE")]
    clients: Option<PathBuf>,

    /// Which states
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["cold", "warm", "hot"])]
    states: Vec<State>,

    /// Runs of each root in each state
    #[arg(long, value_name = "COUNT", default_value_t = 11)]
    repetitions: usize,

    /// Where mountpoints and caches are made, on a disk
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,

    /// Write everything that was measured
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Draw it
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// The command; {root} stands for the directory
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Publishes a tree, beside tar and pigz.
#[derive(clap::Args)]
struct Publish {
    /// The tree
    #[arg(value_name = "DIR")]
    tree: PathBuf,

    /// The binary
    #[arg(long, value_name = "FILE", default_value = "esker")]
    binary: PathBuf,

    /// Rounds
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    repetitions: usize,

    /// Where repositories are made and removed again
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,

    /// Write everything that was measured
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Looks paths up in large catalogs.
#[derive(clap::Args)]
struct Lookup {
    /// Entries of each catalog
    #[arg(long, value_delimiter = ',', default_values_t = [1_000_000])]
    entries: Vec<usize>,

    /// Threads at once
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    threads: Vec<usize>,

    /// Lookups of a thread in a round
    #[arg(long, value_name = "COUNT", default_value_t = 300_000)]
    lookups: usize,

    /// Rounds
    #[arg(long, value_name = "COUNT", default_value_t = 7)]
    repetitions: usize,

    /// Write everything that was measured
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Puts a server further away: a relay with distance, a bottleneck and losses.
///
/// Example: esker-bench link --to 127.0.0.1:8000 --profile ocean
#[derive(clap::Args)]
struct Link {
    /// The server
    #[arg(long, value_name = "ADDR:PORT", required_unless_present = "check")]
    to: Option<SocketAddr>,

    /// How far: proxy, local, continent or ocean
    #[arg(long)]
    profile: Profile,

    /// Where clients connect to
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// Compare what the link promises with what it does, on loopback
    #[arg(long, conflicts_with = "to")]
    check: bool,

    /// Rounds of the comparison
    #[arg(long, value_name = "COUNT", default_value_t = 11, requires = "check")]
    repetitions: usize,

    /// Write everything that was measured
    #[arg(long, value_name = "FILE", requires = "check")]
    json: Option<PathBuf>,
}

/// Publishes a tree among other versions of it and other packages, so that it is a small part of a repository.
///
/// The other versions have the same files with the same sizes, and share no content with it.
#[derive(clap::Args)]
struct Prepare {
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

    /// The binary
    #[arg(long, value_name = "FILE", default_value = "esker")]
    binary: PathBuf,

    /// Where one version at a time is written and removed again
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,
}

fn main() -> Result<()> {
    match Bench::parse().scenario {
        Scenario::Startup(args) => run_startup(args),
        Scenario::Publish(args) => {
            let plan = publish::Plan {
                tree: args.tree,
                esker: args.binary,
                scratch: args.scratch,
                repetitions: args.repetitions,
            };
            let report =
                publish::run(&plan, |round| eprintln!("round {} of {}", round + 1, args.repetitions))?;
            print!("{}", report.table());
            write_json(args.json.as_deref(), &report)
        }
        Scenario::Lookup(args) => {
            let plan = lookup::Plan {
                entries: args.entries,
                threads: args.threads,
                lookups: args.lookups,
                repetitions: args.repetitions,
            };
            let report = lookup::run(&plan, |what| eprintln!("{what}"))?;
            print!("{}", report.table());
            write_json(args.json.as_deref(), &report)
        }
        Scenario::Link(args) => run_link(&args),
        Scenario::Prepare(args) => run_prepare(args),
    }
}

fn run_link(args: &Link) -> Result<()> {
    let Some(to) = args.to else {
        let report = link::check(args.profile, args.repetitions)?;
        print!("{}", report.table());
        return write_json(args.json.as_deref(), &report);
    };
    let link = link::Link::start(args.profile, to, args.listen)
        .with_context(|| format!("can't listen at {}", args.listen))?;
    println!("{} is {} behind {}", to, link.profile(), link.address());
    link.wait().context("the link ended")
}

fn run_prepare(args: Prepare) -> Result<()> {
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
    };
    let prepared = prepare::run(&plan, |what| eprintln!("{what}"))?;
    println!("{}", serde_json::to_string_pretty(&prepared)?);
    Ok(())
}

fn run_startup(args: Startup) -> Result<()> {
    let mut roots = vec![Root::directory(&args.native)?];
    if args.tmpfs {
        roots.push(Root::in_memory(&args.native)?);
    }
    if let (Some(url), Some(key)) = (&args.esker, &args.public_key) {
        for (name, options) in [("esker", ""), ("esker --fixed", "--fixed")] {
            let client = esker_client(name, &args.binary, [url, options], key, &args.inside)?;
            roots.push(Root::of_client(client, &args.scratch)?);
        }
    }
    for client in args.clients.as_deref().map(Clients::read).transpose()?.unwrap_or_default().client {
        roots.push(Root::of_client(client, &args.scratch)?);
    }
    let conditions = Conditions::now(&[&args.binary]);
    if conditions.load > 0.5 * conditions.cores as f64 {
        eprintln!("the machine is busy (load {}); what follows says little", conditions.load);
    }
    let series =
        startup::run(&mut roots, &args.states, &args.command, args.repetitions, |what| eprintln!("{what}"))?;
    let report = Report::new(conditions, args.command, series);
    print!("{}", report.table());
    if let Some(path) = &args.svg {
        std::fs::write(path, report.svg()).with_context(|| format!("can't write {}", path.display()))?;
    }
    write_json(args.json.as_deref(), &report)
}

/// How Esker itself is mounted, in the same words as any other client.
fn esker_client(name: &str, binary: &str, what: [&str; 2], key: &Path, inside: &Path) -> Result<Client> {
    let [url, options] = what;
    let key = key.canonicalize().with_context(|| format!("can't find {}", key.display()))?;
    let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
    let Some(key) = key.to_str() else { bail!("{} isn't text", key.display()) };
    let esker = quoted(binary);
    Ok(Client {
        name: name.into(),
        mount: format!(
            "{esker} mount {} {{mountpoint}} --public-key {} --cache {{cache}} {options}",
            quoted(url),
            quoted(key)
        ),
        unmount: format!("{esker} umount {{mountpoint}}"),
        drop_cache: "find {cache} -mindepth 1 -delete".into(),
        status: Some(format!("{esker} status --json {{mountpoint}}")),
        inside: inside.to_owned(),
    })
}

fn write_json(path: Option<&Path>, report: &impl Serialize) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    std::fs::write(path, text).with_context(|| format!("can't write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use esker_testkit::guide::fenced;

    use super::*;

    /// Running them takes minutes, an idle machine and root; that they are understood can be seen anywhere.
    #[test]
    fn the_commands_of_the_guide_are_understood() {
        let guide = include_str!("../../../docs/benchmarks.md");
        let mut scenarios = Vec::new();
        for fenced in fenced(guide).iter().filter(|fenced| fenced.info.starts_with("sh")) {
            // A shell takes the words apart.
            let script = fenced.text.replace("esker-bench ", "printf '%s\\n' esker-bench ");
            let output = Command::new("sh").args(["-euc", &script]).output().expect("a shell");
            let words = String::from_utf8(output.stdout).expect("text");
            let parsed = Bench::try_parse_from(words.lines());
            let parsed = parsed.unwrap_or_else(|error| panic!("docs/benchmarks.md:{}: {error}", fenced.line));
            scenarios.push(match parsed.scenario {
                Scenario::Startup(_) => "startup",
                Scenario::Publish(_) => "publish",
                Scenario::Lookup(_) => "lookup",
                Scenario::Link(_) => "link",
                Scenario::Prepare(_) => "prepare",
            });
        }
        assert_eq!(scenarios, ["startup", "publish", "lookup", "link", "link", "prepare"]);
    }
}
