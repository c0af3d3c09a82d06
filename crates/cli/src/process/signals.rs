//! SIGTERM, SIGINT and SIGHUP for a process that serves a mount: unmount and clean up.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use esker_kernel_mount::Unmount;
use esker_node::mounted::Mounted;
use esker_run::{Received, die_by, take_signals};

use crate::error::{Context, Failure, Kind};

/// Effect of a signal now.
enum Phase {
    /// The mount has not begun, and nothing has to be undone.
    Opening,
    /// The mount is being made: a signal has to wait.
    Holding { pending: Option<i32> },
    /// The mount is served: a signal unmounts it.
    Serving(Arc<Mounted>),
    /// The mount is being unmounted.
    Ending,
}

/// Handler of the signals that end a mount.
#[derive(Clone)]
pub(crate) struct StopSignals {
    phase: Arc<Mutex<Phase>>,
    signal: Arc<AtomicI32>,
}

impl StopSignals {
    /// Starts handling the signals; called before any other thread starts.
    pub(crate) fn begin() -> Result<Self, Failure> {
        let stop = Self { phase: Arc::new(Mutex::new(Phase::Opening)), signal: Arc::default() };
        let handler = stop.clone();
        take_signals(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP], move |received| {
            handler.received(received)
        })
        .context(Kind::Failed, "can't handle signals")?;
        Ok(stop)
    }

    fn change(&self, next: Phase) -> Phase {
        std::mem::replace(&mut *self.phase.lock().unwrap_or_else(PoisonError::into_inner), next)
    }

    /// Records that a signal must clean up from now on.
    pub(crate) fn hold(&self) {
        self.change(Phase::Holding { pending: None });
    }

    /// Makes signals unmount from now on; one that came while holding does so at once.
    pub(crate) fn serve(&self, mounted: &Arc<Mounted>) {
        let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        if let Phase::Holding { pending } = *phase {
            *phase = Phase::Serving(mounted.clone());
            drop(phase);
            if let Some(signal) = pending {
                self.received(Received { signal, from_kernel: false });
            }
        }
    }

    fn received(&self, received: Received) {
        let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *phase {
            Phase::Opening => die_by(received.signal),
            Phase::Holding { pending } => *pending = Some(received.signal),
            Phase::Ending => {}
            Phase::Serving(mounted) => {
                let mounted = mounted.clone();
                *phase = Phase::Ending;
                drop(phase);
                self.signal.store(received.signal, Ordering::Relaxed);
                self.end(&mounted);
            }
        }
    }

    /// Ends the process if the one that waits for its mount is gone before there is one. Later its report fails.
    pub(crate) fn starter_gone(&self) {
        let phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*phase, Phase::Opening) {
            std::process::exit(1);
        }
    }

    /// Unmounts. Programs that use the mount don't delay it: their next access fails.
    pub(crate) fn end(&self, mounted: &Mounted) {
        self.change(Phase::Ending);
        let Err(busy) = mounted.unmount(Unmount::IfUnused) else { return };
        tracing::warn!("{busy}; it is taken from them");
        if let Err(error) = mounted.unmount(Unmount::Lazy) {
            tracing::warn!("{error}; it ends with this process");
        }
        mounted.abandon();
        // The kernel ends the mount when the process that serves it is gone.
        std::process::exit(self.outcome().map_or_else(|failure| failure.code().into(), |()| 0));
    }

    /// Returns the result of the process, once the mount is unmounted.
    pub(crate) fn outcome(&self) -> Result<(), Failure> {
        match self.signal.load(Ordering::Relaxed) {
            libc::SIGINT => Err(Failure::new(Kind::Interrupted, "interrupted; the mount is gone")),
            _ => Ok(()),
        }
    }
}
