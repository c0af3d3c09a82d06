//! Reads the traces of all mounts at the same time.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use esker_node::trace::client::{Stop, Subscription};
use esker_node::trace::{TraceEnd, TraceLine, TraceRequest, TracedCall};

use super::collected::Collected;
use super::targets::{Subscribed, last_line_deadline, subscribe};
use crate::error::Failure;
use crate::settings::Settings;

/// Number of lines that wait for the collector; further ones wait in the daemons.
const LINES_MAX: usize = 4096;
/// Time limit for reading what a trace has sent, after its connection was cut.
const CUT: Duration = Duration::from_secs(1);

/// Traces that are being read.
pub(super) struct Following {
    stops: Vec<Stop>,
    collector: JoinHandle<Collected>,
    /// Set when the traces were asked to end.
    ending: SyncSender<Message>,
}

enum Message {
    Call(usize, Box<TracedCall>),
    /// A trace ended; `None` if it ended early.
    End(usize, Option<TraceEnd>),
    /// The traces were asked to end: they have to until then.
    Ending(Instant),
}

impl Following {
    /// Subscribes to the mounts and starts to read.
    pub(super) fn begin(settings: &Settings, request: &TraceRequest) -> Result<Self, Failure> {
        let Subscribed { subscriptions, refused } = subscribe(settings, request)?;
        let (subscribed, hand_overs): (Vec<_>, Vec<_>) = subscriptions.into_iter().unzip();
        let failed = |error: std::io::Error| Failure::failed(format!("can't follow the traces: {error}"));
        let (sender, receiver) = sync_channel(LINES_MAX);
        let starts = subscribed.iter().map(|one| one.start.clone()).collect();
        let stops: Vec<Stop> =
            subscribed.iter().map(Subscription::stopper).collect::<Result<_, _>>().map_err(failed)?;
        let cuts: Vec<Stop> =
            subscribed.iter().map(Subscription::stopper).collect::<Result<_, _>>().map_err(failed)?;
        for (number, subscription) in subscribed.into_iter().enumerate() {
            let lines = sender.clone();
            esker_threads::spawn("trace", move || read(number, subscription, &lines)).map_err(failed)?;
        }
        let mut collected = Collected::new(starts, refused);
        collected.set_hand_over(hand_overs);
        let collector = esker_threads::spawn("trace-collect", move || collect(collected, &receiver, &cuts));
        Ok(Self { stops, collector: collector.map_err(failed)?, ending: sender })
    }

    /// Ends the traces and returns what they found.
    pub(super) fn end(self) -> Collected {
        self.stops.iter().for_each(Stop::stop);
        // Only if the collector panicked, which the next line reports.
        let _ = self.ending.send(Message::Ending(last_line_deadline()));
        self.collector
            .join()
            .unwrap_or_else(|_| Collected::new(Vec::new(), vec!["the collector panicked".to_owned()]))
    }
}

fn read(number: usize, mut subscription: Subscription, lines: &SyncSender<Message>) {
    loop {
        let message = match subscription.next_line() {
            Ok(Some(TraceLine::Call(call))) => Message::Call(number, call),
            Ok(Some(TraceLine::End(end))) => Message::End(number, Some(end)),
            Ok(None) | Err(_) => Message::End(number, None),
        };
        let is_last = matches!(message, Message::End(..));
        if lines.send(message).is_err() || is_last {
            return;
        }
    }
}

/// Collects calls until all traces have ended, or are late after they were asked to.
fn collect(mut collected: Collected, lines: &Receiver<Message>, cuts: &[Stop]) -> Collected {
    let mut running = collected.mounts.len();
    let mut asked = false;
    let mut deadline: Option<Instant> = None;
    let mut is_cut = false;
    while running > 0 || !asked {
        let message = match deadline {
            None => lines.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(deadline) => lines.recv_timeout(deadline.saturating_duration_since(Instant::now())),
        };
        match message {
            Ok(Message::Call(number, call)) => collected.add(number, &call),
            Ok(Message::End(number, end)) => {
                running -= 1;
                collected.ended(number, end);
            }
            Ok(Message::Ending(until)) => {
                asked = true;
                deadline = Some(until);
            }
            Err(RecvTimeoutError::Timeout) if !is_cut => {
                cuts.iter().for_each(Stop::cut);
                is_cut = true;
                deadline = Some(Instant::now() + CUT);
            }
            Err(_) => break,
        }
    }
    collected
}
