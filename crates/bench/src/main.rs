//! `esker-bench`: what docs/benchmarks.md describes.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program of its own, with a terminal to talk to"
)]

mod commands;

use anyhow::Result;
use clap::{Parser, Subcommand};
use commands::{clients, fetch, link, lookup, prepare, publish, record_list, scale, startup};

/// Measures Esker beside other ways to the same thing.
#[derive(Parser)]
#[command(name = "esker-bench", version, max_term_width = 100)]
struct Bench {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Subcommand)]
enum Scenario {
    Startup(Box<startup::Args>),
    Publish(publish::Args),
    Lookup(lookup::Args),
    Scale(scale::Args),
    Fetch(fetch::Args),
    Link(link::Args),
    Prepare(prepare::Args),
    RecordList(record_list::Args),
    Clients(clients::Args),
}

fn main() -> Result<()> {
    match Bench::parse().scenario {
        Scenario::Startup(args) => startup::run(*args),
        Scenario::Publish(args) => publish::run(args),
        Scenario::Lookup(args) => lookup::run(args),
        Scenario::Scale(args) => scale::run(args),
        Scenario::Fetch(args) => fetch::run(args),
        Scenario::Link(args) => link::run(&args),
        Scenario::Prepare(args) => prepare::run(args),
        Scenario::RecordList(args) => record_list::run(&args),
        Scenario::Clients(args) => clients::run(args),
    }
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
                Scenario::Scale(_) => "scale",
                Scenario::Fetch(_) => "fetch",
                Scenario::Link(_) => "link",
                Scenario::Prepare(_) => "prepare",
                Scenario::RecordList(_) => "record-list",
                Scenario::Clients(_) => "clients",
            });
        }
        let expected = "startup record-list startup publish lookup scale fetch link link prepare clients";
        assert_eq!(scenarios.join(" "), expected);
    }
}
