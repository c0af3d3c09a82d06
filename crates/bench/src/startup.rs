//! Measures the start of a command from different roots: a directory, memory, mounts of several clients.
//!
//! * cold: nothing is on the client. Its cache is emptied, its process is gone, the page cache dropped, the root mounted
//!   anew, perhaps over a link that makes the server far away.
//! * warm: a client's cache on disk is filled, the page cache dropped, the root mounted anew.
//! * hot: the command ran before, everything is in memory.
//!
//! Runs of the roots are interleaved, first one, then the other, in turning order, so that a machine that slows down
//! slows all of them.

pub mod disk;
pub mod report;
pub mod roots;
pub mod status;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use tempfile::TempDir;

use crate::hold::{self, Held};
use crate::link::{Counts, Link, Profile};
use crate::measure::{self, Cost, drop_page_cache};
use crate::serve;
use crate::sys;
use disk::{Disk, DiskReads};
use roots::Root;
use status::{Callbacks, Fetched};

/// Number of void runs in a row that is an error: another process reads the measured files.
const VOID_IN_A_ROW: usize = 5;

/// State of the caches before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The client has no data of the repository.
    Cold,
    /// Objects are in the client's cache on disk.
    Warm,
    /// All data is in memory.
    Hot,
}

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// States to measure, in this order.
    pub states: Vec<State>,
    /// Emulated links to the server for cold runs; empty measures over the real link.
    pub links: Vec<Profile>,
    /// Numbers of processes that run the command at the same time.
    pub processes: Vec<usize>,
    /// The command. In its arguments `{root}` stands for the root, `{process}` for the number of the process, and
    /// `{scratch}` for an empty folder of its own.
    pub command: Vec<String>,
    /// Runs of each root in each setting.
    pub repetitions: usize,
    /// Makes an extra run before each hot run, for kernels that reclaim idle pages.
    pub once_before: bool,
    /// The repository, for clients that mount it.
    pub url: Option<String>,
    /// Folder for the scratch folders of commands that write.
    pub scratch: PathBuf,
}

/// Setting that distinguishes one series of runs from another of the same root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// State before a run.
    pub state: State,
    /// Emulated distance of the server, if there is one.
    pub link: Option<String>,
    /// Number of processes that run the command at the same time.
    pub processes: usize,
}

/// Measurements of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Cost of the command.
    #[serde(flatten)]
    pub cost: Cost,
    /// Seconds for mounting, if that was part of the state.
    pub mount: Option<f64>,
    /// Processor seconds of the client's process during the run, mounting included where that was part of it.
    pub daemon: Option<f64>,
    /// Processor seconds of the whole machine during the run, including threads of the kernel and other
    /// processes.
    pub machine: Option<f64>,
    /// FUSE requests that the client answered during the run, if it reports them.
    pub callbacks: Callbacks,
    /// Traffic over the link from mounting to unmounting, if there is one.
    pub traffic: Option<Counts>,
    /// Bytes that the client reports as fetched in a cold run.
    pub fetched: Option<Fetched>,
    /// Reads of the disk below the root or the client's folders, if the page cache was dropped before.
    pub disk: Option<DiskReads>,
}

/// Runs of one root in one setting, in order of time.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// Setting of the runs.
    #[serde(flatten)]
    pub setting: Setting,
    /// Name of the root.
    pub root: String,
    /// All runs.
    pub runs: Vec<Run>,
    /// Number of repeated runs, because part of their working set was in memory before.
    pub void: usize,
}

impl Series {
    /// Seconds on the clock of each run.
    pub fn reals(&self) -> Vec<f64> {
        self.runs.iter().map(|run| run.cost.real).collect()
    }

    /// Returns the processor seconds of each run, of the command and of the client's process.
    pub fn cpus(&self) -> Vec<f64> {
        let cpu = |run: &Run| run.cost.user + run.cost.sys + run.daemon.unwrap_or(0.0);
        self.runs.iter().map(cpu).collect()
    }
}

