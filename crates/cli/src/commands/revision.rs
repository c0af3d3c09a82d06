use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use esker_node::control::{self, Request, Response};
use esker_node::registry::{self, Registered};
use esker_node::revisions::{Named, Revisions};
use esker_vfs::Time;

use crate::error::{Context, Failure, Kind, of_store, of_tree, warn};
use crate::output::{Output, show};
use crate::settings::Settings;
use crate::settings::args::RepositoryArgs;
use crate::settings::repository::ResolvedRepository;
use crate::trees::entry::time_text;

/// Shows the mounted revision, the server's newest revision, and tagged revisions.
///
/// Example: esker revision /mnt/sw
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Mount point, or repository: http://host[:port]/cvmfs/NAME or file:///…/NAME
    #[arg(value_name = "MOUNTPOINT|URL")]
    place: OsString,

    /// List tagged revisions, newest first
    #[arg(long)]
    list: bool,

    /// Make the mount check for a new revision now and move to it
    #[arg(long)]
    update: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    repository: RepositoryArgs,
}

/// Timeout for the server of a mount.
const SERVER_TIMEOUT: Duration = Duration::from_secs(10);
/// Additional time that the daemon may take.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of an update; the daemon reports a timeout earlier.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let found = match mounted(&args.place, settings)? {
        Some(mount) => of_mount(&mount, args)?,
        None if args.update => {
            return Err(Failure::usage(format!("{} is not mounted by you with esker", args.place.display()))
                .hint("--update is for mounts; `esker status` lists them"));
        }
        None => of_url(args, settings)?,
    };
    show(args.json, &found, |out| print(out, &found))
}

/// Returns the mount at this path, if a daemon of this user serves one.
fn mounted(place: &OsStr, settings: &Settings) -> Result<Option<Registered>, Failure> {
    let Ok(path) = esker_node::mounts::canonical(Path::new(place)) else { return Ok(None) };
    let found = registry::find(&settings.runtime, &path).context(Kind::Failed, "can't look up the mounts")?;
    Ok(found.filter(|found| found.alive))
}

fn of_mount(mount: &Registered, args: &Args) -> Result<Revisions, Failure> {
    let place = mount.entry.mountpoint.display();
    let asked = |request: &Request, patience| {
        let answer = control::ask(&mount.socket, request, patience);
        match answer.context(Kind::Failed, format!("can't ask the daemon of {place}"))? {
            Response::Failed { message } => Err(Failure::failed(format!("can't update {place}: {message}"))),
            answer => Ok(answer),
        }
    };
    if args.update
        && let Response::Updated { offline: Some(reason), .. } = asked(&Request::Update, UPDATE_TIMEOUT)?
    {
        warn(Some(&format!("{place} stays at its revision: {reason}")));
    }
    let request = Request::Revision { tags: args.list, patience: SERVER_TIMEOUT.as_secs() };
    match asked(&request, SERVER_TIMEOUT + DAEMON_TIMEOUT)? {
        Response::Revision(found) => Ok(*found),
        other => Err(Failure::failed(format!("the daemon of {place} answered {other:?}"))),
    }
}

fn of_url(args: &Args, settings: &Settings) -> Result<Revisions, Failure> {
    let place = args.place.to_str();
    let place = place.ok_or_else(|| {
        let place = args.place.display();
        Failure::usage(format!("{place} is neither a mount point nor the address of a repository"))
    })?;
    let checked = ResolvedRepository::new(place, &args.repository, settings)?;
    let what = format!("can't look up the revisions of {} at {}", checked.address.name, checked.address.url);
    let repository =
        esker_node::repository::Repository::open(checked.options).map_err(|error| of_store(&what, &error))?;
    let found = Revisions::look(&repository, args.list).map_err(|error| of_tree(&what, &error));
    repository.close();
    found
}

fn when(seconds: u64) -> String {
    time_text(Time { secs: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 })
}

fn print(out: &mut Output, found: &Revisions) -> Result<(), Failure> {
    let place = found.mountpoint.as_ref().map(|place| format!("{place} — ")).unwrap_or_default();
    out.line(out.bold(&format!("{place}{}", found.repository)))?;
    if let Some(shown) = &found.shown {
        let tag = shown.tag.as_ref().map(|tag| format!(" ({tag})")).unwrap_or_default();
        let stays = if shown.fixed { ", stays there" } else { "" };
        let since = when(shown.since);
        out.line(format!("  shown     revision {}{tag} since {since} UTC{stays}", shown.revision))?;
        out.line(format!("            root {}", shown.root_hash))?;
    }
    if let Some(newest) = &found.newest {
        let published =
            newest.published.map(|time| format!(", signed {} UTC", when(time))).unwrap_or_default();
        out.line(format!("  newest    revision {}{published}", newest.revision))?;
        out.line(format!("            root {}", newest.root_hash))?;
        out.line(format!("  looked for every {} s", newest.ttl))?;
    }
    if let Some(offline) = &found.offline {
        let text =
            format!("the server last confirmed that at {} UTC: {}", when(offline.since), offline.reason);
        out.line(format!("  {}", out.warning(&text)))?;
    }
    let Some(tags) = &found.tags else { return Ok(()) };
    if tags.is_empty() {
        return out.line("  no revision has a name");
    }
    let width = tags.iter().map(|tag| tag.name.chars().count()).max().unwrap_or_default();
    for tag in tags {
        out.line(tag_line(tag, width))?;
    }
    Ok(())
}

fn tag_line(tag: &Named, width: usize) -> String {
    let branch = if tag.branch.is_empty() { String::new() } else { format!(" on branch {}", tag.branch) };
    let published = time_text(Time { secs: tag.published, nanos: 0 });
    let line = format!(
        "  {:<width$}  {published} UTC  revision {}{branch}  {}  {}",
        tag.name, tag.revision, tag.root_hash, tag.description
    );
    line.trim_end().to_owned()
}
