mod fill;

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use esker_cache_share::admin::{CacheFolder, CacheReport, DamagedRow};
use esker_cache_share::location::{CacheLocation, RejectedCandidate, is_cache};
use esker_store::{BlockCache, CheckProgress, Freed, PinSet};
use serde::Serialize;

use crate::error::{Failure, Kind, of_store};
use crate::output::{JsonArray, Output, QuietArgs, parse_size, show, size};
use crate::progress::ProgressMeter;
use crate::publisher::Interrupt;
use crate::settings::Settings;
use crate::settings::address::split_path;
use crate::settings::args::RepositoryArgs;
use crate::settings::cache::default_quota;
use crate::settings::cache::place_lines;
commands! {
    /// Shows, fills, checks and empties the cache.
    ///
    /// Works with and without mounts.
    ///
    /// Example: esker cache status
    args, call;
    Status(FolderArgs) => status(&args, call.settings);
    List(ListArgs) => list(&args, call.settings);
    Pin(fill::PinArgs) => fill::pin(args, call.settings);
    Unpin(UnpinArgs) => unpin(&args, call.settings);
    Evict(EvictArgs) => evict(args, call.settings);
    Wipe(WipeArgs) => wipe(&args, call.settings);
    Check(CheckArgs) => check(&args, call.settings);
    Preload(fill::PreloadArgs) => fill::preload(args, call.settings);
}

/// Shows the size, limit and faults of the cache.
///
/// Example: esker cache status --json
#[derive(clap::Args, Debug)]
pub(crate) struct FolderArgs {
    /// Cache folder
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Lists the objects in the cache, least recently used first, or the pinned files and folders.
///
/// Example: esker cache list --pins
#[derive(clap::Args, Debug)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    folder: FolderArgs,

    /// List pinned files and folders in place of objects
    #[arg(long)]
    pins: bool,
}

/// Unpins files and folders, so that they can be evicted.
///
/// Example: esker cache unpin sw.example.org:/gcc/14.2
#[derive(clap::Args, Debug)]
pub(crate) struct UnpinArgs {
    /// Pinned file or folder, as in the output of `esker cache list --pins` or in the arguments of `esker cache pin`
    #[arg(value_name = "NAME:/PATH", required = true)]
    names: Vec<String>,

    /// Cache folder
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

/// Evicts the least recently used objects, or those of a file or folder.
///
/// Objects in use and pinned objects stay.
///
/// Example: esker cache evict --to 2G
#[derive(clap::Args, Debug)]
pub(crate) struct EvictArgs {
    /// File or folder: http://server/cvmfs/NAME:/path
    #[arg(value_name = "URL:/PATH", required_unless_present = "to")]
    place: Option<String>,

    /// Size of the cache to evict down to, like 500M or 2GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "place")]
    to: Option<u64>,

    #[command(flatten)]
    repository: RepositoryArgs,

    #[command(flatten)]
    _quiet: QuietArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Evicts all objects that are neither in use nor pinned.
///
/// The last accepted revision of each repository is kept unless --heads is given.
///
/// Example: esker cache wipe
#[derive(clap::Args, Debug)]
pub(crate) struct WipeArgs {
    #[command(flatten)]
    folder: FolderArgs,

    /// Evict pinned objects too
    #[arg(long)]
    pinned: bool,

    /// Forget the last accepted revisions too, and with them the protection against rollback
    #[arg(long)]
    heads: bool,

    #[command(flatten)]
    _quiet: QuietArgs,
}

/// Compares every object with the digest recorded when it was verified.
///
/// A read never returns a damaged object: the next read finds it and fetches it again, with or without --remove. Exit
/// code 4 reports damage.
///
/// Example: esker cache check --remove
#[derive(clap::Args, Debug)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    folder: FolderArgs,

    /// Remove damaged objects
    #[arg(long)]
    remove: bool,

    #[command(flatten)]
    quiet: QuietArgs,
}

/// Opens the cache of the options.
fn open(named: Option<&PathBuf>, quota: Option<u64>, settings: &Settings) -> Result<CacheFolder, Failure> {
    // Looking after a cache is allowed wherever it is.
    let place = settings.cache(named.map(PathBuf::as_path), true)?;
    let folder = &place.path;
    // Opening it would make one of any folder that was named by mistake.
    if !is_cache(folder) {
        return Err(Failure::failed(format!("there is no cache at {}", folder.display()))
            .hint("it is made by the first mount; name another with --cache DIR"));
    }
    CacheFolder::open(folder, quota.unwrap_or_else(|| default_quota(&place)))
        .map_err(|error| of_store(&format!("can't manage {}", folder.display()), &error))
}

fn failed(what: &str) -> impl Fn(esker_store::StoreError) -> Failure + '_ {
    move |error| of_store(what, &error)
}

