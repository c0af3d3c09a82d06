//! `esker-bench`: the measurements of docs/benchmarks.md.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program of its own, with a terminal to talk to"
)]

mod commands;

use anyhow::Result;
use clap::{Parser, Subcommand};
use commands::{
    backing, clients, costs, jitter, link, prepare, publisher, pynamic, record_list, scale, site, startup,
    storage,
};

/// Measures Esker and other methods for comparison.
#[derive(Parser)]
#[command(name = "esker-bench", version, max_term_width = 100)]
struct Bench {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Subcommand)]
enum Scenario {
    Startup(Box<startup::Args>),
    Publisher(publisher::Args),
    Storage(storage::Args),
    Scale(scale::Args),
    Costs(costs::Args),
    Jitter(jitter::Args),
    Link(link::Args),
    Prepare(prepare::Args),
    Pynamic(pynamic::Args),
    RecordList(record_list::Args),
    Clients(clients::Args),
    Site(site::Args),
    Backing(backing::Args),
}

fn main() -> Result<()> {
    match Bench::parse().scenario {
        Scenario::Startup(args) => startup::run(*args),
        Scenario::Publisher(args) => publisher::run(args),
        Scenario::Storage(args) => storage::run(args),
        Scenario::Scale(args) => scale::run(args),
        Scenario::Costs(args) => costs::run(args),
        Scenario::Jitter(args) => jitter::run(args),
        Scenario::Link(args) => link::run(&args),
        Scenario::Prepare(args) => prepare::run(args),
        Scenario::Pynamic(args) => pynamic::run(args),
        Scenario::RecordList(args) => record_list::run(&args),
        Scenario::Clients(args) => clients::run(args),
        Scenario::Site(args) => site::run(args),
        Scenario::Backing(args) => backing::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use esker_testkit::doc_snippets::fenced;

    use super::*;

    /// Parses all command lines in a document's boxes and returns the names of their scenarios. Running them takes
    /// minutes, an idle machine and root; parsing works everywhere.
    fn understood(document: &str) -> String {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(document));
        let mut scenarios = Vec::new();
        for fenced in fenced(&text.expect("a document")).iter().filter(|box_| box_.info.starts_with("sh")) {
            if let Some((_, rest)) = fenced.text.split_once("scripts/") {
                let name = rest.split_whitespace().next().expect("the name of a script");
                let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
                assert!(scripts.join(name).is_file(), "{document}:{}: no scripts/{name}", fenced.line);
                continue;
            }
            // A shell takes the words apart.
            let script = fenced.text.replace("esker-bench ", "printf '%s\\n' esker-bench ");
            let output = Command::new("sh").args(["-euc", &script]).output().expect("a shell");
            let words = String::from_utf8(output.stdout).expect("text");
            let parsed = Bench::try_parse_from(words.lines());
            let parsed = parsed.unwrap_or_else(|error| panic!("{document}:{}: {error}", fenced.line));
            scenarios.push(match parsed.scenario {
                Scenario::Startup(_) => "startup",
                Scenario::Publisher(_) => "publisher",
                Scenario::Storage(_) => "storage",
                Scenario::Scale(_) => "scale",
                Scenario::Costs(_) => "costs",
                Scenario::Jitter(_) => "jitter",
                Scenario::Link(_) => "link",
                Scenario::Prepare(_) => "prepare",
                Scenario::Pynamic(_) => "pynamic",
                Scenario::RecordList(_) => "record-list",
                Scenario::Clients(_) => "clients",
                Scenario::Site(_) => "site",
                Scenario::Backing(_) => "backing",
            });
        }
        scenarios.join(" ")
    }

    #[test]
    fn the_commands_of_the_guide_are_parsed() {
        let expected = "startup record-list startup backing startup pynamic startup startup \
                        startup prepare startup publisher scale link link prepare clients site \
                        jitter scale costs";
        assert_eq!(understood("../../docs/benchmarks.md"), expected);
    }

    #[test]
    fn commands_that_repeat_a_result_are_parsed() {
        assert!(understood("../../docs/performance.md").starts_with("startup"));
    }
}
