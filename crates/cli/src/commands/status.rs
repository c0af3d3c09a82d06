mod others;

use std::path::{Path, PathBuf};
use std::time::Duration;

use esker_cache_share::memory::is_memory;
use esker_node::control::{self, Request, Response};
use esker_node::mounts::holders::Holder;
use esker_node::mounts::search::HolderSearch;
use esker_node::mounts::{self, MountLine};
use esker_node::registry::{self, Registered, users};
use esker_node::status::{Image, MountStatus, Presentation};
use esker_store::{EndpointStatus, RouteStatus};
use esker_vfs::Time;
use serde::Serialize;

use crate::error::{Context, Failure, Kind, chain};
use crate::mounting::held;
use crate::output::{Output, size};
use crate::settings::Settings;
use crate::trees::entry::time_text;

/// Shows mounts with their servers, revisions and last errors.
///
/// Root sees the mounts of all users; other users see their own and a summary of root's.
///
/// Example: esker status
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Show only this mount
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Timeout for a daemon's reply.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A mount and, if it is another user's, that user. Field names are an interface.
#[derive(Serialize)]
struct Shown {
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<u32>,
    /// Namespaces that hold the mount, if its place is gone here.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_elsewhere: Option<Vec<Holder>>,
    #[serde(flatten)]
    mount: Mount,
}

impl Shown {
    fn at_its_place(user: Option<u32>, mount: Mount) -> Self {
        Self { user, held_elsewhere: None, mount }
    }
}

/// A mount in the output. Field names are an interface.
#[derive(Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum Mount {
    /// The daemon of the mount replies.
    Serving(Box<MountStatus>),
    /// The daemon of the mount is alive but does not reply.
    Silent { mountpoint: String, repository: String, url: String, pid: u32, reason: String },
    /// A mount of root, with the facts that other users may know.
    Shared { mountpoint: String, repository: String, revision: Option<u64> },
    /// A mount without an entry in its user's registry.
    Unregistered { mountpoint: String, source: String },
    /// The daemon of the mount was killed.
    Dead { mountpoint: String, repository: String, url: String, pid: u32 },
}

#[derive(Serialize)]
struct All {
    mounts: Vec<Shown>,
}

pub(crate) fn run(args: Args, settings: &Settings) -> Result<(), Failure> {
    let lines = mounts::all().context(Kind::Failed, "can't read the list of mounts")?;
    let mut registered =
        registry::all(&settings.runtime).context(Kind::Failed, "can't look up the mounts")?;
    let mut departed =
        registry::departed(&settings.runtime).context(Kind::Failed, "can't look up the mounts")?;
    let holders = HolderSearch::read();
    // Root of a user namespace has no rights over other users.
    let mut theirs = if settings.root { users::with_departed(&users::Places::default()) } else { Vec::new() };
    let mut strangers = registry::strangers(lines, &settings.runtime, &registered)
        .context(Kind::Failed, "can't read the list of mounts")?;
    // Another mount may be at their place.
    registered.append(&mut departed);
    // A command of `esker run` has an image as its root.
    strangers.retain(|line| line.mountpoint != Path::new("/") && !others::is_registered(line, &theirs));
    let me = rustix::process::geteuid().as_raw();
    // An overlay doesn't tell whose it is, and is root's.
    let (mut own, mut strangers): (Vec<_>, Vec<_>) =
        strangers.into_iter().partition(|line| line.user.unwrap_or(0) == me);
    strangers.retain(|line| settings.root || line.user.unwrap_or(0) == 0);
    if let Some(wanted) = &args.mountpoint {
        let path =
            mounts::canonical(wanted).context(Kind::Failed, format!("can't look up {}", wanted.display()))?;
        registered.retain(|one| one.entry.mountpoint == path);
        theirs.retain(|one| one.entry.mountpoint == path);
        own.retain(|line| line.mountpoint == path);
        strangers.retain(|line| line.mountpoint == path);
        if registered.is_empty() && theirs.is_empty() && own.is_empty() && strangers.is_empty() {
            let failure = Failure::failed(format!("{} is not a mount of esker", path.display()));
            return Err(failure.hint("`esker status` lists all that are"));
        }
    }
    // Asked at the same time, so that silent ones cost their patience only once.
    let mut shown: Vec<Shown> = std::thread::scope(|scope| {
        let asking: Vec<_> = registered.iter().map(|one| scope.spawn(|| ask(one))).collect();
        let theirs = others::ask_users(scope, &theirs, &holders);
        let shared: Vec<_> = match settings.root {
            true => Vec::new(),
            false => others::ask_shared(scope, &strangers),
        };
        let answers = asking.into_iter().map(|thread| thread.join().ok().flatten());
        let mut shown: Vec<Shown> = registered
            .iter()
            .zip(answers)
            .filter_map(|(one, mount)| {
                Some(Shown { user: None, held_elsewhere: holders.of(&one.entry, one.alive), mount: mount? })
            })
            .collect();
        shown.extend(own.iter().map(|line| Shown::at_its_place(None, unregistered(line))));
        shown.extend(theirs.into_iter().filter_map(|thread| thread.join().ok()?));
        shown.extend(shared.into_iter().filter_map(|thread| thread.join().ok()));
        shown
    });
    if settings.root {
        let of_others = strangers.iter();
        shown.extend(of_others.map(|line| Shown::at_its_place(line.user, others::unregistered(line))));
    }
    let mut out = Output::new();
    if args.json {
        out.json(&All { mounts: shown })?;
    } else if shown.is_empty() {
        out.line("nothing is mounted")?;
    } else {
        for one in &shown {
            print(&mut out, one, settings)?;
        }
    }
    out.finish()
}

