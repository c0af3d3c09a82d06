//! Runs a child process for the duration of a measurement.

use std::process::{Child, ExitStatus};

use rustix::process::{Pid, Signal, kill_process};

/// A child process that is terminated and reaped on drop.
#[derive(Debug)]
pub(crate) struct Ending(pub(crate) Child);

impl Ending {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Returns the exit status if the process has ended.
    pub(crate) fn ended(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.pid().cast_signed()) {
            // One that has ended already needs no signal.
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.0.wait();
    }
}
