//! Protocol of `cvmfs_talk`, for scripts that use it: a line with a command, a reply, the end of the connection.
//!
//! Commands about the mount are answered, and a refresh can be triggered. Commands that change servers, proxies or limits
//! change the options of the mount, with which another daemon takes over.

mod changes;

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use esker_config::{EMULATED_VERSION as VERSION, TalkOptions};
use esker_store::{EndpointStatus, RouteStatus, Servers, StoreStatus};
use esker_view::View;

use crate::attributes::direct_seconds;
use crate::helper_process::Helper;
use crate::metrics::{ReferenceCounter, Scrape, ScrapedMount, affairs, of_exporter, text};
use crate::mounted::{Content, Served};
use crate::repository::Repository;
use crate::status::MountStatus;
pub(crate) use changes::Changes;
use changes::MEGABYTE;

/// Maximum length of a command in bytes.
const COMMAND_MAX: usize = 1024;
/// Timeout for a client's command, and for reading the reply.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a check for a new revision.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
/// Pause after a failed accept, most likely for lack of descriptors or memory. Without it the thread would
/// spin; clients wait in the socket's queue meanwhile.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// A socket in service until the process ends; its file is removed on drop. Dropping this takes it away.
#[derive(Debug)]
pub(crate) struct TalkSocket(PathBuf);

impl TalkSocket {
    /// Starts serving the socket, which the helper binds.
    pub(crate) fn start(options: TalkOptions, helper: &Helper, served: Weak<Served>) -> io::Result<Self> {
        let listener = UnixListener::from(helper.listen()?);
        let talk = Self(options.socket.clone());
        let run = move || accept_all(&listener, &options, &served);
        esker_threads::spawn("talk", run)?;
        Ok(talk)
    }
}

impl Drop for TalkSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Serves clients one after the other, as the reference does.
fn accept_all(listener: &UnixListener, options: &TalkOptions, served: &Weak<Served>) {
    let mut failing = false;
    loop {
        match listener.accept() {
            Ok((client, _)) => {
                failing = false;
                let Some(served) = served.upgrade() else { return };
                // The client may have disconnected.
                let _ = serve(&client, options, &served);
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::error!("{} can't accept connections: {error}", options.socket.display());
                }
                // Without descriptors, for example, the next attempt fails at once.
                std::thread::sleep(ACCEPT_AGAIN);
            }
        }
    }
}

fn serve(mut client: &UnixStream, options: &TalkOptions, served: &Arc<Served>) -> io::Result<()> {
    client.set_read_timeout(Some(TIMEOUT))?;
    client.set_write_timeout(Some(TIMEOUT))?;
    // Clients send a command at once, with or without an end of line, and do not say that it is all.
    let mut bytes = [0; COMMAND_MAX];
    let len = client.read(&mut bytes)?;
    let line = bytes[..len].split(|byte| *byte == b'\n').next().unwrap_or_default();
    let words = String::from_utf8_lossy(line);
    let answer = match &served.content {
        Content::Repository(repository, view) => answer(words.trim(), options, served, (repository, view)),
        Content::Image(_) => None,
    };
    client.write_all(answer.unwrap_or_else(|| "unknown command\n".to_owned()).as_bytes())
}

fn answer(
    command: &str,
    options: &TalkOptions,
    served: &Served,
    (repository, view): (&Repository, &View),
) -> Option<String> {
    let servers = &repository.servers;
    let status = || repository.store.known_status();
    Some(match command {
        "mountpoint" => format!("{}\n", served.mountpoint.display()),
        "pid" => format!("{}\n", std::process::id()),
        // Scripts choose the commands that they send by this version.
        "version" => format!("{VERSION} (CernVM-FS Fuse Module)\n{VERSION} (Loader)\n"),
        "version patchlevel" => "0\n".to_owned(),
        "pid cachemgr" => format!("{}\n", std::process::id()),
        "metrics prometheus" => exported(served)?,
        "revision" => format!("{}\n", view.status().revision),
        "remount" | "remount sync" => match view.refresh_within(POLL_INTERVAL) {
            Ok(looked) if looked.offline.is_some() => "Failed\n".to_owned(),
            Ok(looked) if looked.changed => "New revision applied\n".to_owned(),
            Ok(_) => "Catalog up to date\n".to_owned(),
            Err(_) => "Failed\n".to_owned(),
        },
        "max ttl info" => match options.longest_ttl {
            Some(ttl) => format!("{} minutes\n", ttl.as_secs() / 60),
            None => "unset\n".to_owned(),
        },
        "metalink info" => metalinks(Some(servers)),
        "external metalink info" => metalinks(servers.external.as_deref()),
        "host info" => hosts(servers, &status().network.route),
        "proxy info" => proxies(servers, &status().network.route),
        "external host info" => servers
            .external
            .as_deref()
            .map_or("No hosts defined\n".to_owned(), |external| hosts(external, &RouteStatus::default())),
        "nameserver get" => match servers.dns.server {
            Some(server) => format!("DNS server address: {server}\n"),
            None => "DNS server not set.\n".to_owned(),
        },
        "external proxy info" => servers
            .external
            .as_deref()
            .map_or("No proxies defined\n".to_owned(), |external| proxies(external, &RouteStatus::default())),
        "timeout info" => timeouts(servers),
        "internal affairs" => internal_affairs(&served.known_status()?),
        "cache size" => size(&status()),
        "cache limit get" => format!("{}\n", status().cache.quota / MEGABYTE),
        "cache instance" => format!("Esker's cache at {}\n", repository.store.cache().display()),
        _ => return Changes::answer(served.changes.as_ref(), command),
    })
}

