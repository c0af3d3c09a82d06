//! Thread that drives the requests to a bucket.

use std::io;
use std::thread::JoinHandle;

use esker_store::{StorageProblem, interruption};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread with a runtime. Its tasks end with it.
pub(crate) struct StorageThread {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StorageThread {
    pub(crate) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            // For certificates of authorities, which are read once an hour.
            .max_blocking_threads(1)
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = esker_threads::spawn("esker-storage", move || {
            // An error means that the owner is gone, too.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Runs work to its end, or until the process is interrupted, on the calling thread, and its connections on this one.
    /// Must not be called by a task of a runtime.
    pub(crate) fn wait_for<T, E: From<StorageProblem>>(
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
    pub(crate) fn start_task(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.handle.spawn(task));
    }
}

impl Drop for StorageThread {
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
