//! Starts replayers for mounts.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_prefetch::{RecordingTree, ReplayGate, SequenceStore, StartReplayer};
use esker_view::{Arrival, PrefetchEvent, View};
use parking_lot::Mutex;

use crate::mounted::ImageMount;
use crate::repository::Repository;

/// Time without misses after which a replayer does not delay programs that wait for a server.
const CALM: Duration = Duration::from_secs(1);

/// Wraps the tree of a repository with a replayer; `None` if no thread can be started, since the mount works without
/// one.
pub fn in_repository(
    repository: &Repository,
    view: &Arc<View>,
    starter: Arc<dyn StartReplayer>,
) -> Option<Arc<RecordingTree>> {
    let store = SequenceStore::new(Some(repository.starts()));
    let recording = or_log(RecordingTree::new(view.clone(), store, starter, is_calm(view)))?;
    let weak = Arc::downgrade(&recording);
    view.set_prefetch_listener(Box::new(move |what| {
        let Some(recording) = weak.upgrade() else { return };
        match what {
            PrefetchEvent::Bytes(Arrival { path, range, ends }) => {
                recording.arrived(path, range.clone(), *ends)
            }
            PrefetchEvent::Folder(path) => recording.expect_reads(path),
        }
    }));
    Some(recording)
}

/// Wraps the tree of an image with a recording of reads, if the image has a replayer.
pub fn in_image(image: &mut ImageMount, starter: Arc<dyn StartReplayer>) -> Option<Arc<RecordingTree>> {
    let store = image.sequences.take()?;
    or_log(RecordingTree::new(image.tree.clone(), store, starter, Box::new(|| true)))
}

fn or_log(recording: io::Result<RecordingTree>) -> Option<Arc<RecordingTree>> {
    let say = |error: &io::Error| tracing::warn!("no replayer: no thread can be started: {error}");
    recording.inspect_err(say).ok().map(Arc::new)
}

/// Returns a check that is true if no read had to wait for a while.
fn is_calm(view: &Arc<View>) -> ReplayGate {
    let calm = Mutex::new((view.misses(), Instant::now().checked_sub(CALM)));
    let view = Arc::clone(view);
    Box::new(move || {
        let (now, misses) = (Instant::now(), view.misses());
        let mut calm = calm.lock();
        if calm.0 != misses {
            *calm = (misses, Some(now));
        }
        calm.1.is_none_or(|since| now.saturating_duration_since(since) >= CALM)
    })
}
