//! Cache commands that need the repository: listing and fetching the objects of a file or folder.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::mpsc::channel;

use esker_store::{CacheKey, Callback, CancelToken, Freed, Handle, ObjectRequest, StoreError, Warmed};
use esker_vfs::{Kind as NodeKind, Node};

use super::{failed, label, open, tell_filled};
use crate::error::{Failure, Kind, of_store, of_tree};
use crate::output::{QuietArgs, lossy, size};
use crate::progress::ProgressMeter;
use crate::publisher::read_profile;
use crate::settings::Settings;
use crate::settings::address::split_path;
use crate::settings::args::{PlaceArgs, RepositoryArgs};
use crate::trees::browse::Browsed;

/// Fetches a file or folder into the cache and protects it from eviction.
///
/// The pin covers the present content; pin again after a new revision.
///
/// Example: esker cache pin http://server/cvmfs/sw.example.org:/gcc/14.2 --public-key sw.example.org.pub
#[derive(clap::Args, Debug)]
pub(crate) struct PinArgs {
    /// File or folder: http://server/cvmfs/NAME:/path
    #[arg(value_name = "URL:/PATH")]
    place: String,

    #[command(flatten)]
    repository: RepositoryArgs,

    #[command(flatten)]
    telling: OutputArgs,
}

/// Fetches a file, a folder, or the files of a profile into the cache.
///
/// Example: esker cache preload http://server/cvmfs/sw.example.org:/gcc/14.2 --public-key sw.example.org.pub
#[derive(clap::Args, Debug)]
pub(crate) struct PreloadArgs {
    /// File or folder: http://server/cvmfs/NAME:/path; with --profile only the repository
    #[arg(value_name = "URL[:/PATH]")]
    place: String,

    /// Profile that `esker profile record` wrote
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,

    #[command(flatten)]
    repository: RepositoryArgs,

    #[command(flatten)]
    telling: OutputArgs,
}

/// Options of the output.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(super) struct OutputArgs {
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    quiet: QuietArgs,
}

/// Maximum number of objects in flight; the network's own window is narrower.
const UNDER_WAY_MAX: usize = 512;

/// Objects without duplicates, with their requests.
#[derive(Default)]
struct Gathered {
    objects: HashMap<CacheKey, ObjectRequest>,
    files: u64,
}

/// Result of filling the cache.
#[derive(Default, serde::Serialize)]
pub(super) struct Filled {
    pub(super) files: u64,
    pub(super) objects: u64,
    pub(super) bytes: u64,
    pub(super) fetched_objects: u64,
    pub(super) fetched_bytes: u64,
}

pub(super) fn pin(args: PinArgs, settings: &Settings) -> Result<(), Failure> {
    let label = label(&args.place);
    let (folder, quota) = (args.repository.cache.clone(), args.repository.quota);
    let browsed = Browsed::open(&PlaceArgs::of(args.place, args.repository), settings)?;
    let mut meter = ProgressMeter::new(args.telling.quiet.is_set());
    let gathered = Gathered::below(&browsed, &mut meter)?;
    // First, so that later objects don't evict earlier ones.
    let members: Vec<_> = gathered.objects.iter().map(|(key, wanted)| (*key, plain_len(wanted))).collect();
    open(folder.as_ref(), quota, settings)?.pin(&label, &members).map_err(|error| {
        of_store("can't pin", &error).hint("raise the limit with --quota SIZE, or unpin something")
    })?;
    let filled = gathered.fetch(&browsed, &mut meter)?;
    drop(meter);
    tell_filled("pinned", &filled, args.telling)
}

pub(super) fn preload(args: PreloadArgs, settings: &Settings) -> Result<(), Failure> {
    let recorded = args.profile.as_deref().map(read_profile).transpose()?;
    if recorded.is_some() && split_path(&args.place).1.is_some() {
        return Err(Failure::usage("a profile names files itself: give the repository without a path"));
    }
    let browsed = Browsed::open(&PlaceArgs::of(args.place, args.repository), settings)?;
    let mut meter = ProgressMeter::new(args.telling.quiet.is_set());
    let gathered = match recorded {
        None => Gathered::below(&browsed, &mut meter)?,
        Some(named) => {
            let paths = named.profile.files.iter().map(|file| file.path.as_bytes());
            Gathered::of_files(&browsed, paths)?
        }
    };
    gathered.check_room(&browsed)?;
    let filled = gathered.fetch(&browsed, &mut meter)?;
    drop(meter);
    tell_filled("in the cache", &filled, args.telling)
}

/// Evicts the objects of a file or folder.
pub(super) fn evict(
    place: String,
    repository: RepositoryArgs,
    settings: &Settings,
) -> Result<Freed, Failure> {
    let (folder, quota) = (repository.cache.clone(), repository.quota);
    let browsed = Browsed::open(&PlaceArgs::of(place, repository), settings)?;
    let gathered = Gathered::below(&browsed, &mut ProgressMeter::new(true))?;
    let keys: Vec<CacheKey> = gathered.objects.into_keys().collect();
    // The catalogs are in use by ourselves until here.
    drop(browsed);
    open(folder.as_ref(), quota, settings)?.evict(&keys).map_err(failed("can't evict"))
}

