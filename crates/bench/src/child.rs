//! A process that lives as long as what is measured with it.

use std::process::{Child, ExitStatus};

use rustix::process::{Pid, Signal, kill_process};

/// A child that is asked to end, and waited for, when this is dropped.
#[derive(Debug)]
pub(crate) struct Ending(pub(crate) Child);

impl Ending {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// How it ended, if it has.
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