fn unregistered(line: &MountLine) -> Mount {
    Mount::Unregistered { mountpoint: line.mountpoint.display().to_string(), source: line.source_text() }
}

/// Requests the status of a mount from its daemon; `None` if the mount is gone by then.
fn ask(one: &Registered) -> Option<Mount> {
    let entry = &one.entry;
    let (mountpoint, repository, url) =
        (entry.mountpoint.display().to_string(), entry.repository.clone(), entry.url.clone());
    if !one.alive && entry.command.is_some() {
        // Its mount ended with it.
        one.forget();
        return None;
    }
    if !one.alive {
        return Some(Mount::Dead { mountpoint, repository, url, pid: entry.pid });
    }
    let reason = match control::ask(&one.socket, &Request::Status, TIMEOUT) {
        Ok(Response::Status(status)) => return Some(Mount::Serving(status)),
        Ok(other) => format!("it answered {other:?}"),
        Err(_) if one.wait_until_gone(Duration::ZERO) => return None,
        Err(error) => chain(&error),
    };
    Some(Mount::Silent { mountpoint, repository, url, pid: entry.pid, reason })
}

fn when(seconds: u64) -> String {
    time_text(Time { secs: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 })
}

fn print(out: &mut Output, shown: &Shown, settings: &Settings) -> Result<(), Failure> {
    print_mount(out, &shown.mount, settings, shown.user)?;
    if let Some(holders) = &shown.held_elsewhere {
        let mut line = |text: &str, advice: &str| {
            out.line(format!("  held      {}", out.warning(&format!("unmounted here, but {text}"))))?;
            out.line(format!("            {advice}"))
        };
        for holder in holders {
            line(&held::text(holder), &held::advice(holder))?;
        }
        if holders.is_empty() {
            let [text, advice] = held::UNSEEN;
            line(text, advice)?;
        }
    }
    match shown.user {
        Some(0) => out.line("  user      root"),
        Some(user) => out.line(format!("  user      {user}")),
        None => Ok(()),
    }
}

