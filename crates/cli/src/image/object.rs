//! Reads an image that is a file of a repository, block by block on demand; the repository authenticates it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use esker_node::mount_spec::{ImagePlace, RepositorySpec};
use esker_squashfs::Image;
use esker_threads::waits::{self, WaitTimes};
use esker_vfs::{Kind as NodeKind, Node, Pending, Progress, Reply, Requester, Tree, Waits};
use esker_view::Pin;

use crate::error::Failure;
use crate::settings::Settings;
use crate::settings::args::{PlaceArgs, RepositoryArgs};
use crate::settings::colon::hint_at_colon;
use crate::trees::browse::Browsed;

/// A file of one revision, which stays the same when newer revisions are published.
pub(super) struct ObjectImage {
    tree: Arc<dyn Tree>,
    node: Node,
    name: Arc<str>,
    offset: u64,
    len: u64,
    reads: Arc<Reads>,
    /// Repository that contains the image; closed with it.
    _browsed: Browsed,
}

/// Resolves the repository that has the image.
pub(super) fn resolve(
    named: &str,
    path: &str,
    repository: &RepositoryArgs,
    settings: &Settings,
) -> Result<ImagePlace, Failure> {
    let place = PlaceArgs::of(format!("{named}:{path}"), repository.clone());
    let spec = Browsed::resolve(&place, Some(Pin::Head), settings);
    let repository = Box::new(spec.map_err(|failure| hint_at_colon(named, failure))?);
    Ok(ImagePlace::Object { named: named.to_owned(), repository, path: path.to_owned() })
}

/// Opens the image at a path of a repository, and keeps the options at the opened revision.
pub(super) fn open(spec: &mut RepositorySpec, path: &str, offset: u64) -> Result<ObjectImage, Failure> {
    let browsed = Browsed::open_resolved(spec.options.clone(), spec.view.clone(), path.as_bytes())?;
    spec.view.pin = Some(Pin::Root(browsed.view().status().root_hash));
    let found = browsed.walk().resolve(browsed.path(), true)?;
    let name = browsed.describe();
    let tree = browsed.tree();
    if found.attr.kind != NodeKind::File {
        return Err(Failure::usage(format!("{name} is not a file, so it can't be an image"))
            .hint("a folder of a repository can be the root of a command: esker run NAME:/path -- COMMAND"));
    }
    let size = found.attr.size;
    let len = size.checked_sub(offset);
    let len = len.ok_or_else(|| Failure::usage(format!("{name} has only {size} bytes")))?;
    let reads = Arc::default();
    Ok(ObjectImage { tree, node: found.node, name: name.into(), offset, len, reads, _browsed: browsed })
}

impl Image for ObjectImage {
    fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while let Some(room) = buffer.get_mut(filled..).filter(|room| !room.is_empty()) {
            let at = self.offset.saturating_add(offset).saturating_add(filled as u64);
            let read = Arc::new(Read::default());
            self.reads.begin(&read);
            let (requester, began) = (Requester::new(read.clone()), Instant::now());
            let data = Reply::wait(|reply| {
                self.tree.read(&self.node, at, room.len(), reply.for_requester(requester));
            });
            self.reads.end(&read);
            waits::add_to_tally(read.waits().within(began.elapsed()));
            let bytes = data.map_err(io::Error::other)?.to_vec()?;
            let there = room.get_mut(..bytes.len()).filter(|there| !there.is_empty());
            there.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(&bytes);
            filled += bytes.len();
        }
        Ok(())
    }

    fn progress(&self) -> Option<Instant> {
        self.reads.progress()
    }
}

/// Reads of the image file that are in flight.
#[derive(Default)]
struct Reads(Mutex<UnderWay>);

#[derive(Default)]
struct UnderWay {
    reads: Vec<Arc<Read>>,
    /// Latest progress of the completed transfers.
    before: Option<Instant>,
}

/// An object, and the progress of the transfers that it waits for.
#[derive(Default)]
struct Read(Mutex<(Vec<Progress>, Vec<Waits>)>);

impl Pending for Read {
    fn user(&self) -> Option<u32> {
        None
    }

    fn follow(&self, progress: Progress) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.push(progress);
    }

    fn add_waits(&self, waits: Waits) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.push(waits);
    }
}

impl Read {
    fn progress(&self) -> Option<Instant> {
        let followed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        followed.0.iter().filter_map(|progress| progress()).max()
    }

    fn waits(&self) -> WaitTimes {
        let followed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        followed.1.iter().fold(WaitTimes::default(), |all, waits| all + waits())
    }
}

impl Reads {
    fn begin(&self, read: &Arc<Read>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).reads.push(read.clone());
    }

    fn end(&self, read: &Arc<Read>) {
        let last = read.progress();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.before = all.before.max(last);
        all.reads.retain(|other| !Arc::ptr_eq(other, read));
    }

    fn progress(&self) -> Option<Instant> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.reads.iter().filter_map(|read| read.progress()).chain(all.before).max()
    }
}