/// Runs the command from all roots in all settings.
pub fn run(roots: &mut [Root], plan: &Plan, mut say: impl FnMut(&str)) -> Result<Vec<Series>> {
    ensure!(!plan.command.is_empty(), "no command to run");
    let mut all = Vec::new();
    for &state in &plan.states {
        let links = match state {
            State::Cold if !plan.links.is_empty() => plan.links.iter().copied().map(Some).collect(),
            _ => vec![None],
        };
        for profile in links {
            let link = profile.map(|profile| open_link(profile, plan)).transpose()?;
            prepare(roots, state, plan)?;
            for &processes in &plan.processes {
                let stage = Stage { plan, state, link: link.as_ref(), processes };
                all.append(&mut stage.run(roots, &mut say)?);
            }
        }
    }
    for root in roots {
        root.unmount()?;
    }
    Ok(all)
}

/// Returns the traffic over the fastest link from mounting to unmounting when the command runs once from this root,
/// cold. With a client that fetches nothing ahead these are the bytes that the command needs.
pub fn needed(root: &mut Root, plan: &Plan) -> Result<Counts> {
    let link = open_link(Profile::ALL[0], plan)?;
    let stage = Stage { plan, state: State::Cold, link: Some(&link), processes: 1 };
    stage.once(root)?.traffic.context("nothing went over the link")
}

fn open_link(profile: Profile, plan: &Plan) -> Result<Link> {
    let url = plan.url.as_deref().context("a link needs a repository to lead to")?;
    let server = serve::address(url)?;
    Link::start(profile, server, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).context("can't start the link")
}

/// Brings the roots into the state: fills caches for warm, memory for hot.
fn prepare(roots: &mut [Root], state: State, plan: &Plan) -> Result<()> {
    if state == State::Cold {
        return Ok(());
    }
    if state == State::Hot {
        // So that memory holds only the command's files afterwards. Without root it holds more, or nothing.
        let _ = drop_page_cache();
    }
    for root in roots {
        root.mount(plan.url.as_deref().unwrap_or_default())?;
        // Twice: the first run may still write fetched objects.
        for _ in 0..2 {
            start(root, plan, 1).with_context(|| format!("{}, to fill caches", root.name()))?;
        }
    }
    Ok(())
}

/// Makes a signal (Ctrl-C) end the measurement before the next start, so that nothing stays mounted.
pub fn end_on_signals() -> Result<()> {
    sys::note_signals().context("can't wait for signals")
}

/// Starts all processes at once and waits for them. Their scratch folders are made before and removed after the
/// measured time.
fn start(root: &Root, plan: &Plan, processes: usize) -> Result<Cost> {
    ensure!(!sys::was_asked_to_end(), "interrupted");
    let writes = plan.command.iter().any(|word| word.contains("{scratch}"));
    let folder = || tempfile::Builder::new().prefix("esker-bench-").tempdir_in(&plan.scratch);
    let folders: Vec<TempDir> =
        (0..if writes { processes } else { 0 }).map(|_| folder()).collect::<Result<_, _>>()?;
    let command = |at: usize| {
        let scratch = folders.get(at).map(TempDir::path);
        root.command(&plan.command, at, processes, scratch)
    };
    measure::run_all((0..processes).map(command))
}

/// Locks the files that the server has just read in memory: emptying the client's page cache doesn't evict them
/// there.
pub fn hold_what_was_served(folder: &Path) -> Result<Held> {
    let read = hold::resident(folder)?;
    hold::hold(&[folder.to_owned()], &read)
}

/// Locks the files that the command has read from the first root, and the same files of the other roots, in
/// memory.
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

/// Measurement of one setting.
struct Stage<'a> {
    plan: &'a Plan,
    state: State,
    link: Option<&'a Link>,
    processes: usize,
}