fn print_mount(
    out: &mut Output,
    mount: &Mount,
    settings: &Settings,
    user: Option<u32>,
) -> Result<(), Failure> {
    let (head, from, text) = match mount {
        Mount::Serving(status) => return print_status(out, status),
        Mount::Shared { mountpoint, repository, revision } => {
            let revision = revision.map(|revision| format!(", revision {revision}")).unwrap_or_default();
            return out.line(out.bold(&format!("{mountpoint} — {repository}{revision}")));
        }
        Mount::Silent { mountpoint, repository, url, pid, reason } => (
            format!("{mountpoint} — {repository}"),
            url,
            format!("the daemon (process {pid}) does not answer: {reason}"),
        ),
        Mount::Unregistered { mountpoint, source } if user.is_some() => (
            mountpoint.clone(),
            source,
            "its daemon isn't registered in that user's runtime folder".to_owned(),
        ),
        Mount::Unregistered { mountpoint, source } => (
            mountpoint.clone(),
            source,
            format!(
                "its daemon isn't known in {}, as if a session with another $XDG_RUNTIME_DIR had mounted it, or one that is \
                 over; `esker umount {mountpoint}` works all the same",
                settings.runtime.display()
            ),
        ),
        Mount::Dead { mountpoint, repository, url, pid } => (
            format!("{mountpoint} — {repository}"),
            url,
            format!("the daemon (process {pid}) was killed; clean up with `esker umount {mountpoint}`"),
        ),
    };
    out.line(out.bold(&head))?;
    out.line(format!("  from      {from}"))?;
    out.line(format!("  {}", out.warning(&text)))
}

fn print_status(out: &mut Output, status: &MountStatus) -> Result<(), Failure> {
    let whose = status.command.as_ref().map(|command| format!(" for `{command}`")).unwrap_or_default();
    let place = status.mountpoint.display();
    if let Some(image) = &status.image {
        out.line(out.bold(&format!("{place} — {}", status.repository)))?;
        print_image(out, status, image)?;
        return print_kernel(out, status);
    }
    let tag = status.tag.as_ref().map(|tag| format!(" ({tag})")).unwrap_or_default();
    let head = format!("{place}{whose} — {}, revision {}{tag}", status.repository, status.revision);
    out.line(out.bold(&head))?;
    out.line(format!("  from      {}", status.url))?;
    out.line(format!("  root      {}", status.root_hash))?;
    let published = status.published.map(|time| format!(", signed {}", when(time))).unwrap_or_default();
    out.line(format!("  shown     since {} UTC{published}", when(status.since)))?;
    out.line(format!("  checked   {} UTC", when(status.checked)))?;
    if let Some(offline) = &status.offline {
        let text = format!("offline since {} UTC: {}", when(offline.since), offline.reason);
        out.line(format!("  {}", out.warning(&text)))?;
    }
    print_route(out, &status.network.route)?;
    let (cache, state) = (&status.cache, &status.cache.state);
    let quota = if state.quota == 0 { String::new() } else { format!(" of {}", size(state.quota)) };
    let role = match &cache.broker {
        Some(socket) => format!(", from the broker at {}", socket.display()),
        None if cache.writer => String::new(),
        None => ", written by another mount's daemon".to_owned(),
    };
    let folder =
        if is_memory(&cache.directory) { "memory".into() } else { cache.directory.display().to_string() };
    out.line(format!(
        "  cache     {}{quota}, {} objects in {folder}{role}",
        size(state.used),
        state.objects
    ))?;
    if let Some(refused) = &cache.broker_refused {
        out.line(format!("  broker    {}", out.warning(&format!("not used: {refused}"))))?;
    }
    let fetched = &status.fetched;
    out.line(format!("  fetched   {} objects, {}", fetched.fetched, size(fetched.fetched_bytes)))?;
    print_kernel(out, status)
}

fn print_image(out: &mut Output, status: &MountStatus, image: &Image) -> Result<(), Failure> {
    let Image { codec, block_bytes, bytes, blocks, read_bytes, read_ahead, kept_bytes, authenticated } =
        image;
    out.line(format!("  from      {}", status.url))?;
    match authenticated.as_str() {
        "no" => out.line("  trust     not authenticated: give its digest with --digest")?,
        "digest" => out.line("  trust     every block is checked by a digest")?,
        "repository" => out.line("  trust     authenticated by the repository it is in")?,
        _ => {}
    }
    out.line(format!("  image     {}, {codec}, blocks of {}", size(*bytes), size(*block_bytes)))?;
    out.line(format!("  read      {blocks} blocks, {}, {read_ahead} of them ahead", size(*read_bytes)))?;
    out.line(format!("  memory    {} of blocks and metadata", size(*kept_bytes)))
}