fn plain_len(wanted: &ObjectRequest) -> u64 {
    wanted.size.unwrap_or_default()
}

impl Gathered {
    /// Collects all objects at and below the requested path, and the catalogs above it.
    fn below(browsed: &Browsed, meter: &mut ProgressMeter) -> Result<Self, Failure> {
        let mut gathered = Self::default();
        let walk = browsed.walk();
        let found = walk.resolve(browsed.path(), true)?;
        let mut to_do: Vec<(Vec<u8>, Node)> = vec![(browsed.path().to_vec(), found.node)];
        while let Some((path, node)) = to_do.pop() {
            match node.kind {
                NodeKind::Directory => to_do.extend(walk.list(&node, &path)?.into_iter().map(|entry| {
                    let path = [path.as_slice(), entry.name.as_slice()].join(&b'/');
                    (path, entry.node)
                })),
                NodeKind::File => gathered.add_file(browsed, &node, &path)?,
                _ => {}
            }
            meter.say(|| format!("looking: {} files", gathered.files));
        }
        gathered.add(browsed.view().catalogs());
        Ok(gathered)
    }

    /// Collects the objects of files by their paths; missing files are omitted.
    fn of_files<'p>(browsed: &Browsed, paths: impl Iterator<Item = &'p [u8]>) -> Result<Self, Failure> {
        let mut gathered = Self::default();
        let walk = browsed.walk();
        for path in paths {
            match walk.resolve(path, true) {
                Ok(found) if found.node.kind == NodeKind::File => {
                    gathered.add_file(browsed, &found.node, path)?;
                }
                Ok(_) => {}
                Err(failure) if failure.kind == Kind::Failed => {}
                Err(failure) => return Err(failure),
            }
        }
        gathered.add(browsed.view().catalogs());
        Ok(gathered)
    }

    fn add_file(&mut self, browsed: &Browsed, node: &Node, path: &[u8]) -> Result<(), Failure> {
        let objects = browsed.view().objects(node).map_err(|error| of_tree(&lossy(path), &error))?;
        self.files += 1;
        self.add(objects);
        Ok(())
    }

    fn add(&mut self, objects: Vec<ObjectRequest>) {
        self.objects.extend(objects.into_iter().map(|wanted| (wanted.key(), wanted)));
    }

    fn bytes(&self) -> u64 {
        self.objects.values().map(plain_len).sum()
    }

    /// Refuses a set that is larger than the cache, because its end would evict its beginning.
    fn check_room(&self, browsed: &Browsed) -> Result<(), Failure> {
        let (bytes, quota) = (self.bytes(), browsed.store().room().quota);
        if quota == 0 || bytes <= quota {
            return Ok(());
        }
        let what = browsed.describe();
        Err(Failure::failed(format!("{what} takes {} and the cache has {}", size(bytes), size(quota)))
            .hint("raise the limit with --quota SIZE, or preload less"))
    }

    /// Fetches all objects into the cache; an object that could not be prefetched is requested like a read.
    fn fetch(self, browsed: &Browsed, meter: &mut ProgressMeter) -> Result<Filled, Failure> {
        let (store, token) = (browsed.store(), CancelToken::default());
        let mut filled = Filled { files: self.files, bytes: self.bytes(), ..Filled::default() };
        let (total, bytes_total) = (self.objects.len(), filled.bytes);
        let mut left = self.objects.into_values();
        let (answers, came) = channel::<(ObjectRequest, Result<Warmed, StoreError>)>();
        let mut under_way = 0;
        loop {
            for wanted in left.by_ref().take(UNDER_WAY_MAX - under_way) {
                let (answers, again) = (answers.clone(), wanted.clone());
                // The receiver outlives the senders.
                let done = Callback::new(move |outcome| drop(answers.send((again, outcome))));
                under_way += 1;
                store.warm(wanted, &token, done);
            }
            if under_way == 0 {
                return Ok(filled);
            }
            let Ok((wanted, outcome)) = came.recv() else { return Ok(filled) };
            under_way -= 1;
            match outcome {
                Ok(Warmed::Here) => {}
                Ok(Warmed::Fetched(bytes)) => {
                    filled.fetched_objects += 1;
                    filled.fetched_bytes += bytes;
                }
                Err(_) => {
                    let demanded: Result<Handle, StoreError> =
                        Callback::wait(|done| store.get(wanted.clone(), done));
                    demanded.map_err(|error| of_store("can't fetch", &error))?;
                    filled.fetched_objects += 1;
                    filled.fetched_bytes += plain_len(&wanted);
                }
            }
            filled.objects += 1;
            meter.say(|| {
                format!(
                    "fetching: {} of {total} objects, {} fetched of {}",
                    filled.objects,
                    size(filled.fetched_bytes),
                    size(bytes_total)
                )
            });
        }
    }
}
