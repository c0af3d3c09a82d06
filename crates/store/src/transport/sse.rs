//! Listens to streams of server-sent events, and reconnects.
//!
//! An event is a hint that any server may have made up: the client then asks the repository itself. So nothing here
//! can do harm, and failures cost a connection attempt now and then.

mod events;

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, StatusCode, header};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::client::{Client, ClientOptions, Received};
use super::url::BaseUrl;
use crate::error::{Cause, StoreError};
use crate::servers::{Authorities, Dns};
use events::Events;

/// The pause after a stream that broke off; it doubles with each that brought nothing.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause.
const PAUSE_MAX: Duration = Duration::from_secs(120);
/// Pause if the server has no such stream.
const ABSENT: Duration = Duration::from_secs(3600);
/// Minimum duration of a stream that counts as a success.
const LASTED: Duration = Duration::from_secs(30);
/// Maximum number of events in a second, and bytes; publishers send fewer. Faster events wait, in the end at
/// the server.
const EVENTS_MAX: u32 = 4;
const BYTES_MAX: usize = 128 << 10;
/// Timeout for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a name, a connection and the start of a response together.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Called with the data of each event, on the thread that listens.
pub type EventHandler = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// Options of a stream.
#[derive(Clone, Debug)]
pub struct SseOptions {
    /// URL of the stream, `http://` or `https://`.
    pub url: String,
    /// Body of the request.
    pub body: String,
    /// Longest silence of a stream, heartbeats included, before it is closed.
    pub silence: Duration,
    /// Trusted certificate authorities.
    pub authorities: Authorities,
}

/// Status of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SseStatus {
    /// True while a stream is open.
    pub connected: bool,
    /// Number of events received.
    pub events: u64,
    /// Failure of the last stream or connection.
    pub failure: Option<String>,
}

/// A listener, which stops on drop.
#[derive(Debug)]
pub struct SseListener {
    url: String,
    status: Arc<Mutex<SseStatus>>,
    /// Sender whose drop ends the tasks.
    _stop: watch::Sender<()>,
}

/// End of a stream.
enum End {
    /// The server has no such stream.
    Absent(String),
    Broken(String),
}

impl SseListener {
    /// Starts to listen, on a thread of its own.
    pub fn start(listen: SseOptions, heard: EventHandler) -> Result<Self, StoreError> {
        let base = BaseUrl::parse(&listen.url)?;
        let status = Arc::<Mutex<SseStatus>>::default();
        let (stop, stopped) = watch::channel(());
        let listener = Listener { base, heard, status: status.clone() };
        let url = listen.url.clone();
        esker_threads::spawn("listen", move || listener.run(&listen, stopped)).map_err(|source| {
            let what = "the thread that listens for revisions";
            StoreError::new(what, Cause::Disk { doing: "starting", path: what.into(), source })
        })?;
        Ok(Self { url, status, _stop: stop })
    }

    /// Returns the URL of the stream.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the status of the stream.
    pub fn status(&self) -> SseStatus {
        self.status.lock().clone()
    }
}

struct Listener {
    base: BaseUrl,
    heard: EventHandler,
    status: Arc<Mutex<SseStatus>>,
}

