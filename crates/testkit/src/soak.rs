//! Runs tests repeatedly until a time limit.
//!
//! A soak is an ordinary test whose name starts with `soak_`. In `make test` each lasts twenty seconds; `make soak`
//! runs only these, for ten minutes each or `ESKER_SOAK_SECONDS`, and collects their reports. `ESKER_SOAK_ROUNDS`
//! demands a number of rounds, however long they take, and `ESKER_SOAK_SEED` repeats the random choices of an earlier
//! run.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Default duration of a soak in seconds.
const SECONDS: u64 = 20;

/// A soak in progress.
#[derive(Debug)]
pub struct Soak {
    name: &'static str,
    seed: u64,
    started: Instant,
    lasting: Duration,
    demanded: u64,
    rounds: u64,
}

impl Soak {
    /// Starts the soak with this name, which is also that of its report, and prints its seed.
    #[allow(clippy::print_stdout, reason = "whoever sees the test fail needs the seed")]
    pub fn begin(name: &'static str) -> Soak {
        let seed = number_from("ESKER_SOAK_SEED").unwrap_or_else(|| {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            since.map_or(0, |since| since.as_nanos() as u64)
        });
        println!("{name}: ESKER_SOAK_SEED={seed}");
        Soak {
            name,
            seed,
            started: Instant::now(),
            lasting: Duration::from_secs(number_from("ESKER_SOAK_SECONDS").unwrap_or(SECONDS)),
            demanded: number_from("ESKER_SOAK_ROUNDS").unwrap_or(0),
            rounds: 0,
        }
    }

    /// Counts a round; returns true if there is time for it.
    pub fn goes_on(&mut self) -> bool {
        self.goes_on_until(0)
    }

    /// Like [`Soak::goes_on`], for a soak with a minimum number of rounds.
    pub fn goes_on_until(&mut self, rounds: u64) -> bool {
        let more = self.rounds < rounds.max(self.demanded) || self.started.elapsed() < self.lasting;
        self.rounds += u64::from(more);
        more
    }

    /// Counts further rounds, for a soak whose round consists of several that are demanded.
    pub fn count(&mut self, rounds: u64) {
        self.rounds += rounds;
    }

    /// Returns the demanded number of rounds; 0 if none is demanded.
    pub fn demanded(&self) -> u64 {
        self.demanded
    }

    /// Returns the duration.
    pub fn lasting(&self) -> Duration {
        self.lasting
    }

    /// Returns the number of rounds begun.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Returns the seed of all random choices: it differs from run to run unless it is given.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Ends the soak: prints its facts, and writes them to the folder in `ESKER_SOAK_REPORTS`.
    #[allow(clippy::print_stdout, reason = "the report of a test")]
    pub fn finish(self, facts: &[(&str, &dyn Display)]) {
        let (rounds, seconds) = (self.rounds, self.started.elapsed().as_secs());
        assert!(rounds > 0, "the soak {} did nothing", self.name);
        let mut row = format!("| {} | {rounds} | {seconds} s | ", self.name);
        for (what, value) in facts {
            row.push_str(&format!("{what}: {value}; "));
        }
        row.push_str(&format!("seed: {} |\n", self.seed));
        println!("{row}");
        if let Some(folder) = std::env::var_os("ESKER_SOAK_REPORTS").map(PathBuf::from) {
            let file = folder.join(self.name);
            std::fs::write(&file, row).unwrap_or_else(|e| panic!("writing {}: {e}", file.display()));
        }
    }
}

/// Random numbers that a seed reproduces (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    /// Returns a number below `bound`, or 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.draw()) * bound as u128) >> 64) as usize
    }
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var_os(variable)?;
    let number = text.to_str().and_then(|text| text.parse().ok());
    Some(number.unwrap_or_else(|| panic!("{variable}={text:?} is no number")))
}
