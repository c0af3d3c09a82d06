//! Scouts that prefetch for starting programs through a mount.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_fuse::{Log, Severity};
use esker_trails::{Keeper, Launch, Near, Scouted};
use esker_view::{Arrival, Foreseen, View};
use parking_lot::Mutex;

use crate::mounted::ImageMount;
use crate::repository::Repository;

/// Time without a read that waited for a server, after which a scout hinders no reader.
const CALM: Duration = Duration::from_secs(1);

/// Returns the tree of a repository with a scout, where one can be started: the mount works without it.
pub fn in_repository(
    repository: &Repository,
    view: &Arc<View>,
    launch: Launch,
    log: &Log,
) -> Option<Arc<Scouted>> {
    let keeper = Keeper::new(Some(repository.starts()));
    let scouted = or_say_why(Scouted::new(view.clone(), keeper, launch, is_calm(view)), log)?;
    let scout = Arc::downgrade(&scouted);
    view.tell_what_is_foreseen(Box::new(move |what| {
        let Some(scout) = scout.upgrade() else { return };
        match what {
            Foreseen::Bytes(Arrival { path, range, ends }) => scout.arrived(path, range.clone(), *ends),
            Foreseen::Folder(path) => scout.foreseen(path),
        }
    }));
    Some(scouted)
}

/// Returns the tree of an image with a scout, if one is wanted.
pub fn in_image(image: &mut ImageMount, launch: Launch, log: &Log) -> Option<Arc<Scouted>> {
    let keeper = image.trails.take()?;
    or_say_why(Scouted::new(image.tree.clone(), keeper, launch, Box::new(|| true)), log)
}

fn or_say_why(scouted: io::Result<Scouted>, log: &Log) -> Option<Arc<Scouted>> {
    let say = |error: &io::Error| {
        log(Severity::Notice, &format!("no scout: no thread can be started: {error}"));
    };
    scouted.inspect_err(say).ok().map(Arc::new)
}

/// Returns a check whether no read has had to wait for a while.
fn is_calm(view: &Arc<View>) -> Near {
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
