//! Commands of `cvmfs_talk` that change servers, proxies, time-outs or the cache of a mount.
//!
//! A change goes into the options that the supervisor keeps, and a daemon with them takes over while programs wait a moment.
//! So it outlives every restart, and ends with the mount or with `esker reload`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use esker_store::{Order, Proxies, Servers};
use parking_lot::Mutex;

use crate::mount_spec::{ContentSpec, MountSpec, RepositorySpec};
use crate::supervisor::Supervision;

pub(super) const MEGABYTE: u64 = 1 << 20;
/// Minimum quota that can be set, in megabytes, as in the reference.
const LIMIT_MIN: u64 = 1000;
/// Port of name servers.
const DNS_PORT: u16 = 53;

/// Commands that need values, and these as the reference names them.
const VALUES: [(&str, &str); 11] = [
    ("timeout set", "<proxy> <direct>"),
    ("proxy set", "<proxy list>"),
    ("proxy fallback", "<proxy list>"),
    ("external proxy set", "<proxy list>"),
    ("host set", "<host list>"),
    ("external host set", "<URL>"),
    ("metalink set", "<metalink list>"),
    ("external metalink set", "<metalink list>"),
    ("nameserver set", "<host>"),
    ("max ttl set", "<minutes>"),
    ("cache limit set", "<MB>"),
];

/// The options of a mount, which commands change.
pub(crate) struct Changes {
    spec: Mutex<MountSpec>,
    supervision: Arc<Supervision>,
}

impl Changes {
    pub(crate) fn new(spec: MountSpec, supervision: Arc<Supervision>) -> Self {
        Self { spec: Mutex::new(spec), supervision }
    }

    /// Returns the answer of a command that changes options; `None` for another.
    pub(super) fn answer(changes: Option<&Self>, command: &str) -> Option<String> {
        let Some(edit) = parse(command) else { return usage(command) };
        let Some(Self { spec, supervision }) = changes else {
            return Some(
                "Failed: the mount has no supervisor; mount it again with other settings\n".to_owned(),
            );
        };
        let mut spec = spec.lock();
        let mut changed = spec.clone();
        let ContentSpec::Repository(repository) = &mut changed.content else { return None };
        if let Err(why) = edit(repository) {
            return Some(format!("{why}\n"));
        }
        changed.for_successor();
        if let Err(error) = changed.sealed().and_then(|sealed| supervision.renew(sealed)) {
            return Some(format!("Failed: {error}\n"));
        }
        *spec = changed;
        Some("OK\n".to_owned())
    }
}

/// Change of the options, or why it can't be.
type Edit = Box<dyn FnOnce(&mut RepositorySpec) -> Result<(), String>>;

/// Parses a command that changes options.
fn parse(command: &str) -> Option<Edit> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let value = words.last().copied().unwrap_or_default().to_owned();
    Some(match &*words {
        ["timeout", "set", proxy, direct] => {
            let seconds = (proxy.parse().ok()?, direct.parse().ok()?);
            Box::new(move |spec| {
                let timings = &mut spec.options.servers.timings;
                timings.proxy = Duration::from_secs(seconds.0);
                timings.direct = Some(Duration::from_secs(seconds.1));
                Ok(())
            })
        }
        // Each daemon chooses a member of the group at random.
        ["proxy", "rebalance"] => Box::new(|_| Ok(())),
        ["proxy", "group", "switch"] => Box::new(|spec| {
            let Servers { proxies, fallback, .. } = &mut spec.options.servers;
            proxies.switch_group(fallback);
            Ok(())
        }),
        ["proxy", "set", _] => Box::new(move |spec| set(&mut spec.options.servers.proxies, &value)),
        ["proxy", "fallback", _] => Box::new(move |spec| set(&mut spec.options.servers.fallback, &value)),
        ["external", "proxy", "set", _] => Box::new(move |spec| set(&mut external(spec)?.proxies, &value)),
        ["host", "set", _] => Box::new(move |spec| hosts(&mut spec.options.servers, &value)),
        ["external", "host", "set", _] => Box::new(move |spec| hosts(external(spec)?, &value)),
        ["metalink", "set", _] => Box::new(move |spec| metalinks(&mut spec.options.servers, &value)),
        ["external", "metalink", "set", _] => Box::new(move |spec| metalinks(external(spec)?, &value)),
        ["metalink", "switch"] => Box::new(|spec| switch_metalink(&mut spec.options.servers)),
        ["external", "metalink", "switch"] => Box::new(|spec| switch_metalink(external(spec)?)),
        ["host", "switch"] => Box::new(|spec| switch(&mut spec.options.servers)),
        ["external", "host", "switch"] => Box::new(|spec| switch(external(spec)?)),
        ["host", "probe"] => Box::new(|spec| order(spec, Order::RoundTrip)),
        ["host", "probe", "geo"] => Box::new(|spec| order(spec, Order::Geo)),
        ["nameserver", "set", _] => Box::new(move |spec| {
            let server = value.parse().ok().or_else(|| {
                let address: IpAddr = value.parse().ok()?;
                Some(SocketAddr::new(address, DNS_PORT))
            });
            spec.options.servers.dns.server = Some(server.ok_or("Failed: it is no address")?);
            Ok(())
        }),
        ["max", "ttl", "set", minutes] => {
            let ttl = Duration::from_secs(60 * minutes.parse::<u32>().map(u64::from).ok()?);
            let ttl = (!ttl.is_zero()).then_some(ttl);
            Box::new(move |spec| {
                spec.view.ttl_max = ttl;
                spec.talk.iter_mut().for_each(|talk| talk.longest_ttl = ttl);
                Ok(())
            })
        }
        ["cache", "limit", "set", megabytes] => {
            let megabytes: u64 = megabytes.parse().ok()?;
            Box::new(move |spec| {
                if megabytes < LIMIT_MIN {
                    return Err(format!("New limit too low (minimum {LIMIT_MIN})"));
                }
                spec.options.quota = megabytes.saturating_mul(MEGABYTE);
                Ok(())
            })
        }
        _ => return None,
    })
}

