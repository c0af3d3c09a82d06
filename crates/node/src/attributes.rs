//! Extended attributes of a mount about routes and reads, for scripts made for the reference client. All are answered
//! from memory, because scripts may ask while a disk or server hangs.

use std::sync::Weak;
use std::time::Duration;

use esker_format::object::ObjectName;
use esker_store::{EndpointStatus, Proxies, Servers, StoreStatus};
use esker_view::{About, View};
use rustix::process::{Resource, getrlimit};

use crate::mounted::{Content, Served};
use crate::repository::Repository;

/// Value that the reference client returns for missing data.
const NOTHING: &str = "n/a";
/// Default timeout of the reference client in seconds for servers without a proxy.
const DIRECT_SECONDS: u64 = 10;

/// Attributes of a mount, for as long as it exists.
pub(crate) struct OfMount(pub(crate) Weak<Served>);

impl About for OfMount {
    fn attribute(&self, name: &str) -> Option<String> {
        let served = self.0.upgrade()?;
        let Content::Repository(repository, view) = &served.content else { return None };
        let requests =
            |name: &str| served.session.counters().opcodes.iter().find(|it| it.name == name).copied();
        let opened = |name: &str| requests(name).map_or(0, |it| it.requests.saturating_sub(it.errors));
        Some(match name {
            "user.nopen" => opened("OPEN").to_string(),
            "user.ndiropen" => opened("OPENDIR").to_string(),
            "user.useddirp" => opened("OPENDIR").saturating_sub(opened("RELEASEDIR")).to_string(),
            "user.usedfd" => view.open_files().to_string(),
            "user.maxfd" => getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).to_string(),
            "user.pid" => std::process::id().to_string(),
            "user.uptime" => (served.mounted.elapsed().unwrap_or_default().as_secs() / 60).to_string(),
            // Numbers of inodes have 64 bits and are not given out in their order.
            "user.inode_max" => u64::MAX.to_string(),
            "user.expires" => expires(view, repository),
            _ => return of_repository(repository, name),
        })
    }

    fn metainfo(&self) -> Option<ObjectName> {
        match &self.0.upgrade()?.content {
            Content::Repository(repository, _) => repository.heads.current()?.metainfo(),
            Content::Image(_) => None,
        }
    }

    fn outside(&self) -> Option<String> {
        match &self.0.upgrade()?.content {
            Content::Repository(repository, _) => {
                Some(repository.servers.external.as_ref()?.url().to_owned())
            }
            Content::Image(_) => None,
        }
    }
}

/// Returns the minutes until a newer revision is looked for.
fn expires(view: &View, repository: &Repository) -> String {
    let status = view.status();
    if status.pinned {
        return "never (fixed root catalog)".to_owned();
    }
    let ttl = repository.heads.current().map_or(0, |head| head.ttl());
    let passed = status.checked.elapsed().unwrap_or_default();
    (Duration::from_secs(ttl.into()).saturating_sub(passed).as_secs() / 60).to_string()
}

fn of_repository(repository: &Repository, name: &str) -> Option<String> {
    let servers = &repository.servers;
    let external = servers.external.as_deref();
    let seconds = |servers: &Servers| servers.timings.proxy.as_secs().to_string();
    Some(match name {
        "user.pubkeys" => repository.keys.shown().ok()?.into_iter().map(|key| key.pem).collect(),
        "user.timeout" => seconds(servers),
        "user.timeout_direct" => direct_seconds(servers).to_string(),
        "user.external_timeout" => seconds(external.unwrap_or(servers)),
        "user.external_host" => external.map_or(NOTHING, Servers::url).to_owned(),
        "user.proxy_list_external" => external
            .map(|it| lines(configured(&it.proxies).chain(configured(&it.fallback))))
            .unwrap_or_default(),
        // Evictions are not counted by the hour.
        "user.ncleanup24" => "-1".to_owned(),
        _ => return of_traffic(servers, &repository.store.known_status(), name),
    })
}

/// Returns the timeout in seconds for servers without a proxy.
pub(crate) fn direct_seconds(servers: &Servers) -> u64 {
    servers.timings.direct.map_or(DIRECT_SECONDS, |it| it.as_secs())
}

/// Returns the route in use; the configured servers and proxies until the fetching process has reported.
fn of_traffic(servers: &Servers, status: &StoreStatus, name: &str) -> Option<String> {
    let StoreStatus { network, traffic, .. } = status;
    let known = || network.route.servers.iter();
    let hosts: Vec<&str> = match network.route.servers.is_empty() {
        true => servers.urls.iter().map(String::as_str).collect(),
        false => known()
            .skip_while(|it| !it.active)
            .chain(known().take_while(|it| !it.active))
            .map(named)
            .collect(),
    };
    let all = || network.route.proxies.iter().flatten();
    let proxies: Vec<String> = all().map(|it| it.name.clone()).collect();
    let active = all().position(|it| it.active).and_then(|at| proxies.get(at));
    Some(match name {
        "user.host" => (*hosts.first()?).to_owned(),
        "user.host_list" => hosts.join(";"),
        "user.proxy" => {
            let first = configured(&servers.proxies).next();
            active.cloned().or(first).unwrap_or_else(|| "DIRECT".to_owned())
        }
        "user.proxy_list" if proxies.is_empty() => {
            lines(configured(&servers.proxies).chain(configured(&servers.fallback)))
        }
        "user.proxy_list" => lines(proxies.into_iter()),
        "user.rx" => (network.received_bytes / 1024).to_string(),
        "user.speed" if network.bytes_per_second == 0 => NOTHING.to_owned(),
        "user.speed" => (network.bytes_per_second / 1024).to_string(),
        "user.ndownload" => traffic.fetched.to_string(),
        "user.hitrate" => match traffic.hits.saturating_add(traffic.fetched) {
            0 => NOTHING.to_owned(),
            asked => format!("{:.2}", 100.0 * traffic.hits as f64 / asked as f64),
        },
        _ => return None,
    })
}

fn named(one: &EndpointStatus) -> &str {
    &one.name
}

fn configured(proxies: &Proxies) -> impl Iterator<Item = String> {
    proxies.groups().iter().flatten().map(ToString::to_string)
}

fn lines(names: impl Iterator<Item = String>) -> String {
    names.map(|name| name + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_in_use_come_first() {
        let servers = Servers::direct("http://one/cvmfs/a.test");
        let of = |status: &StoreStatus, name: &str| of_traffic(&servers, status, name);
        let mut status = StoreStatus::default();
        assert_eq!(of(&status, "user.host").as_deref(), Some("http://one/cvmfs/a.test"));
        assert_eq!(of(&status, "user.proxy").as_deref(), Some("DIRECT"));
        assert_eq!(of(&status, "user.hitrate").as_deref(), Some("n/a"));
        let reach = |name: &str, active| EndpointStatus {
            name: name.into(),
            active,
            out: !active,
            ..EndpointStatus::default()
        };
        status.network.route.servers = vec![reach("a", false), reach("b", true), reach("c", false)];
        status.network.route.proxies = vec![vec![reach("http://p", false)], vec![reach("DIRECT", true)]];
        (status.traffic.hits, status.traffic.fetched) = (3, 1);
        for (name, value) in [
            ("user.host", "b"),
            ("user.host_list", "b;c;a"),
            ("user.proxy", "DIRECT"),
            ("user.proxy_list", "http://p\nDIRECT\n"),
            ("user.hitrate", "75.00"),
            ("user.ndownload", "1"),
        ] {
            assert_eq!(of(&status, name).as_deref(), Some(value), "{name}");
        }
        assert_eq!(of(&status, "user.other"), None);
    }
}
