//! Checks every mount of ours on this node: whether it answers, whether its daemon does, and its status.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use esker_node::control::{self, Request, Response};
use esker_node::mounts::search::HolderSearch;
use esker_node::mounts::{self, MountLine};
use esker_node::registry::{self, Registered};
use esker_node::status::{MountStatus, seconds};
use esker_store::{EndpointStatus, RouteStatus};

use super::probe::{NoAnswer, ProbeResult, ProbeTarget, touch};
use super::{DoctorCheck, Finding, Severity, TIMEOUT};
use crate::error::chain;
use crate::mounting::held;
use crate::settings::Settings;

/// Timeout for a daemon's status; the mount is touched at the same time.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(3);
/// Age in seconds up to which failures are reported.
const RECENT: u64 = 600;
/// Tolerated error of a clock in seconds.
const SKEW: u64 = 300;
/// Seconds since the last check of the head after which a mount counts as not checking; mounts check every few
/// minutes.
const HEAD_AGE: u64 = 6 * 3600;
/// Seconds before its end at which the doctor reports a whitelist.
const WHITELIST_LEFT: u64 = 7 * 86_400;

pub(super) fn checks(settings: &Settings) -> Vec<DoctorCheck> {
    let mut checks = Vec::new();
    let lines = mounts::all().unwrap_or_default();
    let registered = match registry::all(&settings.runtime) {
        Ok(registered) => registered,
        Err(error) => {
            let found = chain(&error);
            let mend = "check owner and mode of the folder; mounts can't be managed without it";
            let place = settings.runtime.display().to_string();
            checks.push(DoctorCheck::new("mounts", place.clone(), move || {
                vec![Finding::broken("mounts", place, found, mend)]
            }));
            Vec::new()
        }
    };
    let departed = registry::departed(&settings.runtime).unwrap_or_default();
    let holders = Arc::new(HolderSearch::read());
    for one in departed {
        let (place, holders) = (one.entry.mountpoint.display().to_string(), Arc::clone(&holders));
        checks.push(DoctorCheck::new("mount", place, move || of_holders(&one, &holders)));
    }
    let strangers = registry::strangers(lines, &settings.runtime, &registered).unwrap_or_default();
    for one in registered {
        let (place, holders) = (one.entry.mountpoint.display().to_string(), Arc::clone(&holders));
        checks.push(DoctorCheck::new("mount", place, move || own(&one, &holders)));
    }
    for MountLine { mountpoint: place, .. } in strangers {
        checks.push(DoctorCheck::new("mount", place.display().to_string(), move || vec![stranger(&place)]));
    }
    checks
}

/// Checks a mount of this user.
fn own(one: &Registered, holders: &HolderSearch) -> Vec<Finding> {
    let entry = &one.entry;
    let place = entry.mountpoint.display().to_string();
    if !one.alive {
        if entry.command.is_some() {
            // Its mount ended with it; `esker status` clears it away.
            return Vec::new();
        }
        let found = format!("its daemon (process {}) was killed, and its mount is stale", entry.pid);
        return vec![Finding::broken("mount", place.clone(), found, format!("`esker umount {place}`"))];
    }
    let touched = entry.command.is_none().then(|| {
        let path = entry.mountpoint.clone();
        std::thread::spawn(move || touch(ProbeTarget::Mount, &path, TIMEOUT))
    });
    let mut findings = match control::ask(&one.socket, &Request::Status, DAEMON_TIMEOUT) {
        Ok(Response::Status(status)) => of_status(&place, &status),
        Ok(_) | Err(_) if one.wait_until_gone(Duration::ZERO) => return Vec::new(),
        Ok(other) => vec![silent(&place, entry.pid, &format!("it answered {other:?}"))],
        Err(error) => vec![silent(&place, entry.pid, &chain(&error))],
    };
    let answer = touched.and_then(|thread| thread.join().ok());
    findings.extend(answer.and_then(|answer| of_touch(&place, entry.pid, answer)));
    findings.extend(of_holders(one, holders));
    // The status of a working mount is no evidence for its server.
    if findings.iter().all(|finding| finding.grade == Severity::Good) {
        findings.push(Finding::good("mount", place, format!("{} answers", entry.repository)));
    }
    findings
}

