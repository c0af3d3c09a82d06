//! Tests that go on for as long as they are let.
//!
//! A soak is an ordinary test whose name starts with `soak_`. In `make test` each lasts twenty seconds; `make soak`
//! runs only these, for ten minutes each or what `ESKER_SOAK_SECONDS` says, and collects their reports.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Without another word a soak lasts this long.
const SECONDS: u64 = 20;

/// A soak under way.
#[derive(Debug)]
pub struct Soak {
    name: &'static str,
    started: Instant,
    lasting: Duration,
    rounds: u64,
}

impl Soak {
    /// Starts the clock of the soak with this name, which is also its report's.
    pub fn begin(name: &'static str) -> Soak {
        let seconds = match std::env::var("ESKER_SOAK_SECONDS") {
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("ESKER_SOAK_SECONDS={text:?} is no number")),
            Err(_) => SECONDS,
        };
        Soak { name, started: Instant::now(), lasting: Duration::from_secs(seconds), rounds: 0 }
    }

    /// Counts a round and tells whether there is time for it.
    pub fn goes_on(&mut self) -> bool {
        self.goes_on_until(0)
    }

    /// The same for a soak that needs a number of rounds, however long they take.
    pub fn goes_on_until(&mut self, rounds: u64) -> bool {
        let more = self.rounds < rounds || self.started.elapsed() < self.lasting;
        self.rounds += u64::from(more);
        more
    }

    /// Returns how many rounds were begun.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Returns a seed that differs from run to run, for the first line of a random test's output.
    pub fn seed(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| since.as_nanos() as u64)
    }

    /// Ends it: says what was done, and writes it to the folder that `ESKER_SOAK_REPORTS` names.
    #[allow(clippy::print_stdout, reason = "the report of a test")]
    pub fn finish(self, facts: &[(&str, &dyn Display)]) {
        let (rounds, seconds) = (self.rounds, self.started.elapsed().as_secs());
        assert!(rounds > 0, "the soak {} did nothing", self.name);
        let mut row = format!("| {} | {rounds} | {seconds} s | ", self.name);
        let words: Vec<String> = facts.iter().map(|(what, value)| format!("{what}: {value}")).collect();
        row.push_str(&words.join("; "));
        row.push_str(" |\n");
        println!("{row}");
        if let Some(folder) = std::env::var_os("ESKER_SOAK_REPORTS").map(PathBuf::from) {
            let file = folder.join(self.name);
            std::fs::write(&file, row).unwrap_or_else(|e| panic!("writing {}: {e}", file.display()));
        }
    }
}
