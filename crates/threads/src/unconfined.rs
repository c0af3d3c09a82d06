//! Runs the few operations of a confined process that its restrictions forbid: mounting, unmounting, and helpers.
//!
//! Restrictions of the kernel belong to a thread, and a thread inherits those of its starter. So a process starts one
//! thread before it is confined, which starts the threads of these operations. In a process that never called
//! [`start`] the operations run in the calling thread.

use std::io;
use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

/// A thread that runs jobs one after the other.
#[derive(Debug)]
pub struct Executor(Sender<Job>);

static STARTER: OnceLock<Executor> = OnceLock::new();

impl Executor {
    /// Starts the thread, with the restrictions of the calling thread.
    fn here(name: &str) -> io::Result<Self> {
        let (sender, jobs) = channel::<Job>();
        crate::spawn(name, move || jobs.iter().for_each(|job| job()))?;
        Ok(Self(sender))
    }

    /// Starts a thread without restrictions. It ends when the executor is dropped.
    pub fn new(name: &'static str) -> io::Result<Self> {
        match STARTER.get() {
            Some(starter) => starter.call(move || Self::here(name)),
            None => Self::here(name),
        }
    }

    /// Runs a function in the thread and returns its result. A panic of the function is one of the caller.
    pub fn call<T: Send + 'static>(&self, run: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, result) = channel();
        let job = move || {
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            // The caller waits for it.
            let _ = sender.send(caught);
        };
        // The thread runs as long as this executor has its sender, and sends whatever the function does.
        let sent = self.0.send(Box::new(job));
        match sent.ok().and_then(|()| result.recv().ok()) {
            Some(Ok(value)) => value,
            Some(Err(panic)) => resume_unwind(panic),
            None => unreachable!("the thread of an executor ends with it"),
        }
    }
}

/// Starts the thread that stays without restrictions; called before the process is confined.
pub fn start() -> io::Result<()> {
    if STARTER.get().is_none() {
        // Called by the only thread of a process, so there is no second one.
        let _ = STARTER.set(Executor::here("unconfined")?);
    }
    Ok(())
}

/// Restricts the thread itself, for what is no longer needed: later operations inherit that.
pub fn restrict(restrict: impl FnOnce() + Send + 'static) {
    if let Some(starter) = STARTER.get() {
        starter.call(restrict);
    }
}

/// Runs an operation that may take long, in a thread of its own.
pub fn run<T: Send + 'static>(name: &'static str, run: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let Some(starter) = STARTER.get() else { return Ok(run()) };
    let thread: JoinHandle<T> = starter.call(move || crate::spawn(name, run))?;
    Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> Option<String> {
        std::thread::current().name().map(str::to_owned)
    }

    #[test]
    fn operations_run_in_other_threads_once_there_is_a_starter() {
        let here = name();
        assert_eq!(run("operation", name).unwrap(), here, "no thread is needed yet");
        start().unwrap();
        start().unwrap();
        assert_eq!(run("operation", name).unwrap().as_deref(), Some("operation"));
        let executor = Executor::new("jobs").unwrap();
        assert_eq!(executor.call(name).as_deref(), Some("jobs"));
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| executor.call(|| panic!("no"))));
        assert!(panic.is_err());
        assert_eq!(executor.call(|| 7), 7, "the thread goes on after a panic");
        let (sender, received) = channel();
        restrict(move || sender.send(name()).unwrap());
        assert_eq!(received.recv().unwrap().as_deref(), Some("unconfined"));
    }
}