/// Reports the namespaces that hold a mount whose place is gone here.
fn of_holders(one: &Registered, holders: &HolderSearch) -> Vec<Finding> {
    let place = one.entry.mountpoint.display().to_string();
    let Some(holders) = holders.of(&one.entry, one.alive) else { return Vec::new() };
    let finding = |found: &str, mend: String| {
        let found =
            format!("it is unmounted here, but its daemon (process {}) goes on: {found}", one.entry.pid);
        Finding::warning("mount", place.clone(), found, mend)
    };
    let [unseen, mend] = held::UNSEEN;
    let mut findings: Vec<Finding> =
        holders.iter().map(|holder| finding(&held::text(holder), held::advice(holder))).collect();
    if findings.is_empty() && !one.wait_until_gone(Duration::ZERO) {
        findings.push(finding(unseen, mend.to_owned()));
    }
    findings
}

/// Reports the state of a daemon that does not reply.
fn silent(place: &str, pid: u32, reason: &str) -> Finding {
    let end = format!("`kill -9 {pid}`, then `esker umount {place}`");
    let (found, mend) = match process_state(pid) {
        Some('T' | 't') => (
            "is stopped (SIGSTOP or a debugger)",
            format!("`kill -CONT {pid}`; if that does not help, {end}"),
        ),
        Some('D') => {
            ("waits for a disk that does not answer", format!("check the disk of its cache; or {end}"))
        }
        _ => ("does not answer", end),
    };
    Finding::broken("daemon", place, format!("its daemon (process {pid}) {found}: {reason}"), mend)
}

/// Returns the state letter of a process.
fn process_state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it is in brackets and may contain anything.
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

fn of_touch(place: &str, pid: u32, answer: Result<ProbeResult, NoAnswer>) -> Option<Finding> {
    let end = format!("`kill -9 {pid}`, then `esker umount {place}` and mount again");
    match answer {
        Ok(ProbeResult::Failed { call, text, .. }) => Some(Finding::broken(
            "mount",
            place,
            format!("{call} fails: {text}"),
            format!("see `esker status {place}`; or {end}"),
        )),
        Ok(_) => None,
        Err(NoAnswer::Hangs) => {
            let found = format!("it did not respond within {TIMEOUT:?}");
            Some(Finding::broken("mount", place, found, end))
        }
        Err(NoAnswer::Failed(why)) => {
            let found = format!("it could not be checked: {why}");
            Some(Finding::warning("mount", place, found, "see whether processes can be started"))
        }
    }
}

/// Returns the findings in a daemon's status.
fn of_status(place: &str, status: &MountStatus) -> Vec<Finding> {
    let now = seconds(SystemTime::now());
    let mut findings = Vec::new();
    if let Some(offline) = &status.offline {
        let age = now.saturating_sub(offline.since) / 60;
        let found = format!("no check for a new revision succeeded for {age} minutes: {}", offline.reason);
        let mend = "check that the server and the proxies are up and reachable from here; cached files stay readable";
        findings.push(Finding::warning("server", place, found, mend));
    }
    findings.extend(of_route(place, &status.network.route));
    if let Some(published) = status.published.filter(|published| *published > now + SKEW) {
        let found = format!("its revision was signed {} minutes in the future", (published - now) / 60);
        findings.push(Finding::warning(
            "clock",
            place,
            found,
            "set the clock of this node, or of the publisher's",
        ));
    }
    // An image has no head.
    if !status.fixed && status.checked > 0 {
        findings.push(of_head(place, now, status.checked));
        findings.extend(status.whitelist_expires.map(|expires| of_whitelist(place, now, expires)));
    }
    let recent =
        status.errors.iter().filter(|error| now.saturating_sub(error.time) <= RECENT).collect::<Vec<_>>();
    if let Some(last) = recent.last() {
        let found = format!(
            "{} failures in the last {} minutes, the last of {}: {}",
            recent.len(),
            RECENT / 60,
            last.object,
            last.cause
        );
        findings.push(Finding::warning("reads", place, found, format!("`esker status {place}` shows all")));
    }
    if status.waiting > 0 && status.offline.is_some() {
        let found = format!("{} requests wait for a server", status.waiting);
        let mend = "they end by themselves, with an error after a minute; their programs can be killed";
        findings.push(Finding::warning("waiting", place, found, mend));
    }
    findings
}

