//! One request on its way through proxies and servers.

use std::time::{Duration, Instant};

use super::fault::Fault;
use super::ways::{Choice, Way, Ways};
use crate::error::StoreError;
use crate::progress::Progress;
use crate::retry::RetryPolicy;

/// Attempts of one round at most, so that a request for what nobody has ends.
const ATTEMPTS_MAX: usize = 32;
/// The way was left so often before the request was sent.
const LEFT_MAX: u32 = 64;

/// What a request does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It takes this way.
    Take(Way),
    /// It waits for the name of a proxy that comes before all other ways.
    Wait,
    /// Nothing is left to try.
    End,
}

/// What one request has met so far.
pub(super) struct Trip {
    began: Instant,
    /// Whether whoever asks wants no cached answer.
    pub(super) fresh: bool,
    /// Rounds through all ways that failed.
    pub(super) rounds: u32,
    /// Attempts on the same way after a failure that is worth that.
    pub(super) repeated: u32,
    pub(super) redirects: u32,
    left: u32,
    tried: Vec<Way>,
    exits: Vec<Suspect>,
    servers: Vec<Suspect>,
    /// The most hopeful failure of this round.
    hope: Option<StoreError>,
}

#[derive(Clone, Copy)]
struct Suspect {
    id: u32,
    score: u32,
    failures: u32,
    out: bool,
}

impl Trip {
    pub(super) fn new(fresh: bool) -> Self {
        Self {
            began: Instant::now(),
            fresh,
            rounds: 0,
            repeated: 0,
            redirects: 0,
            left: 0,
            tried: Vec::new(),
            exits: Vec::new(),
            servers: Vec::new(),
            hope: None,
        }
    }

    pub(super) fn took(&self) -> Duration {
        self.began.elapsed()
    }

    /// Whether a further attempt may begin after a pause: as long as bytes keep coming, whatever time it took. What comes
    /// again and again and is never complete ends after the usual number of rounds.
    pub(super) fn is_in_time(&self, progress: &Progress, total: Duration, pause: Duration) -> bool {
        let since = progress.last().map_or(self.began, |last| last.max(self.began));
        let is_usual = self.rounds < RetryPolicy::default().attempts;
        since.elapsed() + pause < total && (is_usual || self.took() + pause < total)
    }

    /// Whether there is another way than this that was not tried in this round.
    pub(super) fn has_other(&self, way: Way, ways: &Ways) -> bool {
        self.tried.len() + 1 < ATTEMPTS_MAX && ways.any(|other| other != way && self.is_untried(other))
    }

    /// Returns whether this way may still be tried in this round.
    fn is_untried(&self, way: Way) -> bool {
        let is_out = find(&self.exits, way.exit.id).is_some_and(|suspect| suspect.out);
        !is_out && !self.tried.contains(&way)
    }

    /// Whether something failed in this round.
    pub(super) fn has_failed(&self) -> bool {
        !self.tried.is_empty()
    }

    /// Whether it may be queued once more after its way was left.
    pub(super) fn may_move(&mut self) -> bool {
        self.left += 1;
        self.left <= LEFT_MAX
    }

    /// Takes note of a failure.
    pub(super) fn failed(&mut self, way: Way, fault: Fault, error: &StoreError) {
        self.suspect(way, fault);
        self.repeated = 0;
        if self.hope.is_none() && error.may_pass() {
            self.hope = Some(error.clone());
        }
    }

    fn suspect(&mut self, way: Way, fault: Fault) {
        self.tried.push(way);
        suspect(&mut self.exits, way.exit.id, fault.exit, fault.no_exit);
        suspect(&mut self.servers, way.server, fault.server, false);
    }

    /// Returns what to try next: the way that was not tried yet and is suspected least, of several the first one. A proxy
    /// whose name is being resolved is not suspected of anything.
    pub(super) fn next(&self, choices: &[Choice]) -> Step {
        if self.tried.len() >= ATTEMPTS_MAX {
            return Step::End;
        }
        let score = |suspects: &[Suspect], id| find(suspects, id).map_or(0, |suspect| suspect.score);
        let untried = choices.iter().filter(|choice| choice.way().is_none_or(|way| self.is_untried(way)));
        let least = untried.min_by_key(|choice| {
            let of_exit = choice.exit.map_or(0, |exit| score(&self.exits, exit.id));
            of_exit + score(&self.servers, choice.server) + choice.doubt
        });
        least.map_or(Step::End, |choice| choice.way().map_or(Step::Wait, Step::Take))
    }

    /// Exits that are to blame, now that this way served: those that failed with the same server, and those that were
    /// suspected from the start or failed with several.
    pub(super) fn failed_exits(&self, served: Way) -> impl Iterator<Item = u32> + '_ {
        let with_it = move |id| self.tried.iter().any(|way| way.exit.id == id && way.server == served.server);
        let guilty = move |one: &&Suspect| one.score > 0 || one.failures > 1 || with_it(one.id);
        self.exits.iter().filter(guilty).map(|suspect| suspect.id).filter(move |id| *id != served.exit.id)
    }

    /// The same for servers.
    pub(super) fn failed_servers(&self, served: Way) -> impl Iterator<Item = u32> + '_ {
        let guilty = |one: &&Suspect| one.score > 0;
        self.servers.iter().filter(guilty).map(|suspect| suspect.id).filter(move |id| *id != served.server)
    }

    /// Ends a round in which everything failed; returns the failure to go on from, or to tell.
    pub(super) fn round_over(&mut self, last: StoreError) -> StoreError {
        self.rounds += 1;
        self.tried.clear();
        self.exits.clear();
        self.servers.clear();
        self.hope.take().unwrap_or(last)
    }
}

/// The way to take where so many brought nothing good.
pub(super) fn passing_over(count: usize, choices: &[Choice]) -> Step {
    let mut trip = Trip::new(false);
    for _ in 0..count {
        match trip.next(choices) {
            Step::Take(way) => trip.suspect(way, Fault::EITHER),
            other => return other,
        }
    }
    trip.next(choices)
}

fn find(suspects: &[Suspect], id: u32) -> Option<&Suspect> {
    suspects.iter().find(|suspect| suspect.id == id)
}

fn suspect(suspects: &mut Vec<Suspect>, id: u32, score: u32, out: bool) {
    match suspects.iter_mut().find(|suspect| suspect.id == id) {
        Some(known) => {
            known.score += score;
            known.failures += 1;
            known.out |= out;
        }
        None => suspects.push(Suspect { id, score, failures: 1, out }),
    }
}
