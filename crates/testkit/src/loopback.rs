//! Listens on the loopback interface, with a thread for each connection.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A listener, which breaks its connections when it is dropped.
#[derive(Debug)]
pub(crate) struct Loopback {
    state: Arc<State>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    accepted: AtomicU64,
    streams: Mutex<BTreeMap<u64, TcpStream>>,
    is_stopping: AtomicBool,
    is_away: AtomicBool,
}

impl Loopback {
    /// Listens at an address and calls `serve` with each connection.
    pub(crate) fn listen(
        address: SocketAddr,
        serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).expect("binding to the loopback interface");
        let address = listener.local_addr().expect("a bound address");
        let state = Arc::new(State::default());
        let theirs = state.clone();
        let serve = Arc::new(serve);
        let acceptor = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if theirs.is_stopping.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let number = theirs.accepted.fetch_add(1, Ordering::SeqCst);
                if theirs.is_away.load(Ordering::SeqCst) {
                    continue;
                }
                if let Ok(copy) = stream.try_clone() {
                    theirs.streams.lock().unwrap().insert(number, copy);
                }
                let (state, serve) = (theirs.clone(), serve.clone());
                std::thread::spawn(move || {
                    // Clients come and go as they like: a broken connection is no event.
                    drop(serve(stream));
                    state.streams.lock().unwrap().remove(&number);
                });
            }
        });
        Self { state, address, acceptor: Some(acceptor) }
    }

    /// Returns the address that it listens at.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of accepted connections.
    pub(crate) fn connections(&self) -> u64 {
        self.state.accepted.load(Ordering::SeqCst)
    }

    /// Closes new connections before anything is read, or serves them again.
    pub(crate) fn set_away(&self, is_away: bool) {
        self.state.is_away.store(is_away, Ordering::SeqCst);
    }

    /// Breaks all connections.
    pub(crate) fn break_connections(&self) {
        for stream in self.state.streams.lock().unwrap().values() {
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.state.is_stopping.store(true, Ordering::SeqCst);
        if let Some(acceptor) = self.acceptor.take() {
            // The acceptor sleeps in accept(); a connection of our own wakes it.
            drop(TcpStream::connect(self.address));
            acceptor.join().expect("the acceptor does not panic");
        }
        self.break_connections();
    }
}
