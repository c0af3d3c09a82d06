//! Runs a command and measures its cost.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use serde::Serialize;

use crate::sys;

/// Cost of a run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// Time on the clock, in seconds.
    pub real: f64,
    /// Processor time in user mode, of all processes of the command, in seconds.
    pub user: f64,
    /// Processor time in the kernel, in seconds.
    pub sys: f64,
    /// Largest resident size of one process, in bytes.
    pub peak: u64,
}

impl Cost {
    /// Returns processor time per elapsed time, in percent; over 100 with several threads.
    pub fn cpu_percent(&self) -> f64 {
        100.0 * (self.user + self.sys) / self.real
    }

    /// Returns the least share of the elapsed time in percent during which no processor worked for the command.
    pub fn blocked_percent(&self) -> f64 {
        (100.0 - self.cpu_percent()).max(0.0)
    }
}

/// Runs a command to its end; one that fails is an error, because its time means nothing.
pub fn run(command: Command) -> Result<Cost> {
    run_all([command])
}

/// Runs commands at the same time until all have ended. Processor times are those of all of them.
pub fn run_all(commands: impl IntoIterator<Item = Command>) -> Result<Cost> {
    let start = Instant::now();
    let mut running = Vec::new();
    let mut failed = Ok(());
    for mut command in commands {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        match command.spawn() {
            Ok(child) => running.push((command, child)),
            Err(error) => {
                failed = Err(error).with_context(|| format!("can't start {command:?}"));
                break;
            }
        }
    }
    let (mut user, mut system, mut peak) = (Duration::ZERO, Duration::ZERO, 0);
    for (command, child) in running {
        let ended = sys::wait(child).with_context(|| format!("can't wait for {command:?}"))?;
        if !ended.status.success() && failed.is_ok() {
            failed = Err(anyhow!("{command:?} failed: {}", ended.status));
        }
        user += ended.user;
        system += ended.system;
        peak = peak.max(ended.peak);
    }
    let real = start.elapsed().as_secs_f64();
    failed.map(|()| Cost { real, user: user.as_secs_f64(), sys: system.as_secs_f64(), peak })
}

/// Returns a shell command.
pub fn shell(line: &str) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(line);
    command
}

/// Drops the page cache, the inodes and the names of the whole machine; needs root.
pub fn drop_page_cache() -> Result<()> {
    rustix::fs::sync();
    let path = Path::new("/proc/sys/vm/drop_caches");
    std::fs::write(path, "3").with_context(|| {
        format!("can't write {}: cold and warm runs need root; --states hot does without", path.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_command_costs_more_processor_time_than_an_idle_one() {
        let busy = run(shell("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done")).expect("a loop");
        assert!(busy.user > 0.0 && busy.real > 0.0 && busy.peak > 0);
        let idle = run(shell("sleep 0.2")).expect("sleep");
        assert!(idle.real >= 0.2 && idle.blocked_percent() > 50.0, "{idle:?}");
        assert!(run(shell("exit 3")).is_err());
    }

    #[test]
    fn all_processes_are_reaped_and_a_failure_is_reported() {
        let loops = || shell("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done");
        assert!(run_all((0..3).map(|_| loops())).expect("loops").user > 0.0);
        let error = run_all([loops(), shell("exit 3"), loops()]).expect_err("one failed");
        assert!(error.to_string().contains("exit 3"), "{error}");
        assert!(run_all([loops(), Command::new("/nonexistent/command")]).is_err());
    }
}
