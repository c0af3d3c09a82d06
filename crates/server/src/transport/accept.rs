//! Accepts connections, each with a slot, and waits while slots or descriptors are exhausted.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::Transport;
use super::admission::AdmissionQueue;
use super::connection::Connection;
use super::strangers::Strangers;
use crate::counters::Limit;
use crate::tls::TlsFiles;

/// First pause before a failed accept is retried while no connection ends; descriptors and memory may also be freed by
/// other processes.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Maximum pause after a failed accept.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Time limit for an evicted idle connection to close before the next one is evicted.
const LEAVING_MAX: Duration = Duration::from_millis(100);

/// Accepts connections until the server is stopped.
pub(crate) async fn accept(
    listener: &TcpListener,
    tls: Option<&TlsFiles>,
    transport: &Arc<Transport>,
    slots: &Arc<Semaphore>,
) {
    let ended = Arc::new(Notify::new());
    let strangers = Strangers::new(transport);
    let serving = async {
        loop {
            let make_room = || {
                // One that has asked nothing first; the socket is not enough, because the answer needs a file.
                let pending = &transport.pending_clients;
                let _ = pending.evict_oldest() && pending.evict_oldest();
            };
            let taken =
                next(async || listener.accept().await, &ended, &transport.admission, make_room, pauses());
            let (stream, client) = taken.await;
            let Some(stream) = strangers.admit(stream, client.ip(), tls.is_some()) else {
                continue;
            };
            let open = transport.counters.connected();
            let acceptor = tls.map(TlsFiles::acceptor);
            let connection = Connection::new(stream, client, acceptor, transport.clone());
            let (ended, slots, pending) = (ended.clone(), slots.clone(), transport.pending_clients.add());
            tokio::spawn(async move {
                connection.run(pending, &slots).await;
                drop(open);
                ended.notify_one();
            });
        }
    };
    tokio::select! {
        () = serving => {}
        () = transport.stopped() => {}
    }
}

/// Returns the pauses after the first failure, the second, …
fn pauses() -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(PAUSE_MIN), |pause| Some((*pause * 2).min(PAUSE_MAX)))
}

/// Accepts the next client. If that fails for want of descriptors or memory, two idle connections are closed for each
/// attempt, and every connection that ends triggers a retry.
async fn next<T>(
    mut accept: impl AsyncFnMut() -> io::Result<T>,
    ended: &Notify,
    admission: &AdmissionQueue,
    make_room: impl Fn(),
    mut pauses: impl Iterator<Item = Duration>,
) -> T {
    loop {
        match accept().await {
            Ok(client) => {
                admission.end();
                return client;
            }
            // Only this client is gone.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => {
                make_room();
                admission.begin();
                // The socket is not enough: the answer needs a file.
                admission.evict_one();
                // Either is a reason to try again.
                let _ = timeout(pauses.next().unwrap_or(PAUSE_MAX), ended.notified()).await;
            }
        }
    }
}

/// Waits for a slot. If there is none, an idle connection is closed. Without an idle one, the address with the most
/// connections loses one, since they may be slow readers.
pub(crate) async fn slot(
    slots: &Arc<Semaphore>,
    transport: &Transport,
    client: IpAddr,
) -> OwnedSemaphorePermit {
    if let Ok(slot) = slots.clone().try_acquire_owned() {
        return slot;
    }
    transport.counters.limited(Limit::Slots);
    let _waiting = transport.admission.join();
    let acquire = slots.clone().acquire_owned();
    tokio::pin!(acquire);
    let slot = loop {
        transport.admission.evict_one();
        // A connection may be unable to close, because its client reads nothing.
        if let Ok(slot) = timeout(LEAVING_MAX, &mut acquire).await {
            break slot;
        }
        transport.connections.cut_most(client, transport.limits.connections);
    };
    slot.expect("there is a slot because the semaphore is never closed")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::iter::repeat;

    use tokio::task::yield_now;

    use super::*;

    const FOR_EVER: Duration = Duration::from_secs(86_400);

    fn no_descriptors() -> io::Error {
        io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error())
    }

    fn run(test: impl Future) {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime")
            .block_on(test);
    }

    #[test]
    fn without_descriptors_accept_waits_for_a_connection_to_end() {
        let (ended, admission) = (Notify::new(), AdmissionQueue::default());
        let tries = Cell::new(0);
        let accept = async || {
            tries.set(tries.get() + 1);
            if tries.get() <= 3 { Err(no_descriptors()) } else { Ok("a client") }
        };
        let others = async {
            for tried in 1..=3 {
                for _ in 0..10 {
                    yield_now().await;
                }
                assert_eq!((tries.get(), admission.waits()), (tried, true));
                ended.notify_one();
            }
        };
        run(async {
            let (client, ()) =
                tokio::join!(next(accept, &ended, &admission, || {}, repeat(FOR_EVER)), others);
            assert_eq!((client, tries.get(), admission.waits()), ("a client", 4, false));
        });
    }

    #[test]
    fn a_client_without_a_descriptor_evicts_two_idle_clients() {
        let (ended, admission) = (Notify::new(), AdmissionQueue::default());
        let mut fails = true;
        let accept = async || match std::mem::take(&mut fails) {
            true => Err(no_descriptors()),
            false => Ok(()),
        };
        let gone = Cell::new(0);
        let idle = async || {
            admission.evicted_while_idle().await;
            gone.set(gone.get() + 1);
        };
        let others = async {
            tokio::join!(idle(), idle(), idle(), next(accept, &ended, &admission, || {}, repeat(FOR_EVER)));
        };
        let a_while = async {
            for _ in 0..10 {
                yield_now().await;
            }
        };
        run(async {
            tokio::select! {
                biased;
                () = others => {}
                () = a_while => {}
            }
        });
        assert_eq!(gone.get(), 2);
    }

    #[test]
    fn descriptors_freed_elsewhere_are_used() {
        let (ended, admission) = (Notify::new(), AdmissionQueue::default());
        let mut failures = 5;
        let accept = async || {
            failures -= 1;
            if failures > 0 { Err(no_descriptors()) } else { Ok(()) }
        };
        run(next(accept, &ended, &admission, || {}, repeat(Duration::ZERO)));
        assert_eq!((failures, admission.waits()), (0, false));
    }

    #[test]
    fn accept_does_not_wait_for_a_disconnected_client() {
        let (ended, admission) = (Notify::new(), AdmissionQueue::default());
        let mut gone = true;
        let accept = async || match std::mem::take(&mut gone) {
            true => Err(io::ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        };
        run(next(accept, &ended, &admission, || {}, repeat(FOR_EVER)));
    }

    #[test]
    fn a_minute_without_descriptors_takes_few_attempts() {
        let minute = pauses().scan(Duration::ZERO, |past, pause| {
            *past += pause;
            (*past < Duration::from_secs(60)).then_some(())
        });
        assert_eq!(minute.count(), 16);
    }
}
