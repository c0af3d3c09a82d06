//! Announces new revisions to clients, with one stream upstream for all of them.
//!
//! An event from upstream is only a hint to look. Clients hear of a revision when the proxy has its manifest and its root
//! catalog, so that none asks too early.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use esker_format::manifest;
use esker_store::{SseListener, SseOptions};
use serde_json::json;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{sleep, timeout};

use super::heads::Heads;
use super::place::{Place, Revision};
use crate::events::HEARTBEAT;
use crate::transport::shares::Share;

/// Longest silence of the stream from upstream: three heartbeats.
const SILENCE: Duration = Duration::from_secs(45);
/// Minimum time between two requests for a new revision.
const PAUSE: Duration = Duration::from_millis(250);

/// Starts to send events to a client, which are received from the returned channel.
pub(crate) fn listen(
    heads: &Arc<Heads>,
    place: &Arc<Place>,
    permit: (OwnedSemaphorePermit, Share),
) -> mpsc::Receiver<Bytes> {
    let known = place.revision.subscribe();
    if !place.is_watched.swap(true, Ordering::AcqRel) {
        tokio::spawn(watch(heads.clone(), place.clone()));
    }
    let (sender, events) = mpsc::channel(1);
    let name = place.title().to_owned();
    tokio::spawn(async move {
        tell(&name, known, &sender).await;
        drop(permit);
    });
    events
}

/// Sends each new revision, and heartbeats, until the client closes.
async fn tell(name: &str, mut known: watch::Receiver<Option<Revision>>, sender: &mpsc::Sender<Bytes>) {
    let mut told = None;
    loop {
        let now = known.borrow_and_update().clone();
        let event = if now.is_some() && now != told {
            told = now;
            told.as_ref().map(|revision| event(name, revision)).unwrap_or_default()
        } else {
            let changed = tokio::select! {
                changed = timeout(HEARTBEAT, known.changed()) => changed,
                () = sender.closed() => return,
            };
            match changed {
                Ok(Ok(())) => continue,
                Ok(Err(_)) => return,
                Err(_) => Bytes::from_static(b":\n\n"),
            }
        };
        if sender.send(event).await.is_err() {
            return;
        }
    }
}

fn event(name: &str, Revision { number, root, signed }: &Revision) -> Bytes {
    let data = json!({ "repository": name, "revision": number, "root_hash": root, "signed": signed });
    format!("event: revision\nid: {number}\ndata: {data}\n\n").into()
}

/// Polls for new revisions while there are listeners: at each hint of upstream, and at intervals.
async fn watch(heads: Arc<Heads>, place: Arc<Place>) {
    let hint = Arc::new(Notify::new());
    let _listener = place.urls.first().and_then(|url| {
        let heard = hint.clone();
        let options = SseOptions {
            url: format!("{url}/.esker/revisions"),
            body: String::new(),
            silence: SILENCE,
            authorities: heads.objects.upstream.authorities().clone(),
        };
        // Without the stream new revisions are found a little later.
        SseListener::start(options, Arc::new(move |_: &[u8]| heard.notify_one())).ok()
    });
    let interval = heads.options.age.max(Duration::from_secs(1));
    loop {
        while place.revision.receiver_count() > 0 {
            let hinted = timeout(interval, hint.notified()).await.is_ok();
            // A failure is logged where it happens.
            let _ = heads.get(&place, manifest::PATH, hinted).await;
            // Hints are not trusted: more of them are no reason for more requests.
            sleep(PAUSE).await;
        }
        place.is_watched.store(false, Ordering::Release);
        // A client may have come just before; it left the task to this one.
        if place.revision.receiver_count() == 0 || place.is_watched.swap(true, Ordering::AcqRel) {
            return;
        }
    }
}