fn status(args: &FolderArgs, settings: &Settings) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Whole {
        #[serde(flatten)]
        report: CacheReport,
        pins: Vec<PinSet>,
        /// Origin of the folder's path.
        from: String,
        passed_over: Vec<RejectedCandidate>,
    }
    let place = settings.cache(args.cache.as_deref(), true)?;
    let mut cache = open(args.cache.as_ref(), None, settings)?;
    let report = cache.report().map_err(failed("can't read the state of the cache"))?;
    let pins = cache.pins().map_err(failed("can't read the pins"))?;
    let mut out = Output::new();
    if args.json {
        let CacheLocation { from, passed_over, .. } = place;
        out.json(&Whole { report, pins, from, passed_over })?;
        return out.finish();
    }
    let writer = match report.writer {
        Some(pid) => format!("written by process {pid}"),
        None => "not in use".to_owned(),
    };
    let state = &report.state;
    out.line(out.bold(&format!("{} — {writer}", report.directory.display())))?;
    let quota = if report.writer.is_some() { format!(" of {}", size(state.quota)) } else { String::new() };
    out.line(format!("  used      {}{quota}, {} objects", size(state.used), state.objects))?;
    out.line(format!("  pinned    {}, {} objects", size(state.pinned), state.pinned_objects))?;
    for pin in &pins {
        out.line(format!("            {} ({} objects, {})", pin.label, pin.objects, size(pin.bytes)))?;
    }
    for line in place_lines(&place) {
        out.line(format!("  place     {line}"))?;
    }
    if report.writer.is_some() {
        out.line(format!("  evicted   {} objects", state.evicted))?;
    }
    let lower = state.lower;
    if lower.found + lower.given > 0 {
        let found = format!("{} objects ({}) came from there", lower.found, size(lower.found_bytes));
        out.line(format!("  below     {found}, {} were put there", lower.given))?;
    }
    let troubles = [
        (lower.refused, "files of lower caches failed verification or could not be read, and were fetched"),
        (lower.late, "reads went to the network because a lower cache did not answer"),
        (state.over_quota, "times everything above the quota was in use"),
        (state.unkept, "objects were served without being cached: no room, or the disk failed"),
        (state.disk_errors, "operations on the disk failed"),
        (state.damaged, "objects were found damaged, and fetched again"),
    ];
    for (count, what) in troubles.iter().filter(|(count, _)| *count > 0) {
        out.line(format!("  {}", out.warning(&format!("{count} {what}"))))?;
    }
    out.finish()
}

fn list(args: &ListArgs, settings: &Settings) -> Result<(), Failure> {
    let mut cache = open(args.folder.cache.as_ref(), None, settings)?;
    let mut out = Output::new();
    if args.pins {
        let pins = cache.pins().map_err(failed("can't read the pins"))?;
        if args.folder.json {
            out.json_array(pins.iter())?;
        } else {
            for pin in pins {
                out.line(format!("{}  {} objects, {}", pin.label, pin.objects, size(pin.bytes)))?;
            }
        }
        return out.finish();
    }
    let mut array = if args.folder.json { Some(JsonArray::begin(&mut out)?) } else { None };
    let mut wrote = Ok(());
    cache
        .list(|row| {
            wrote = match &mut array {
                Some(array) => array.add(&mut out, &row),
                None => {
                    let flag = |set: bool, letter: char| if set { letter } else { '-' };
                    let flags: String =
                        [flag(row.pinned, 'p'), flag(row.in_use, 'u'), flag(row.unchecked, 'c')]
                            .iter()
                            .collect();
                    out.line(format!("{flags} {:>12} {}", row.size, row.object))
                }
            };
            wrote.is_ok()
        })
        .map_err(failed("can't list the cache"))?;
    wrote?;
    if let Some(array) = array {
        array.end(&mut out)?;
    }
    out.finish()
}

/// Returns the label of a pinned place: the repository's name and the path, from whichever server it is fetched.
fn label(place: &str) -> String {
    let (repository, path) = split_path(place);
    let name = repository.trim_end_matches('/').rsplit('/').next().unwrap_or(repository);
    let path = path.unwrap_or("/").trim_matches('/');
    format!("{name}:/{path}")
}

fn unpin(args: &UnpinArgs, settings: &Settings) -> Result<(), Failure> {
    let mut cache = open(args.cache.as_ref(), None, settings)?;
    for name in &args.names {
        let name = label(name);
        if !cache.unpin(&name).map_err(failed("can't unpin"))? {
            return Err(Failure::failed(format!("{name} is not pinned"))
                .hint("`esker cache list --pins` lists what is"));
        }
    }
    Ok(())
}

fn evict(args: EvictArgs, settings: &Settings) -> Result<(), Failure> {
    let (folder, quota) = (args.repository.cache.clone(), args.repository.quota);
    let what = "can't evict";
    let freed = match (args.to, args.place) {
        (Some(bytes), _) => open(folder.as_ref(), quota, settings)?.evict_to(bytes).map_err(failed(what))?,
        (None, Some(place)) => fill::evict(place, args.repository, settings)?,
        (None, None) => return Err(Failure::usage("name a path or use --to SIZE")),
    };
    tell(&freed, args.json)
}

