//! Thread that drives requests with bodies, like those to a bucket or a gateway.

use std::io;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::interruption;
use crate::storage_problem::StorageProblem;

/// A thread with a runtime. Its tasks end with it.
pub struct RequestThread {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RequestThread {
    /// Starts the thread.
    pub fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            // For certificates of authorities, which are read once an hour.
            .max_blocking_threads(1)
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = esker_threads::spawn(name, move || {
            // An error means that the owner is gone, too.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Runs work to its end, or until the process is interrupted, on the calling thread, and its connections on this one.
    /// Must not be called by a task of a runtime.
    pub fn wait_for<T, E: From<StorageProblem>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.handle.block_on(async {
            tokio::select! {
                biased;
                outcome = work => outcome,
                () = interruption::over() => Err(StorageProblem::Interrupted.into()),
            }
        })
    }

    /// Starts a task on this thread.
    pub fn start_task(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.handle.spawn(task));
    }
}

impl Drop for RequestThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            // The last owner may be a task of the thread itself.
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
