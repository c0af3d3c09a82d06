//! Divides the time of a command's main thread: it ran, waited for a core, for mounts, or for anything else.
//!
//! A single-threaded program is explained by it: what isn't the program's own work or the machine's load is the mounts'.

use std::time::Duration;

use super::blocked::{Blocked, Wait};

/// Times that the kernel's scheduler counted for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scheduled {
    /// Time on a core.
    ran: Duration,
    /// Time in which it could have run, and had no core.
    ready: Duration,
}

impl Scheduled {
    /// Returns the times of the main thread of a process that has ended and is not yet waited for; `None` if the kernel
    /// doesn't count them.
    pub(super) fn of_ended(pid: u32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?)
    }

    /// Parses nanoseconds on a core, nanoseconds without one, and the number of times (proc_pid_schedstat in Linux).
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_ascii_whitespace().map(str::parse);
        let mut next = || numbers.next()?.ok().map(Duration::from_nanos);
        let (ran, ready) = (next()?, next()?);
        // A kernel without these counters writes zeros.
        (!ran.is_zero()).then_some(Self { ran, ready })
    }
}

/// Division of the wall time of a command by what its main thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Division {
    pub(super) ran: Duration,
    pub(super) ready: Duration,
    /// Time in which it waited for mounts. A page that the kernel reads ahead counts, too.
    pub(super) mounts: Duration,
    /// The rest: waits for children, locks, other file systems and the network.
    pub(super) rest: Duration,
}

impl Division {
    /// Returns the division for the thread with this number.
    pub(super) fn of(scheduled: Scheduled, tid: u32, waits: &[Wait], wall: Duration) -> Self {
        let of_thread: Vec<Wait> = waits.iter().filter(|wait| wait.tid == tid).copied().collect();
        let Scheduled { ran, ready } = scheduled;
        let mounts = Blocked::of(&of_thread).wall;
        Self { ran, ready, mounts, rest: wall.saturating_sub(ran + ready + mounts) }
    }
}

#[cfg(test)]
mod tests {
    use esker_node::trace::Operation;

    use super::super::tests::call;
    use super::*;

    #[test]
    fn a_thread_runs_or_waits() {
        let scheduled = Scheduled::parse("600 200 3\n").expect("times");
        // The example's request took 500 ns; another thread's request doesn't count.
        let mut other = call("/b", Operation::Read);
        other.tid = 8;
        let waits = [call("/a", Operation::Read), other].map(|call| Wait::of(&call, Duration::ZERO));
        let of = |wall| {
            let division = Division::of(scheduled, 7, &waits, Duration::from_nanos(wall));
            [division.ran, division.ready, division.mounts, division.rest].map(|time| time.as_nanos())
        };
        assert_eq!(of(2_000), [600, 200, 500, 700]);
        assert_eq!(of(1_000), [600, 200, 500, 0]);
    }

    #[test]
    fn a_kernel_that_counts_nothing_gives_no_times() {
        for text in ["0 0 0\n", "", "x", "5"] {
            assert_eq!(Scheduled::parse(text), None, "{text}");
        }
    }
}