/// Reports proxies and servers that are marked down.
fn of_route(place: &str, route: &RouteStatus) -> Vec<Finding> {
    let of = |check: &'static str, kind: &str, one: &EndpointStatus| {
        let since = one.since.map(|since| span(seconds(SystemTime::now()).saturating_sub(since)));
        let since = since.map(|since| format!(" for {since}")).unwrap_or_default();
        let why = one.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        let found = format!("the {kind} {} is out of use{since}{why}", one.name);
        let mend = format!(
            "check that it runs and is reachable from here; the mount uses the next {kind} meanwhile"
        );
        Finding::warning(check, place, found, mend)
    };
    let proxies = route.proxies.iter().flatten().filter(|one| one.out).map(|one| of("proxy", "proxy", one));
    let servers = route.servers.iter().filter(|one| one.out).map(|one| of("server", "server", one));
    proxies.chain(servers).collect()
}

/// Reports when the head was last checked. A failed check is reported elsewhere; this finds a mount that doesn't
/// check.
fn of_head(place: &str, now: u64, checked: u64) -> Finding {
    let age = now.saturating_sub(checked);
    let found = format!("its head was confirmed {} ago", span(age));
    if age <= HEAD_AGE {
        return Finding::good("head", place, found);
    }
    let mend = format!(
        "`esker status {place}` shows the reason; `esker revision {place} --update` refreshes now; otherwise mount again"
    );
    Finding::warning("head", place, found, mend)
}

/// Reports how long the whitelist is valid. Afterwards the mount serves its revision, but neither new revisions
/// nor a new mount.
fn of_whitelist(place: &str, now: u64, expires: u64) -> Finding {
    let left = expires.saturating_sub(now);
    let mend = "ask the owner of the repository to sign it again (`esker repo resign`)";
    match left {
        0 => {
            let found = format!("it expired {} ago: no new revision is accepted", span(now - expires));
            Finding::warning("whitelist", place, found, mend)
        }
        left if left <= WHITELIST_LEFT => {
            let found = format!("it expires in {}; then no new revision is accepted", span(left));
            Finding::warning("whitelist", place, found, mend)
        }
        left => Finding::good("whitelist", place, format!("it expires in {}", span(left))),
    }
}

/// Returns a time in its largest unit.
fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} minutes", seconds / 60),
        7200..172_800 => format!("{} hours", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Reports a mount that is not in this user's registry: of another user, or a leftover.
fn stranger(place: &Path) -> Finding {
    let named = place.display().to_string();
    let mend = format!("`esker umount {named}`, as the mounting user or root");
    match touch(ProbeTarget::Mount, place, TIMEOUT) {
        Ok(ProbeResult::Failed { errno: libc::ENOTCONN, .. }) => {
            Finding::broken("mount", named, "it is stale: its daemon has ended", mend)
        }
        // A mount without access for other users is not our concern.
        Ok(ProbeResult::Failed { errno: libc::EACCES | libc::EPERM, .. }) => {
            Finding::good("mount", named, "it is another user's")
        }
        Ok(ProbeResult::Failed { call, text, .. }) => {
            Finding::broken("mount", named, format!("{call} fails: {text}"), mend)
        }
        Ok(_) => Finding::good("mount", named, "it answers"),
        Err(NoAnswer::Hangs) => {
            let found = format!("it did not respond within {TIMEOUT:?}");
            Finding::broken("mount", named, found, format!("end its daemon with `kill -9`, then {mend}"))
        }
        Err(NoAnswer::Failed(why)) => Finding::warning(
            "mount",
            named,
            format!("it could not be checked: {why}"),
            "see whether processes can be started",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whitelist_is_reported_days_before_it_expires() {
        const DAY: u64 = 86_400;
        let now = 1_700_000_000;
        let judge = |expires: u64| {
            let finding = of_whitelist("/mnt", now, expires);
            (finding.grade, finding.found)
        };
        assert_eq!(judge(now + 30 * DAY), (Severity::Good, "it expires in 30 days".to_owned()));
        assert_eq!(judge(now + WHITELIST_LEFT + 1).0, Severity::Good);
        let (grade, found) = judge(now + WHITELIST_LEFT);
        assert!(grade == Severity::Warning && found.contains("expires in 7 days"), "{found}");
        let (grade, found) = judge(now - 3600);
        assert!(grade == Severity::Warning && found.contains("expired 60 minutes ago"), "{found}");
    }

    #[test]
    fn a_mount_that_does_not_check_its_head_is_reported() {
        let now = 1_700_000_000;
        assert_eq!(of_head("/mnt", now, now - HEAD_AGE).grade, Severity::Good);
        let old = of_head("/mnt", now, now - HEAD_AGE - 1);
        assert!(old.grade == Severity::Warning && old.found.contains("6 hours ago"), "{old:?}");
        assert_eq!(of_head("/mnt", now, now + 5).found, "its head was confirmed 0 s ago", "clocks differ");
    }
}
