//! How long a command takes to start from different roots: a directory, memory, mounts of several clients.
//!
//! * cold: nothing is on the client. A client's cache is emptied, the page cache dropped, the root mounted anew.
//! * warm: a client's cache on disk is filled, the page cache dropped, the root mounted anew.
//! * hot: the command ran before, everything is in memory.
//!
//! Runs of the roots are interleaved, first one, then the other, in turning order, so that a machine that slows down
//! slows all of them.

pub mod report;
pub mod roots;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::hold::{self, Held};
use crate::measure::{self, Cost, drop_page_cache};
use roots::{Callbacks, Root};

/// How much of what a command reads is near.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Nothing is on the client.
    Cold,
    /// Objects are in the client's cache on disk.
    Warm,
    /// Everything is in memory.
    Hot,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// What the command cost.
    #[serde(flatten)]
    pub cost: Cost,
    /// Seconds that mounting took before it, if that was part of the state.
    pub mount: Option<f64>,
    /// What the client answered meanwhile, if it can tell.
    pub callbacks: Callbacks,
}

/// The runs of one root in one state, in the order they were made.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// How near things were.
    pub state: State,
    /// The root's name.
    pub root: String,
    /// The runs.
    pub runs: Vec<Run>,
}

/// Runs `command`, in whose words `{root}` stands for the root, `repetitions` times a root and state.
pub fn run(
    roots: &mut [Root],
    states: &[State],
    command: &[String],
    repetitions: usize,
    mut say: impl FnMut(&str),
) -> Result<Vec<Series>> {
    ensure!(!command.is_empty(), "no command to run");
    let mut all = Vec::new();
    for state in states {
        let mut series: Vec<Series> = roots
            .iter()
            .map(|root| Series { state: *state, root: root.name().to_owned(), runs: Vec::new() })
            .collect();
        prepare(roots, *state, command)?;
        let held = if *state == State::Hot { hold_what_was_read(roots, &mut say)? } else { None };
        for repetition in 0..repetitions {
            say(&format!("{state:?}, {} of {repetitions}", repetition + 1));
            for place in 0..roots.len() {
                let at = (place + repetition) % roots.len();
                let run = once(&mut roots[at], *state, command)
                    .with_context(|| format!("{}, {state:?}", roots[at].name()))?;
                series[at].runs.push(run);
            }
        }
        drop(held);
        all.append(&mut series);
    }
    for root in roots {
        root.unmount()?;
    }
    Ok(all)
}

/// Makes the state true for what is not measured: caches filled for warm, memory for hot.
fn prepare(roots: &mut [Root], state: State, command: &[String]) -> Result<()> {
    if state == State::Cold {
        return Ok(());
    }
    if state == State::Hot {
        // So that what is in memory afterwards is what the command reads. Without root more is locked, or nothing.
        let _ = drop_page_cache();
    }
    for root in roots {
        root.mount()?;
        // Twice: the first run may still write what it fetched.
        for _ in 0..2 {
            measure::run(root.command(command))
                .with_context(|| format!("{}, to fill caches", root.name()))?;
        }
    }
    Ok(())
}

/// Locks what the command has read of the first root in memory, and the same files of the others.
fn hold_what_was_read(roots: &[Root], say: &mut impl FnMut(&str)) -> Result<Option<Held>> {
    let paths: Vec<_> = roots.iter().map(Root::path).collect();
    let Some(first) = paths.first() else { return Ok(None) };
    match hold::hold(&paths, &hold::resident(first)?) {
        Ok(held) => {
            say(&format!("{} files of {} roots are locked in memory", held.files(), paths.len()));
            Ok(Some(held))
        }
        Err(error) => {
            say(&format!("what is hot may be reclaimed between runs: {error:#}"));
            Ok(None)
        }
    }
}

fn once(root: &mut Root, state: State, command: &[String]) -> Result<Run> {
    let mut mount = None;
    if state != State::Hot {
        root.unmount()?;
        if state == State::Cold {
            root.empty_cache()?;
        }
        drop_page_cache()?;
        mount = root.mount()?;
    }
    let before = root.callbacks()?;
    let cost = measure::run(root.command(command))?;
    let callbacks = root.callbacks()?.since(&before);
    Ok(Run { cost, mount, callbacks })
}
