//! Emulates a wide-area link between client and server: a relay with delay, bottleneck and losses.
//!
//! It relays TCP in user space, so it needs no privilege and no network of its own. It can't delay the opening of a
//! connection: `connect` returns at once, and the first bytes pay the round trip of the handshake.

mod check;
mod connection;
mod counts;
mod model;
mod profile;
mod relay;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub use check::{Check, check};
use counts::Counters;
pub use counts::Counts;
pub use profile::Profile;
use relay::Relay;

/// A relay, which stops when this is dropped.
#[derive(Debug)]
pub struct Link {
    profile: Profile,
    address: SocketAddr,
    counters: Arc<Counters>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<io::Result<Duration>>>,
}

impl Link {
    /// Starts a relay from `listen` (port 0 selects a free port) to `to`.
    pub fn start(profile: Profile, to: SocketAddr, listen: SocketAddr) -> io::Result<Self> {
        let counters = Arc::new(Counters::default());
        let relay = Relay::new(profile, to, listen, Arc::clone(&counters))?;
        let (address, stop) = (relay.address()?, relay.stopper());
        let thread = std::thread::Builder::new().name("link".into()).spawn(move || relay.run())?;
        Ok(Self { profile, address, counters, stop, thread: Some(thread) })
    }

    /// Returns the address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the profile of the link.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the traffic so far.
    pub fn counts(&self) -> Counts {
        self.counters.get()
    }

    /// Waits until the relay fails.
    pub fn wait(mut self) -> io::Result<()> {
        self.join().map(|_| ())
    }

    /// Ends all connections; returns the processor time that the relay used.
    pub fn stop(mut self) -> io::Result<Duration> {
        self.ask_to_stop();
        self.join()
    }

    fn ask_to_stop(&self) {
        // An event counter takes any eight bytes that aren't all ones, and this one is written at most twice.
        let _ = rustix::io::write(&*self.stop, &[1; 8]);
    }

    fn join(&mut self) -> io::Result<Duration> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(Duration::ZERO),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.ask_to_stop();
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
