//! Periodic datagrams to a collector of counters.
//!
//! They are not acknowledged. Names are resolved here because a static binary can't use the C library.

use std::net::SocketAddr;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::LookupIpStrategy;
use serde::{Deserialize, Serialize};
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval_at, timeout};

use crate::error::{Cause, StoreError};

/// Timeout for resolving and for sending.
const STEP: Duration = Duration::from_secs(10);

/// Returns the next datagram, or `None` if there is nothing to send. The sending thread calls it.
pub type ComposeDatagram = Box<dyn FnMut() -> Option<Vec<u8>> + Send>;

/// Address and interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatagramTarget {
    /// A name or an address.
    pub host: String,
    /// Port of the collector.
    pub port: u16,
    /// Interval between datagrams, also before the first one.
    pub every: Duration,
}

/// Sender of datagrams, which stops on drop.
#[derive(Debug)]
pub struct Datagrams {
    /// Sender whose drop ends the task.
    _stop: watch::Sender<()>,
}

impl Datagrams {
    /// Starts to send, on a thread of its own. A failure is logged once until sending works again.
    pub fn start(to: DatagramTarget, compose: ComposeDatagram) -> Result<Self, StoreError> {
        let (stop, mut stopped) = watch::channel(());
        let run = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return tracing::warn!("nothing is sent to {}: {error}", to.host),
            };
            runtime.block_on(async {
                tokio::select! {
                    () = keep_sending(&to, compose) => {}
                    // Dropping the sender is the word to stop.
                    _ = stopped.changed() => {}
                }
            });
            // A name that is still being looked up must not hold the thread.
            runtime.shutdown_background();
        };
        esker_threads::spawn("datagrams", run).map_err(|source| {
            let what = "the thread that sends counters";
            StoreError::new(what, Cause::Disk { doing: "starting", path: what.into(), source })
        })?;
        Ok(Self { _stop: stop })
    }
}

async fn keep_sending(to: &DatagramTarget, mut compose: ComposeDatagram) {
    let start = tokio::time::Instant::now() + to.every;
    let mut ticks = interval_at(start, to.every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        ticks.tick().await;
        let Some(datagram) = compose() else { continue };
        let outcome = match timeout(STEP, send(to, &datagram)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("it took longer than {STEP:?}")),
        };
        match outcome {
            Err(why) if !failing => {
                tracing::warn!("can't send counters to {}:{}: {why}", to.host, to.port);
                failing = true;
            }
            Err(_) => {}
            Ok(()) => failing = false,
        }
    }
}

/// Sends one datagram. The name is resolved each time, because the collector or this machine may move.
async fn send(to: &DatagramTarget, datagram: &[u8]) -> Result<(), String> {
    let address = SocketAddr::new(resolve(&to.host).await?, to.port);
    let own = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(own).await.map_err(|error| error.to_string())?;
    socket.send_to(datagram, address).await.map_err(|error| error.to_string())?;
    Ok(())
}

async fn resolve(host: &str) -> Result<std::net::IpAddr, String> {
    if let Ok(address) = host.trim_start_matches('[').trim_end_matches(']').parse() {
        return Ok(address);
    }
    let mut builder = TokioResolver::builder_tokio().map_err(|error| error.to_string())?;
    builder.options_mut().ip_strategy = LookupIpStrategy::Ipv4thenIpv6;
    let resolver = builder.build().map_err(|error| error.to_string())?;
    let found = resolver.lookup_ip(host).await.map_err(|error| error.to_string())?;
    found.iter().next().ok_or_else(|| "the name has no address".to_owned())
}