fn wipe(args: &WipeArgs, settings: &Settings) -> Result<(), Failure> {
    let mut cache = open(args.folder.cache.as_ref(), None, settings)?;
    let freed = cache.wipe(args.pinned, args.heads).map_err(failed("can't wipe the cache"))?;
    // A reader of an image fetches missing blocks again.
    let folder = settings.cache(args.folder.cache.as_deref(), true)?.path;
    let images = BlockCache::open(&folder, 0).and_then(|parts| parts.wipe());
    let image_bytes = images.map_err(failed("can't wipe the parts of images"))?;
    tell_of(&Wiped { freed, image_bytes }, args.folder.json)
}

/// Result of a wipe. Field names are an interface.
#[derive(Serialize)]
struct Wiped {
    #[serde(flatten)]
    freed: Freed,
    image_bytes: u64,
}

fn tell_of(wiped: &Wiped, json: bool) -> Result<(), Failure> {
    if !json {
        if wiped.image_bytes > 0 {
            let mut out = Output::new();
            out.line(format!("removed {} of images", size(wiped.image_bytes)))?;
            out.finish()?;
        }
        return tell(&wiped.freed, false);
    }
    let mut out = Output::new();
    out.json(wiped)?;
    out.finish()
}

fn tell(freed: &Freed, json: bool) -> Result<(), Failure> {
    show(json, freed, |out| {
        out.line(format!("evicted {} objects, {}", freed.objects, size(freed.bytes)))?;
        for (count, why) in [(freed.in_use, "in use"), (freed.pinned, "pinned")] {
            if count > 0 {
                out.line(format!("{count} objects stay, because they are {why}"))?;
            }
        }
        Ok(())
    })
}

fn tell_filled(what: &str, filled: &fill::Filled, telling: fill::OutputArgs) -> Result<(), Failure> {
    show(telling.json, filled, |out| {
        let fill::Filled { files, objects, bytes, fetched_objects, fetched_bytes } = *filled;
        out.line(format!(
            "{what}: {files} files, {objects} objects, {}; fetched {fetched_objects} objects, {}",
            size(bytes),
            size(fetched_bytes)
        ))
    })
}

fn check(args: &CheckArgs, settings: &Settings) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Checked {
        #[serde(flatten)]
        progress: CheckProgress,
        damaged: Vec<DamagedRow>,
    }
    let stop = Interrupt::on_signals()?.flag();
    let mut cache = open(args.folder.cache.as_ref(), None, settings)?;
    let mut meter = ProgressMeter::new(args.quiet.is_set());
    let mut checked = Checked { progress: CheckProgress::default(), damaged: Vec::new() };
    let heard = |progress: CheckProgress, damaged: Option<DamagedRow>| {
        checked.progress = progress;
        checked.damaged.extend(damaged);
        let CheckProgress { objects, objects_total, bytes, bytes_total } = progress;
        meter.say(|| {
            format!(
                "checking: {objects} of {objects_total} objects, {} of {}",
                size(bytes),
                size(bytes_total)
            )
        });
        !stop.load(Ordering::Relaxed)
    };
    cache.check(args.remove, heard).map_err(failed("can't check the cache"))?;
    drop(meter);
    show(args.folder.json, &checked, |out| {
        for one in &checked.damaged {
            let end = if one.removed { ", removed" } else { "" };
            out.fault(format!("{}: {}{end}", one.object, one.problem))?;
        }
        let CheckProgress { objects, bytes, .. } = checked.progress;
        let damaged = checked.damaged.len();
        out.line(format!("checked {objects} objects, {}: {damaged} damaged", size(bytes)))
    })?;
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::new(Kind::Interrupted, "interrupted; the rest of the cache was not checked"));
    }
    match checked.damaged.len() {
        0 => Ok(()),
        count if args.remove => {
            Err(Failure::new(Kind::Damaged, format!("{count} objects of the cache were damaged"))
                .hint("they were removed and will be fetched again; if this recurs, check the disk"))
        }
        count => Err(Failure::new(Kind::Damaged, format!("{count} objects of the cache are damaged"))
            .hint("`esker cache check --remove` removes them; they will be fetched again")),
    }
}

#[cfg(test)]
mod tests {
    use super::label;

    #[test]
    fn the_label_of_a_pinned_place_is_independent_of_the_server() {
        for place in [
            "http://a:8000/cvmfs/sw.test:/lib/",
            "/srv/sw.test:/lib",
            "sw.test:/lib",
            "http://b/sw.test/:/lib",
        ] {
            assert_eq!(label(place), "sw.test:/lib", "{place}");
        }
        assert_eq!(label("http://a/sw.test"), "sw.test:/");
    }
}
