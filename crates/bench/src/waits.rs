//! Causes of waiting while a core is idle: a trace of the scheduler beside the waits that the store's pool records.
//!
//! A pool can measure how long a job waited and whether one of its threads slept, but not whether a core was free for
//! that thread. The kernel can.
//!
//! Some virtual machines never record the idle task of one of their processors, so its switches away from idling are
//! missing. The next task is known when it stops, and `sched:sched_stat_runtime` has its run time: it started that
//! long before. This leaves out interrupts and stolen time, so a core counts as idle for too long, never for too short
//! a time. The recorded switches tell the size of the error.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::table;

/// Results of a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Length of the trace in seconds.
    pub seconds: f64,
    /// Seconds of these in which at least one core was idle.
    pub idle_seconds: f64,
    /// Number of switches missing in the trace and derived from the run times of tasks.
    pub rebuilt: usize,
    /// Error of the reconstruction: how much later the recorded idle periods would have ended without their switches.
    pub rebuilt_late: Moments,
    /// The jobs, by the name of the threads that did them.
    pub kinds: BTreeMap<String, Kind>,
}

/// Jobs of one kind of thread. All times are microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kind {
    /// Number of jobs.
    pub jobs: usize,
    /// Median wait.
    pub half_us: f64,
    /// 99th percentile of the wait.
    pub p99_us: f64,
    /// Median wait while a core was idle.
    pub idle_half_us: f64,
    /// 99th percentile of the wait while a core was idle.
    pub idle_p99_us: f64,
    /// Longest wait while a core was idle.
    pub idle_most_us: f64,
    /// Number of jobs that waited for more than a millisecond while a core was idle.
    pub idle_over_ms: usize,
    /// Idle periods of a core during which a job waited. Many jobs may wait through one, and one job through
    /// many.
    pub moments: Moments,
}

/// Lengths in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Moments {
    /// Number of moments.
    pub count: usize,
    /// Median length.
    pub half_us: f64,
    /// 99th percentile of the length.
    pub p99_us: f64,
    /// Longest length.
    pub most_us: f64,
}

/// Start and end in nanoseconds.
type Span = (u64, u64);

/// The last switch of a core.
#[derive(Clone, Copy)]
struct Core {
    at: u64,
    /// Task that was switched to; 0 is idle.
    runs: u64,
    /// True if the switch ended an idle period.
    woke: bool,
}

#[derive(Default)]
struct Trace {
    span: Option<Span>,
    cores: HashMap<u64, Core>,
    /// Run time of each task since its last recorded switch.
    ran: HashMap<u64, u64>,
    /// True if the trace contains run times.
    timed: bool,
    /// Number of recorded stops without a recorded start.
    gaps: usize,
    /// Delay by which the end of each recorded idle period would be missed.
    late: Vec<u64>,
    idle: Vec<Span>,
    waits: Vec<(String, Span)>,
    /// Last wait of each thread; a wait that began beside a sleeping thread is recorded twice.
    last: HashMap<String, u64>,
}

/// Parses the output of `perf script` for `sched:sched_switch` and a probe with `secs` and `nanos`.
pub fn read(text: &str) -> Result<Report> {
    let mut trace = Trace::default();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        trace.take(line).with_context(|| format!("not a line of perf script: {line}"))?;
    }
    trace.report()
}

impl Trace {
    fn take(&mut self, line: &str) -> Option<()> {
        let (who, what) = line.split_once("] ")?;
        let (who, core) = who.rsplit_once('[')?;
        let (thread, id) = who.trim().rsplit_once(' ')?;
        let (time, what) = what.trim_start().split_once(": ")?;
        let (time, core) = (nanoseconds(time)?, core.parse().ok()?);
        let begin = self.span.map_or(time, |span| span.0);
        self.span = Some((begin, time));
        if what.trim_start().starts_with("sched:sched_switch") {
            self.switch(core, time, field(what, "prev_pid=")?, field(what, "next_pid=")?);
            return Some(());
        }
        if what.trim_start().starts_with("sched:sched_stat_runtime") {
            self.timed = true;
            *self.ran.entry(field(what, " pid=")?).or_default() += field(what, " runtime=")?;
            return Some(());
        }
        let waited = field(what, "secs=")?.checked_mul(1_000_000_000)?.checked_add(field(what, "nanos=")?)?;
        if self.last.insert(id.to_owned(), waited) != Some(waited) {
            let kind = thread.trim().trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('-');
            self.waits.push((kind.to_owned(), (time.saturating_sub(waited), time)));
        }
        Some(())
    }

    fn switch(&mut self, core: u64, time: u64, stops: u64, starts: u64) {
        let ran = self.ran.remove(&stops).unwrap_or(0);
        self.ran.remove(&starts);
        if let Some(last) = self.cores.get(&core).copied() {
            let began = time.saturating_sub(ran).max(last.at);
            let gap = last.runs != stops;
            self.gaps += usize::from(gap);
            if stops == 0 {
                self.idle.push((last.at, time));
            } else if gap {
                // The core idled before, or its task may have idled all the time.
                self.idle.push((last.at, began));
            } else if last.woke {
                self.late.push(began - last.at);
            }
        }
        self.cores.insert(core, Core { at: time, runs: starts, woke: stops == 0 && starts != 0 });
    }

