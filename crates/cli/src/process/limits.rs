//! Limits of the process and the machine: open files, and cores.

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit, setrlimit};

/// Limit of open files beyond which a higher one has no use.
const ENOUGH: u64 = 65_536;

/// Size of the kernel's descriptor table from the start, if that many are allowed: the most that one cache has open.
const ROOM: u64 = 16_384;

/// Makes the kernel enlarge the descriptor table now, while the process has one thread. Later each doubling
/// would wait for all processors, for milliseconds, and with it all threads that open a file.
fn grow_table() {
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(ROOM);
    let highest = i32::try_from(ROOM.min(allowed)).unwrap_or(1) - 1;
    // Of no consequence if it can't be done.
    let _ = fcntl_dupfd_cloexec(std::io::stdin(), highest);
}

/// The raised limit on open files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFiles {
    /// Limit before it was raised, restored for commands started by `esker run`: some fail with high descriptor
    /// numbers.
    pub(crate) before: Option<u64>,
}

impl OpenFiles {
    /// Raises the limit to the maximum that needs no privilege. The usual 1024 is for programs that use select(2); a
    /// cache with a few thousand open objects needs more.
    pub(crate) fn raise() -> Self {
        let mut limit = getrlimit(Resource::Nofile);
        let before = limit.current;
        let wanted = limit.maximum.unwrap_or(ENOUGH).min(ENOUGH);
        if before.is_some_and(|before| before < wanted) {
            limit.current = Some(wanted);
            // On failure it stays as it was.
            let _ = setrlimit(Resource::Nofile, limit);
        }
        grow_table();
        Self { before }
    }

    /// Restores the limit for a command.
    pub(crate) fn give_back(self) {
        let limit = rustix::process::Rlimit { current: self.before, ..getrlimit(Resource::Nofile) };
        // Lowering the soft limit to its old value can't fail.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// Returns the number of cores.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Option for the number of workers.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct JobsArgs {
    /// Number of threads [default: one for each core]
    #[arg(long, alias = "threads", value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
}

impl JobsArgs {
    /// Returns the number of threads.
    pub(crate) fn count(self) -> usize {
        self.jobs.map_or_else(cores, usize::from)
    }
}