/// Prints the facts of any mount.
fn print_kernel(out: &mut Output, status: &MountStatus) -> Result<(), Failure> {
    match status.shown_with {
        Presentation::Fuse => {}
        Presentation::Overlay => out.line("  shown     below an overlay of the kernel")?,
        Presentation::Erofs => out.line("  shown     with EROFS of the kernel")?,
    }
    out.line(format!(
        "  kernel    {} nodes, {} requests waiting, {} notifications",
        status.nodes, status.waiting, status.notifications
    ))?;
    let requests: Vec<String> =
        status.requests.iter().map(|kind| format!("{} {}", kind.name, kind.requests)).collect();
    if !requests.is_empty() {
        out.line(format!("  requests  {}", requests.join(", ")))?;
    }
    if let Some(text) = waits(status) {
        out.line(format!("  waited    {text}"))?;
    }
    for error in &status.errors {
        let caller = error.caller.map(|pid| format!(" (process {pid})")).unwrap_or_default();
        let text = format!("{} UTC {}: {}{caller}", when(error.time), error.object, error.cause);
        out.line(format!("  error     {}", out.warning(&text)))?;
    }
    out.line(format!("  daemon    process {}, mounted {} UTC", status.pid, when(status.mounted)))
}

/// Returns how long requests of the kernel took, and which waits are in that; none before there was any.
fn waits(status: &MountStatus) -> Option<String> {
    let seconds = |micros: u64| format!("{:.1} s", micros as f64 / 1e6);
    let total: u64 = status.requests.iter().map(|kind| kind.latency_us).sum();
    let mut causes = [("network", 0), ("disk", 0), ("processing", 0), ("thread", 0)];
    for kind in &status.requests {
        for (sum, (_, time)) in causes.iter_mut().zip(kind.waits.by_cause()) {
            sum.1 += time;
        }
    }
    // Below a tenth of a second there is nothing to explain.
    let causes: Vec<String> = causes
        .into_iter()
        .filter(|(_, time)| *time >= 50_000)
        .map(|(cause, time)| format!("{cause} {}", seconds(time)))
        .collect();
    (!causes.is_empty()).then(|| format!("{} in requests, of that {}", seconds(total), causes.join(", ")))
}

/// Prints servers and proxies, unless the server of the mount's URL is the only one.
fn print_route(out: &mut Output, route: &RouteStatus) -> Result<(), Failure> {
    let proxies: Vec<&EndpointStatus> = route.proxies.iter().flatten().collect();
    let all = route.servers.iter().chain(proxies.iter().copied());
    if route.servers.len() + proxies.len() > 2 || proxies.iter().any(|proxy| proxy.name != "DIRECT") {
        let names = |of: &mut dyn Iterator<Item = &EndpointStatus>| {
            of.filter(|one| one.active).map(|one| one.name.clone()).collect::<Vec<_>>().join(", ")
        };
        let (server, proxy) = (names(&mut route.servers.iter()), names(&mut proxies.iter().copied()));
        out.line(format!("  asked     {server} through {proxy}"))?;
        for one in all.filter(|one| one.out) {
            let since = one.since.map(|since| format!(" since {} UTC", when(since))).unwrap_or_default();
            let why = one.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            out.line(format!("  down      {}", out.warning(&format!("{}{since}{why}", one.name))))?;
        }
        let RouteStatus { server_failovers, proxy_failovers, recoveries, retries, .. } = route;
        out.line(format!(
            "  fail-over {server_failovers} of servers, {proxy_failovers} of proxies, {recoveries} back, {retries} retries"
        ))?;
    }
    Ok(())
}
