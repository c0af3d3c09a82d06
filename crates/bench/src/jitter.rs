//! Measures the noise that a mount makes for programs that compute: a loop of fixed work on each core.
//!
//! Each core runs a thread that repeats the same work and notes how long each repetition took; a repetition that takes
//! longer than the quickest was interrupted. Beside it stand the wake-ups of the daemon, which the kernel counts. Three
//! states take turns: no mount, a mount at rest, and a mount that answers lookups of a thread.

mod fixed_work;
pub(crate) mod mounted;
pub mod wakeups;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::conditions::Conditions;
use crate::jitter::fixed_work::Noise;
use crate::jitter::mounted::Mounted;
use crate::jitter::wakeups::Wakeups;
use crate::serve::Served;
use crate::statistics::{Estimate, median_of};
use crate::table;

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The repository's folder.
    pub repository: PathBuf,
    /// Public key of the repository.
    pub key: PathBuf,
    /// The esker binary.
    pub esker: String,
    /// Length of each round.
    pub window: Duration,
    /// Number of rounds of each state.
    pub repetitions: usize,
    /// Lookups of a busy mount in a second.
    pub lookups: u32,
}

/// State of the node during a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// No mount.
    Without,
    /// A mount that no program uses.
    Resting,
    /// A mount in which a thread looks up new names.
    Busy,
}

/// Results of a state.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// State of the node.
    pub state: State,
    /// Repetitions of the work in a round, of all cores.
    pub repetitions: Estimate,
    /// Time of the quickest repetition in microseconds.
    pub quickest_us: Estimate,
    /// Percentiles 50, 99, 99.9 and 100 of the delay of a repetition, in microseconds.
    pub delay_us: [Estimate; 4],
    /// Repetitions in a second and core that took over a tenth longer.
    pub outliers: Estimate,
    /// Share of the time lost to delays, in parts of a million.
    pub lost_ppm: Estimate,
    /// Wake-ups of the daemon in a second; none without a daemon.
    pub wakeups: Option<Estimate>,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Machine and programs.
    pub conditions: Conditions,
    /// Length of a round in seconds.
    pub seconds: f64,
    /// One row for each state.
    pub rows: Vec<Measured>,
}

#[derive(Default)]
struct Rounds {
    noise: Vec<Noise>,
    wakeups: Vec<f64>,
}

const STATES: [State; 3] = [State::Without, State::Resting, State::Busy];

/// Runs the measurement.
pub fn run(plan: &Plan, mut say: impl FnMut(&str)) -> Result<Report> {
    let conditions = Conditions::now(&[&plan.esker]);
    let served = Served::start(&plan.esker, &plan.repository)?;
    let mut rounds: [Rounds; 3] = Default::default();
    for repetition in 0..plan.repetitions {
        for (state, rounds) in STATES.into_iter().zip(&mut rounds) {
            say(&format!("{state:?}, round {} of {}", repetition + 1, plan.repetitions));
            rounds.add(state, plan, &served)?;
        }
    }
    let rows = STATES.into_iter().zip(rounds).map(|(state, rounds)| rounds.row(state)).collect();
    Ok(Report { conditions, seconds: plan.window.as_secs_f64(), rows })
}

impl Rounds {
    fn add(&mut self, state: State, plan: &Plan, served: &Served) -> Result<()> {
        let mounted = match state {
            State::Without => None,
            State::Resting | State::Busy => Some(Mounted::start(&plan.esker, &served.url, &plan.key)?),
        };
        let lookups = if state == State::Busy { plan.lookups } else { 0 };
        let busy = mounted.as_ref().filter(|_| lookups > 0).map(|mounted| mounted.look_up(lookups));
        let before = mounted.as_ref().map(|mounted| Wakeups::of(mounted.pid())).transpose()?;
        self.noise.push(fixed_work::measure(plan.window)?);
        if let (Some(mounted), Some(before)) = (&mounted, before) {
            let woken = Wakeups::of(mounted.pid())?.since(&before);
            self.wakeups.push(woken as f64 / plan.window.as_secs_f64());
        }
        drop(busy);
        Ok(())
    }

    fn row(self, state: State) -> Measured {
        let of =
            |value: &dyn Fn(&Noise) -> f64| median_of(&self.noise.iter().map(value).collect::<Vec<f64>>());
        Measured {
            state,
            repetitions: of(&|noise| noise.repetitions as f64),
            quickest_us: of(&|noise| noise.quickest_us),
            delay_us: [0, 1, 2, 3].map(|at| of(&|noise| noise.delay_us[at])),
            outliers: of(&|noise| noise.outliers),
            lost_ppm: of(&|noise| noise.lost_ppm),
            wakeups: (!self.wakeups.is_empty()).then(|| median_of(&self.wakeups)),
        }
    }
}

impl Report {
    /// Returns the results as a table for terminals.
    pub fn table(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| {
                let mut cells = vec![format!("{:?}", row.state).to_lowercase()];
                cells.push(format!("{:.1}", row.quickest_us.point));
                cells.extend(row.delay_us.iter().map(|delay| format!("{:.1}", delay.point)));
                cells.push(format!("{:.2}", row.outliers.point));
                cells.push(format!("{:.0}", row.lost_ppm.point));
                cells
                    .push(row.wakeups.as_ref().map_or("–".to_owned(), |woken| format!("{:.2}", woken.point)));
                cells
            })
            .collect();
        let header =
            ["mount", "work µs", "delay p50", "p99", "p99.9", "most", "outliers/s", "lost ppm", "wake-ups/s"];
        format!(
            "{}\nrounds of {:.0} s\n\n{}",
            self.conditions.line(),
            self.seconds,
            table::layout(&header, &rows)
        )
    }
}