    fn report(mut self) -> Result<Report> {
        let (begin, end) = self.span.context("the trace is empty")?;
        let gaps = self.gaps;
        ensure!(
            gaps == 0 || self.timed,
            "switches are missing at {gaps} places of the trace: give perf record a larger buffer (-m), or, if they are always \
             missing here, record sched:sched_stat_runtime, too"
        );
        self.idle.extend(self.cores.values().filter(|core| core.runs == 0).map(|core| (core.at, end)));
        let idle = union(self.idle);
        let mut kinds: BTreeMap<String, Vec<Span>> = BTreeMap::new();
        for (kind, wait) in self.waits {
            kinds.entry(kind).or_default().push(wait);
        }
        ensure!(!kinds.is_empty(), "the trace has no waits: is the probe set in this binary?");
        let kinds = kinds.into_iter().map(|(name, waits)| (name, Kind::of(waits, &idle))).collect();
        let sum: u64 = idle.iter().copied().map(length).sum();
        Ok(Report {
            seconds: (end - begin) as f64 / 1e9,
            idle_seconds: sum as f64 / 1e9,
            rebuilt: gaps,
            rebuilt_late: Moments::of(&lengths(self.late.into_iter())),
            kinds,
        })
    }
}

/// Seconds with a point, as nanoseconds.
fn nanoseconds(text: &str) -> Option<u64> {
    let (seconds, part) = text.split_once('.')?;
    let digits = u32::try_from(part.len()).ok()?;
    let part = part.parse::<u64>().ok()?.checked_mul(10u64.checked_pow(9u32.checked_sub(digits)?)?)?;
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(part)
}

/// Returns the number behind a name.
fn field(text: &str, name: &str) -> Option<u64> {
    let (_, rest) = text.split_once(name)?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Returns the union of spans, sorted and without overlap.
fn union(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut joined: Vec<Span> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.0 <= last.1 => last.1 = last.1.max(span.1),
            _ => joined.push(span),
        }
    }
    joined
}

/// Returns the parts of a span that are covered.
fn covered(spans: &[Span], (begin, end): Span) -> impl Iterator<Item = Span> {
    let first = spans.partition_point(|span| span.1 <= begin);
    let touched = spans[first..].iter().take_while(move |span| span.0 < end);
    touched.map(move |span| (span.0.max(begin), span.1.min(end)))
}