/// Returns how a command is used that lacks its values.
fn usage(command: &str) -> Option<String> {
    let (name, values) = VALUES.iter().find(|(name, _)| *name == command)?;
    Some(format!("Usage: {name} {values}\n"))
}

fn set(proxies: &mut Proxies, list: &str) -> Result<(), String> {
    *proxies = Proxies::parse(list, None).map_err(|error| format!("Failed: {error}"))?;
    Ok(())
}

fn hosts(servers: &mut Servers, list: &str) -> Result<(), String> {
    let urls: Vec<String> = list.split(';').map(|url| url.trim_end_matches('/').to_owned()).collect();
    if !urls.iter().all(|url| url.starts_with("http://") || url.starts_with("https://")) {
        return Err("Failed: a host is a URL".to_owned());
    }
    (servers.urls, servers.metalink) = (urls, None);
    Ok(())
}

fn metalinks(servers: &mut Servers, list: &str) -> Result<(), String> {
    let kept = servers.metalink.or(servers.timings.proxy_reset).unwrap_or(Duration::MAX);
    hosts(servers, list)?;
    servers.metalink = Some(kept);
    Ok(())
}

fn switch_metalink(servers: &mut Servers) -> Result<(), String> {
    match servers.metalink {
        Some(_) => switch(servers),
        None => Err("No metalink servers defined".to_owned()),
    }
}

fn switch(servers: &mut Servers) -> Result<(), String> {
    let has_others = servers.urls.len() > 1;
    servers.urls.rotate_left(usize::from(has_others));
    servers.order = Order::Given;
    Ok(())
}

fn order(spec: &mut RepositorySpec, order: Order) -> Result<(), String> {
    spec.options.servers.order = order;
    Ok(())
}

fn external(spec: &mut RepositorySpec) -> Result<&mut Servers, String> {
    spec.options.servers.external.as_deref_mut().ok_or_else(|| "No hosts defined".to_owned())
}

#[cfg(test)]
mod tests {
    use crate::mount_spec::tests::repository;

    use super::*;

    fn edited(command: &str) -> Result<RepositorySpec, String> {
        let mut spec = repository();
        spec.options.servers.urls.push("http://t/cvmfs/full.test".to_owned());
        spec.options.servers.proxies = Proxies::parse("http://a:1;DIRECT", None).expect("proxies");
        spec.options.servers.fallback = Proxies::parse("http://b:1", None).expect("proxies");
        parse(command).expect(command)(&mut spec).map(|()| spec)
    }

    #[test]
    fn commands_change_the_options() {
        let servers = |command: &str| edited(command).expect(command).options.servers;
        let timings = servers("timeout set 7 9").timings;
        assert_eq!((timings.proxy.as_secs(), timings.direct.map(|it| it.as_secs())), (7, Some(9)));
        assert_eq!(servers("proxy set http://q:1;DIRECT").proxies.groups().len(), 2);
        assert_eq!(servers("proxy fallback http://q:1").fallback.groups().len(), 1);
        assert_eq!(servers("host set http://a/x/;http://b/x").urls, ["http://a/x", "http://b/x"]);
        assert_eq!(servers("host switch").url(), "http://t/cvmfs/full.test");
        let linked = servers("metalink set http://m/x;http://n/x");
        assert_eq!((linked.url(), linked.metalink), ("http://m/x", linked.timings.proxy_reset));
        assert_eq!(edited("metalink switch").err().as_deref(), Some("No metalink servers defined"));
        let switched = servers("proxy group switch");
        assert_eq!(switched.proxies, Proxies::parse("http://b:1", None).expect("proxies"));
        assert_eq!(switched.fallback, Proxies::parse("http://a:1", None).expect("proxies"));
        assert_eq!(servers("proxy rebalance").proxies.groups().len(), 2);
        assert_eq!(servers("host probe").order, Order::RoundTrip);
        assert_eq!(servers("host probe geo").order, Order::Geo);
        assert_eq!(servers("nameserver set 127.0.0.1").dns.server, Some(([127, 0, 0, 1], 53).into()));
        assert_eq!(edited("cache limit set 2000").expect("a limit").options.quota, 2000 << 20);
        let ttl = edited("max ttl set 3").expect("a limit").view.ttl_max;
        assert_eq!(ttl, Some(Duration::from_secs(180)));
        assert_eq!(edited("max ttl set 0").expect("no limit").view.ttl_max, None);
    }

    #[test]
    fn what_can_not_be_is_refused_and_what_changes_nothing_is_left_to_others() {
        for command in ["cache limit set 999", "nameserver set here", "host set a", "external host switch"] {
            assert!(edited(command).is_err(), "{command}");
        }
        for command in ["timeout info", "timeout set 1", "timeout set a b", "host", "", "max ttl set soon"] {
            assert!(parse(command).is_none(), "{command}");
        }
        for (command, told) in [
            ("host set", "Usage: host set <host list>\n"),
            ("timeout set", "Usage: timeout set <proxy> <direct>\n"),
        ] {
            assert_eq!(Changes::answer(None, command).as_deref(), Some(told));
        }
        let said = Changes::answer(None, "host switch").expect("an answer");
        assert!(said.contains("no supervisor"), "{said}");
    }
}
