//! Refuses clients of networks that the server does not answer, before anything of them is read.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::Transport;
use crate::answer::Answer;
use crate::counters::Limit;

/// Maximum number of refused clients that get a response with the reason; further ones are only disconnected.
const TOLD_MAX: usize = 64;
/// Time limit for telling a client.
const TELL_MAX: Duration = Duration::from_secs(2);
/// Maximum number of bytes of its request that are read. A client that has sent its request receives the response.
const REQUEST_MAX: u64 = 64 << 10;

/// The networks of clients of a listening socket, and the refusals in progress.
pub(crate) struct Strangers<'t> {
    transport: &'t Transport,
    telling: Arc<Semaphore>,
}

impl<'t> Strangers<'t> {
    pub(crate) fn new(transport: &'t Transport) -> Self {
        Self { transport, telling: Arc::new(Semaphore::new(TOLD_MAX)) }
    }

    /// Returns the connection of a client that is answered; refuses others with status 403.
    pub(crate) fn admit(&self, stream: TcpStream, client: IpAddr, is_secure: bool) -> Option<TcpStream> {
        // The client behind a load balancer is looked at once that has told its address.
        let clients = self.transport.clients.as_ref().filter(|_| !self.transport.is_balancer(client));
        let Some(clients) = clients.filter(|clients| !clients.has(client)) else { return Some(stream) };
        self.transport.counters.limited(Limit::Networks);
        // TLS would take more work than such a client is worth.
        if !is_secure && let Ok(permit) = self.telling.clone().try_acquire_owned() {
            let answer = Answer::explained(403, &clients.refusal(client)).whole();
            tokio::spawn(async move {
                // The client is gone.
                let _ = timeout(TELL_MAX, tell(stream, &answer)).await;
                drop(permit);
            });
        }
        None
    }
}

/// Sends a response, and reads what the client sends: closing the connection before that would take the response from it.
async fn tell(mut stream: TcpStream, answer: &[u8]) -> std::io::Result<()> {
    stream.write_all(answer).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(REQUEST_MAX), &mut tokio::io::sink()).await.map(drop)
}