/// Returns the metrics of the mount for Prometheus.
fn exported(served: &Served) -> Option<String> {
    let status = served.known_status()?;
    let mount = ScrapedMount {
        user: rustix::process::geteuid().as_raw(),
        mountpoint: status.mountpoint.display().to_string(),
        repository: status.repository.clone(),
        status: Some(status),
    };
    Some(text(&of_exporter(&Scrape { mounts: vec![mount], ..Scrape::default() })))
}

/// Returns the metalink servers, if the servers are those that they link to.
fn metalinks(servers: Option<&Servers>) -> String {
    let Some(servers) = servers.filter(|servers| servers.metalink.is_some()) else {
        return "No metalink servers defined\n".to_owned();
    };
    let mut text = String::new();
    for (at, url) in servers.urls.iter().enumerate() {
        // Writing to a string can't fail.
        let _ = writeln!(text, "  [{at}] {url}");
    }
    text + &format!("Active metalink server 0: {}\n", servers.url())
}

/// Returns the counters that the reference client has, too, in its form.
fn internal_affairs(status: &MountStatus) -> String {
    let mut text = "Raw Counters:\nName|Value|Description\n".to_owned();
    for ReferenceCounter { name, value, help, .. } in affairs(status) {
        // Writing to a string can't fail.
        let _ = writeln!(text, "{name}|{value}|{help}");
    }
    text
}

fn size(status: &StoreStatus) -> String {
    let (used, pinned) = (status.cache.used, status.cache.pinned);
    format!(
        "Current cache size is {}MB ({used} Bytes), pinned: {}MB ({pinned} Bytes)\n",
        used / MEGABYTE,
        pinned / MEGABYTE
    )
}

fn timeouts(servers: &Servers) -> String {
    let text = |seconds: u64| if seconds == 0 { "no timeout".to_owned() } else { format!("{seconds}s") };
    let (proxy, direct) = (text(servers.timings.proxy.as_secs()), text(direct_seconds(servers)));
    format!("Timeout with proxy: {proxy}\nTimeout without proxy: {direct}\n")
}

/// Returns the hosts; the configured servers until the fetching process has reported.
fn hosts(servers: &Servers, route: &RouteStatus) -> String {
    let first = |at: usize, url: &String| EndpointStatus {
        name: url.clone(),
        active: at == 0,
        ..EndpointStatus::default()
    };
    let all = match route.servers.is_empty() {
        true => servers.urls.iter().enumerate().map(|(at, url)| first(at, url)).collect(),
        false => route.servers.clone(),
    };
    let mut text = String::new();
    for (at, host) in all.iter().enumerate() {
        // Writing to a string can't fail.
        let _ =
            writeln!(text, "  [{at}] {} ({})", host.name, if host.out { "host down" } else { "unprobed" });
    }
    if let Some((at, host)) = all.iter().enumerate().find(|(_, host)| host.active) {
        let _ = writeln!(text, "Active host {at}: {}", host.name);
    }
    text
}

fn proxies(servers: &Servers, route: &RouteStatus) -> String {
    let groups: Vec<Vec<String>> = match route.proxies.is_empty() {
        true => {
            let all = servers.proxies.groups().iter().chain(servers.fallback.groups());
            all.map(|group| group.iter().map(ToString::to_string).collect()).collect()
        }
        false => route.proxies.iter().map(|group| group.iter().map(|it| it.name.clone()).collect()).collect(),
    };
    let mut text = "Load-balance groups:\n".to_owned();
    for (at, group) in groups.iter().enumerate() {
        let _ = writeln!(text, "[{at}] {}", group.join(", "));
    }
    let active = route
        .proxies
        .iter()
        .enumerate()
        .find_map(|(at, group)| group.iter().find(|it| it.active).map(|it| (at, it.name.clone())));
    let active = active.or_else(|| groups.first()?.first().map(|first| (0, first.clone())));
    if let Some((group, name)) = active {
        let _ = writeln!(text, "Active proxy: [{group}] {name}");
    }
    if !servers.fallback.is_empty() {
        // They are the last; of those before them the ones without a proxy are left out.
        let first = groups.len().saturating_sub(servers.fallback.groups().len());
        let _ = writeln!(text, "First fallback group: [{first}]");
    }
    text
}