/// Returns the lengths of spans in microseconds, sorted.
fn lengths(nanoseconds: impl Iterator<Item = u64>) -> Vec<f64> {
    let mut all: Vec<f64> = nanoseconds.map(|length| length as f64 / 1e3).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// Returns a percentile; 0 for an empty list.
fn at(sorted: &[f64], percent: usize) -> f64 {
    let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied().unwrap_or(0.0)
}

fn length(span: Span) -> u64 {
    span.1 - span.0
}

impl Kind {
    fn of(waits: Vec<Span>, idle: &[Span]) -> Self {
        let all = lengths(waits.iter().map(|wait| length(*wait)));
        let beside = lengths(waits.iter().map(|wait| covered(idle, *wait).map(length).sum()));
        let jobs = waits.len();
        let moments = union(waits).into_iter().flat_map(|wait| covered(idle, wait).map(length));
        Self {
            jobs,
            half_us: at(&all, 50),
            p99_us: at(&all, 99),
            idle_half_us: at(&beside, 50),
            idle_p99_us: at(&beside, 99),
            idle_most_us: at(&beside, 100),
            idle_over_ms: beside.iter().filter(|wait| **wait > 1e3).count(),
            moments: Moments::of(&lengths(moments)),
        }
    }
}

impl Moments {
    fn of(sorted: &[f64]) -> Self {
        Self {
            count: sorted.len(),
            half_us: at(sorted, 50),
            p99_us: at(sorted, 99),
            most_us: at(sorted, 100),
        }
    }
}

impl Report {
    /// Returns the results as a table for terminals.
    pub fn table(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .kinds
            .iter()
            .map(|(name, kind)| {
                let times =
                    [kind.half_us, kind.p99_us, kind.idle_half_us, kind.idle_p99_us, kind.idle_most_us];
                let mut row = vec![name.clone(), kind.jobs.to_string()];
                row.extend(times.map(|time| format!("{time:.0}")));
                row.push(kind.idle_over_ms.to_string());
                let moments = &kind.moments;
                row.push(moments.count.to_string());
                row.extend([moments.p99_us, moments.most_us].map(|time| format!("{time:.0}")));
                row
            })
            .collect();
        let header = [
            "threads",
            "jobs",
            "p50 µs",
            "p99",
            "idle p50",
            "idle p99",
            "idle most",
            "over 1 ms",
            "moments",
            "p99",
            "most",
        ];
        let (seconds, idle) = (self.seconds, self.idle_seconds);
        let late = &self.rebuilt_late;
        let rebuilt = match self.rebuilt {
            0 => String::new(),
            count => format!(
                "\n{count} switches were missing; those that weren't would have been taken for {:.0} µs later at the 99th \
                 percentile, {:.0} at most",
                late.p99_us, late.most_us
            ),
        };
        format!("{seconds:.2} s, {idle:.2} s with an idle core{rebuilt}\n\n{}", table::layout(&header, &rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_waits_beside_an_idle_core_count() {
        let switch = |time: &str, core: u32, prev: u32, next: u32| {
            format!(
                "a b {prev} [{core:03}] {time}: sched:sched_switch: prev_comm=x prev_pid={prev} prev_prio=120 \
                 prev_state=S ==> next_comm=y next_pid={next} next_prio=120\n"
            )
        };
        let wait = |time: &str, nanos: u64| {
            format!("esker-work-0 77 [001] {time}: probe_esker:note: (55) secs=0 nanos={nanos}\n")
        };
        let text = [
            switch("10.000000", 0, 5, 0),
            switch("10.000000", 1, 5, 0),
            switch("10.002000", 1, 0, 77),
            switch("10.003000", 0, 0, 5),
            wait("10.004000", 3_000_000),
            wait("10.004001", 3_000_000),
            wait("10.005000", 500_000),
        ];
        let report = read(&text.concat()).expect("a trace");
        assert!((report.seconds - 0.005).abs() < 1e-9 && (report.idle_seconds - 0.003).abs() < 1e-9);
        let kind = &report.kinds["esker-work"];
        assert_eq!((kind.jobs, kind.p99_us, kind.half_us), (2, 3000.0, 500.0), "noted twice is one wait");
        assert_eq!((kind.idle_p99_us, kind.idle_half_us, kind.idle_over_ms), (2000.0, 0.0, 1));
        let moments = Moments { count: 1, half_us: 2000.0, p99_us: 2000.0, most_us: 2000.0 };
        assert_eq!(kind.moments, moments);
    }

    #[test]
    fn a_core_without_its_first_switch_idled_until_the_task_that_stops_began() {
        let switch = |time: &str, prev: u32, next: u32| {
            format!("a {prev} [001] {time}: sched:sched_switch: prev_pid={prev} ==> next_pid={next}\n")
        };
        let ran = |pid: u32, time: &str, nanos: u64| {
            format!("a {pid} [001] {time}: sched:sched_stat_runtime: comm=a pid={pid} runtime={nanos} [ns]\n")
        };
        let text = [
            // Seen: it began at 2 ms, and would be taken for 0.1 ms later.
            ran(5, "10.000000", 1_000_000),
            switch("10.000000", 5, 0),
            switch("10.002000", 0, 5),
            ran(5, "10.003000", 900_000),
            switch("10.003000", 5, 0),
            // Missing: it ran for the last 2 of 5 ms.
            ran(6, "10.007000", 1_000_000),
            ran(6, "10.008000", 1_000_000),
            switch("10.008000", 6, 7),
            // Task 7 was seen to start, but not to stop; 6 ran for half a millisecond of two.
            ran(6, "10.010000", 500_000),
            switch("10.010000", 6, 0),
            "esker-work-0 77 [000] 10.010000: probe_esker:note: (55) secs=0 nanos=10000000\n".to_owned(),
        ];
        let report = read(&text.concat()).expect("a trace");
        assert_eq!((report.rebuilt, report.rebuilt_late.count), (2, 1));
        assert!((report.rebuilt_late.most_us - 100.0).abs() < 1e-9);
        assert!((report.idle_seconds - 0.0065).abs() < 1e-9, "{}", report.idle_seconds);
        assert!((report.kinds["esker-work"].idle_p99_us - 6500.0).abs() < 1e-9);
        assert!(report.table().contains("2 switches were missing"));
    }

    #[test]
    fn a_moment_ends_with_the_last_wait_or_when_no_core_is_idle() {
        let idle = [(10_000, 30_000), (50_000, 60_000)];
        let waits = vec![(0, 15_000), (12_000, 20_000), (25_000, 55_000), (70_000, 80_000)];
        let moments = Kind::of(waits, &idle).moments;
        assert_eq!(moments, Moments { count: 3, half_us: 5.0, p99_us: 10.0, most_us: 10.0 });
    }

    #[test]
    fn text_that_is_no_trace_is_an_error() {
        assert!(read("").is_err());
        assert!(read("something else").is_err());
        let gap = [(5, 6), (7, 0)].map(|(prev, next)| {
            format!("a {prev} [000] 1.000000: sched:sched_switch: prev_pid={prev} ==> next_pid={next}\n")
        });
        assert!(read(&gap.concat()).expect_err("6 never stopped").to_string().contains("missing"));
        let ran = "b 7 [000] 1.000001: sched:sched_stat_runtime: comm=b pid=7 runtime=1 [ns]\n";
        assert!(read(&(gap.concat() + ran)).expect_err("no waits").to_string().contains("probe"));
        let idle = "a 5 [000] 1.000000: sched:sched_switch: prev_pid=5 ==> next_pid=0\n";
        assert!(read(idle).expect_err("no waits").to_string().contains("probe"));
    }
}