impl Stage<'_> {
    fn setting(&self) -> Setting {
        let link = self.link.map(|link| link.profile().name.to_owned());
        Setting { state: self.state, link, processes: self.processes }
    }

    fn run(&self, roots: &mut [Root], say: &mut impl FnMut(&str)) -> Result<Vec<Series>> {
        // A link changes nothing for a root without a server; the first root is measured as the baseline.
        let takes_part = |at: usize, root: &Root| at == 0 || self.link.is_none() || root.is_remote();
        let taking_part: Vec<usize> = (0..roots.len()).filter(|at| takes_part(*at, &roots[*at])).collect();
        let mut series: Vec<Series> = taking_part
            .iter()
            .map(|at| Series {
                setting: self.setting(),
                root: roots[*at].name().to_owned(),
                runs: Vec::new(),
                void: 0,
            })
            .collect();
        let held = if self.state == State::Hot { hold_what_was_read(roots, say)? } else { None };
        for repetition in 0..self.plan.repetitions {
            say(&format!("{}, {} of {}", self.setting(), repetition + 1, self.plan.repetitions));
            for place in 0..taking_part.len() {
                let at = (place + repetition) % taking_part.len();
                let root = &mut roots[taking_part[at]];
                self.once_more(root, &mut series[at], say)
                    .with_context(|| format!("{}, {}", root.name(), self.setting()))?;
            }
        }
        drop(held);
        Ok(series)
    }

    /// Adds a run to a series; one that is void is counted as that and made again.
    fn once_more(&self, root: &mut Root, series: &mut Series, say: &mut impl FnMut(&str)) -> Result<()> {
        for _ in 0..VOID_IN_A_ROW {
            let run = self.once(root)?;
            let Some(reads) = run.disk.filter(DiskReads::is_void) else {
                series.runs.push(run);
                return Ok(());
            };
            series.void += 1;
            let [device, set] =
                [reads.device, reads.working_set.unwrap_or(0)].map(|bytes| bytes as f64 / 1e6);
            say(&format!(
                "{}: void, {device:.0} MB read from the disk for {set:.0} MB in memory",
                root.name()
            ));
        }
        bail!(
            "{VOID_IN_A_ROW} runs in a row found in memory what had to come from the disk: is something reading it?"
        )
    }

    fn once(&self, root: &mut Root) -> Result<Run> {
        let near = self.plan.url.as_deref().unwrap_or_default();
        let url = match self.link {
            Some(link) => serve::at(near, link.address())?,
            None => near.to_owned(),
        };
        let traffic_before = self.link.map(Link::counts);
        let mut mount = None;
        if self.state != State::Hot {
            root.unmount()?;
            if self.state == State::Cold {
                root.empty_cache()?;
            }
            drop_page_cache()?;
            mount = root.mount(&url)?;
        }
        let reads_a_disk = match self.state {
            // Then the disk reads of this machine are the server's.
            State::Cold => !root.is_remote(),
            State::Warm => true,
            State::Hot => false,
        };
        let disk = if reads_a_disk { Disk::below(&root.disk())? } else { None };
        let kept = if self.state == State::Warm { root.kept() } else { None };
        let read_before = disk.map(Disk::read).transpose()?;
        if self.state == State::Hot && self.plan.once_before {
            start(root, self.plan, self.processes)?;
        }
        let before = root.status()?;
        // Mounting belongs to the state, and so does the processor time that the client spent on it.
        let cpu_before = if self.state == State::Hot { before.cpu() } else { Some(0.0) };
        let machine_before = status::cpu_of_machine();
        let cost = start(root, self.plan, self.processes)?;
        let machine = status::cpu_of_machine().zip(machine_before).map(|(after, before)| after - before);
        let after = root.status()?;
        let disk = disk.zip(read_before);
        let disk = disk.map(|(disk, before)| DiskReads::since(before, disk, kept.as_deref())).transpose()?;
        let daemon = after.cpu().zip(cpu_before).map(|(after, before)| after - before);
        if self.state == State::Cold {
            // Fetches in progress have to end before they are counted.
            root.unmount()?;
        }
        let traffic =
            self.link.map(Link::counts).zip(traffic_before).map(|(after, before)| after.since(&before));
        Ok(Run {
            cost,
            mount,
            daemon,
            machine,
            callbacks: after.callbacks.since(&before.callbacks),
            traffic: traffic.filter(|_| root.is_remote()),
            fetched: after.fetched.filter(|_| self.state == State::Cold),
            disk,
        })
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.state {
            State::Cold => "cold",
            State::Warm => "warm",
            State::Hot => "hot",
        })?;
        if let Some(link) = &self.link {
            write!(f, " {link}")?;
        }
        if self.processes > 1 {
            write!(f, " × {}", self.processes)?;
        }
        Ok(())
    }
}