impl Listener {
    fn run(self, listen: &SseOptions, mut stopped: watch::Receiver<()>) {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return self.status.lock().failure = Some(error.to_string()),
        };
        runtime.block_on(async {
            tokio::select! {
                () = self.keep_listening(listen) => {}
                // Dropping the sender is the word to stop.
                _ = stopped.changed() => {}
            }
        });
        // A name that is still being looked up must not hold the thread.
        runtime.shutdown_background();
    }

    async fn keep_listening(&self, listen: &SseOptions) {
        let mut failures = 0;
        loop {
            let began = Instant::now();
            let Err(end) = self.stream(listen).await;
            failures = if began.elapsed() >= LASTED { 1 } else { failures + 1 };
            let (pause, failure) = match end {
                End::Absent(why) => (ABSENT, why),
                End::Broken(why) => (PAUSE.saturating_mul(1 << failures.min(10)).min(PAUSE_MAX), why),
            };
            {
                let mut status = self.status.lock();
                status.connected = false;
                status.failure = Some(failure);
            }
            // All clients of a server that went away would come back in the same moment.
            sleep(spread(pause)).await;
        }
    }

    /// Opens a stream and handles its events until it ends.
    async fn stream(&self, listen: &SseOptions) -> Result<std::convert::Infallible, End> {
        let response = self.open(listen).await?;
        check(&response)?;
        {
            let mut status = self.status.lock();
            status.connected = true;
            status.failure = None;
        }
        let mut body = response.into_body();
        let (mut events, mut limit) = (Events::default(), EventRateLimit::begin());
        loop {
            let frame = timeout(listen.silence, body.frame()).await;
            let frame = frame.map_err(|_| End::Broken(format!("nothing came for {:?}", listen.silence)))?;
            let frame = frame.ok_or_else(|| End::Broken("the server ended the stream".into()))?;
            let Ok(data) = frame.map_err(|error| End::Broken(error.to_string()))?.into_data() else {
                continue;
            };
            // Of events that arrive together only the last count: each makes the earlier ones obsolete.
            let mut last: VecDeque<Vec<u8>> = VecDeque::new();
            let keep = |event: &[u8]| {
                if last.len() == EVENTS_MAX as usize {
                    last.pop_front();
                }
                last.push_back(event.to_owned());
            };
            events.take(&data, keep).map_err(|why| End::Broken(why.to_owned()))?;
            for event in last {
                limit.event().await;
                self.status.lock().events += 1;
                (self.heard)(&event);
            }
            limit.bytes(data.len()).await;
        }
    }

    async fn open(&self, listen: &SseOptions) -> Result<Response<Received<Full<Bytes>>>, End> {
        let broken = |error: &dyn std::fmt::Display| End::Broken(error.to_string());
        // A stream that is silent for too long is noticed where it is read.
        let stall = listen.silence + ANSWER_TIMEOUT;
        let client = Client::new(ClientOptions {
            authorities: listen.authorities.clone(),
            dns: Dns::default(),
            connect: CONNECT_TIMEOUT,
            stall,
            idle: Duration::ZERO,
        });
        let path = self.base.path_of("");
        let request = Request::get(format!("{}{}", self.base.origin(), path.trim_end_matches('/')))
            .header(header::ACCEPT, "text/event-stream")
            .body(Full::new(Bytes::from(listen.body.clone())))
            .map_err(|error| broken(&error))?;
        let answer = timeout(ANSWER_TIMEOUT, client.send(request)).await;
        let late = |_| End::Broken(format!("an answer took longer than {ANSWER_TIMEOUT:?}"));
        answer.map_err(late)?.map_err(|error| broken(&error))
    }
}

/// Events and bytes of the current second.
struct EventRateLimit {
    begun: Instant,
    events: u32,
    bytes: usize,
}

impl EventRateLimit {
    fn begin() -> Self {
        Self { begun: Instant::now(), events: 0, bytes: 0 }
    }

    /// Waits until another event may be processed.
    async fn event(&mut self) {
        self.events += 1;
        if self.events > EVENTS_MAX {
            self.next_second().await;
            self.events = 1;
        }
    }

    /// Waits until more may be read.
    async fn bytes(&mut self, len: usize) {
        self.bytes = self.bytes.saturating_add(len);
        if self.bytes > BYTES_MAX || self.begun.elapsed() >= SECOND {
            self.next_second().await;
        }
    }

    async fn next_second(&mut self) {
        sleep_until(self.begun + SECOND).await;
        *self = Self::begin();
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// Returns a random time between half and all of a pause.
fn spread(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) % 1024;
    pause / 2 + pause.mul_f64(random as f64 / 2048.0)
}

/// Checks that the response is a stream of events.
fn check<B>(response: &Response<B>) -> Result<(), End> {
    let status = response.status();
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        return Err(End::Broken(format!("the server answered with status {status}")));
    }
    if !status.is_success() {
        return Err(End::Absent(format!(
            "there is no such stream: the server answered with status {status}"
        )));
    }
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    match kind.unwrap_or_default().split(';').next() {
        Some("text/event-stream") => Ok(()),
        _ => Err(End::Absent("what is there is no stream of events".into())),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use esker_testkit::waiting::until;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// The excess of an endless series of events waits at the server.
    #[test]
    fn excess_events_wait_at_the_server() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/repo/.esker/revisions", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            client.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
            let _ = client.read(&mut [0; 4096]).unwrap();
            client.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n").unwrap();
            let events = b"event: revision\ndata: {\"revision\":1}\n\n".repeat(1000);
            let mut sent = 0;
            while sent < 1 << 30 && client.write_all(&events).is_ok() {
                sent += events.len();
            }
            sent
        });
        let begun = std::time::Instant::now();
        let listen = SseOptions {
            url,
            body: String::new(),
            silence: CONNECT_TIMEOUT,
            authorities: Authorities::default(),
        };
        let listening = SseListener::start(listen, Arc::new(|_| {})).unwrap();
        let sent = server.join().unwrap();
        assert!(sent < 1 << 30, "the server was never made to wait");
        // The server has sent it; this thread may be ahead of the client's.
        assert!(until(TIMEOUT, || listening.status().events > 0), "nothing was heard");
        let heard = listening.status().events;
        let seconds = begun.elapsed().as_secs() + 1;
        assert!(heard <= u64::from(EVENTS_MAX) * seconds, "{heard} events in {seconds} s");
    }
}
