//! Starts threads whose log events go to the subscriber of their starter, pools of them, and work that may hang; merges
//! concurrent requests; measures waits.
#![deny(unsafe_code)]

mod pool;
pub mod single_flight;
pub mod waits;
pub mod watchdog;

pub use pool::Pool;

use std::io;
use std::thread::{Builder, JoinHandle};

use tracing::dispatcher::{self, Dispatch};

/// Starts a thread with a name; its log events go to the subscriber of the calling thread.
///
/// A process sets its subscriber before it starts threads. A test, or a program that embeds a crate, may have one for
/// each part.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let subscriber = dispatcher::get_default(Dispatch::clone);
    Builder::new().name(name.into()).spawn(move || dispatcher::with_default(&subscriber, run))
}

#[cfg(test)]
mod tests {
    use tracing::subscriber::NoSubscriber;

    use super::*;

    #[test]
    fn a_thread_has_its_name_and_the_subscriber_of_its_starter() {
        let named = || std::thread::current().name().map(str::to_owned);
        assert_eq!(spawn("a", named).unwrap().join().unwrap().as_deref(), Some("a"));
        let is_none = || dispatcher::get_default(|subscriber| subscriber.is::<NoSubscriber>());
        assert!(spawn("b", is_none).unwrap().join().unwrap());
        let lines = esker_testkit::log_lines::LogLines::collect();
        assert!(!spawn("c", is_none).unwrap().join().unwrap());
        spawn("d", || tracing::info!("from {}", "d")).unwrap().join().unwrap();
        assert_eq!(lines.all(), ["from d"]);
    }
}
