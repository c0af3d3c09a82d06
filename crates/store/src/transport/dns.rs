//! Resolves names without the C library, whose modules a static binary can't load.
//!
//! Both address families are queried in parallel, so that a name server that never answers for one doesn't delay the
//! other.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::lookup_ip::LookupIp;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use hickory_resolver::{Hosts, ResolverBuilder, TokioResolver};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::error::Cause;
use crate::named_file::open_named;
use crate::servers::{Dns, Family};

/// Addresses of a name.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    /// Addresses in the order to try them; at least one.
    pub(crate) addresses: Vec<IpAddr>,
    /// Time of expiry.
    pub(crate) until: Instant,
}

/// Path of the file with names of machines.
pub(crate) const HOSTS: &str = "/etc/hosts";
/// Path of the file with the default name servers.
pub(crate) const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Maximum size in bytes of that file.
const RESOLV_CONF_MAX: u64 = 1 << 20;

/// Maximum wait for addresses of the other family once the preferred one has some (RFC 8305, section 3).
const OTHER_KIND: Duration = Duration::from_millis(50);

/// Resolver: `/etc/hosts`, then the servers of `/etc/resolv.conf` or configured ones. Caches answers for their TTL,
/// until one of these files changes.
#[derive(Default)]
pub(super) struct Names {
    resolvers: Mutex<HashMap<(Dns, Kind), ParsedFile<TokioResolver>>>,
    /// The last name servers of the machine that could be read: the file may be gone for a moment while it is replaced.
    of_machine: Mutex<Option<(ResolverConfig, ResolverOpts)>>,
    hosts: Mutex<Option<ParsedFile<Hosts>>>,
}

/// Content of one of these files after parsing, or the lack of it.
struct ParsedFile<T> {
    made: Arc<T>,
    version: Version,
}

/// Inode, length and times of a file, to detect changes.
type Version = Option<(u64, u64, i64, i64)>;

fn version(path: &str) -> Version {
    let meta = fs::metadata(path).ok()?;
    Some((meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()))
}

/// A kind of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    V4,
    V6,
}

impl Kind {
    /// Returns the families in use, the preferred one first.
    fn wanted(family: Family) -> (Self, Option<Self>) {
        match family {
            Family::PreferV4 => (Kind::V4, Some(Kind::V6)),
            Family::PreferV6 => (Kind::V6, Some(Kind::V4)),
            Family::OnlyV4 => (Kind::V4, None),
        }
    }

    fn record(self) -> RecordType {
        match self {
            Kind::V4 => RecordType::A,
            Kind::V6 => RecordType::AAAA,
        }
    }
}

impl Names {
    /// Returns the addresses of a host.
    pub(super) async fn resolve(&self, host: &str, dns: &Dns) -> Result<Resolved, Cause> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(Resolved { addresses: vec![address], until: Instant::now() + dns.longest_ttl });
        }
        let (preferred, other) = Kind::wanted(dns.family);
        let listed = self.listed(host, std::iter::once(preferred).chain(other));
        if !listed.is_empty() {
            // A file says nothing of how long it holds, and is looked into again as soon as may be.
            return Ok(Resolved { addresses: listed, until: Instant::now() + dns.least_ttl });
        }
        let failed = |reason: String| Cause::Unresolved { host: host.to_owned(), reason };
        let asked = self.ask(host, dns, preferred);
        let answers = match other {
            None => vec![asked.await],
            Some(other) => self.ask_both(asked, self.ask(host, dns, other)).await,
        };
        // A family whose answer was lost or late may have addresses too: the name is resolved again soon.
        let is_partial = answers.len() < 1 + usize::from(other.is_some())
            || answers.iter().any(|answer| answer.as_ref().is_err_and(|error| !error.is_negative));
        let soon = is_partial.then(|| Instant::now() + dns.least_ttl);
        let mut addresses = Vec::new();
        let mut until = None;
        let mut failure = None;
        for answer in answers {
            match answer {
                Ok(found) => {
                    addresses.extend(found.iter());
                    let valid = clamped(found.valid_until(), dns);
                    until = until.into_iter().chain([valid]).chain(soon).min();
                }
                Err(error) => failure = failure.or(Some(error.reason)),
            }
        }
        match until {
            Some(until) if !addresses.is_empty() => Ok(Resolved { addresses, until }),
            _ => {
                // The network may have changed, and an answer that there is no such name is not to be remembered.
                self.resolvers.lock().retain(|(of, _), _| of != dns);
                Err(failed(failure.unwrap_or_else(|| "it has no address".to_owned())))
            }
        }
    }

    /// Returns both answers, or the first one alone if it has addresses and the other is late.
    async fn ask_both(
        &self,
        first: impl Future<Output = Answer>,
        other: impl Future<Output = Answer>,
    ) -> Vec<Answer> {
        let mut first = std::pin::pin!(first);
        let mut other = std::pin::pin!(other);
        let has_addresses =
            |answer: &Answer| answer.as_ref().is_ok_and(|found| found.iter().next().is_some());
        tokio::select! {
            answer = &mut first => {
                if !has_addresses(&answer) {
                    return vec![answer, other.await];
                }
                match timeout(OTHER_KIND, other).await {
                    Ok(second) => vec![answer, second],
                    Err(_) => vec![answer],
                }
            }
            // The preferred kind is waited for: it may be the only one that is used.
            second = &mut other => vec![first.await, second],
        }
    }

    async fn ask(&self, host: &str, dns: &Dns, kind: Kind) -> Answer {
        let resolver = self.resolver(dns, kind).map_err(|reason| NoAnswer { reason, is_negative: false })?;
        resolver.lookup_ip(host).await.map_err(|error| NoAnswer {
            reason: error.to_string(),
            is_negative: error.is_no_records_found() || error.is_nx_domain(),
        })
    }

    /// Returns the addresses of these kinds that `/etc/hosts` has for a name.
    fn listed(&self, host: &str, kinds: impl Iterator<Item = Kind>) -> Vec<IpAddr> {
        let Ok(name) = Name::from_str(host) else { return Vec::new() };
        let hosts = self.hosts();
        let of = |kind: Kind| hosts.lookup_static_host(&Query::query(name.clone(), kind.record()));
        kinds.filter_map(of).flat_map(|found| LookupIp::from(found).iter().collect::<Vec<_>>()).collect()
    }

    fn hosts(&self) -> Arc<Hosts> {
        let version = version(HOSTS);
        if let Some(known) = self.hosts.lock().as_ref().filter(|known| known.version == version) {
            return known.made.clone();
        }
        let mut hosts = Hosts::default();
        if let Ok(file) = open_named(Path::new(HOSTS)) {
            // Lines before one that can't be read count.
            let _ = hosts.read_hosts_conf(file);
        }
        let made = Arc::new(hosts);
        *self.hosts.lock() = Some(ParsedFile { made: made.clone(), version });
        made
    }

    fn resolver(&self, dns: &Dns, kind: Kind) -> Result<Arc<TokioResolver>, String> {
        let version = if dns.server.is_some() { None } else { version(RESOLV_CONF) };
        let key = (dns.clone(), kind);
        if let Some(known) = self.resolvers.lock().get(&key).filter(|known| known.version == version) {
            return Ok(known.made.clone());
        }
        let mut builder = match dns.server {
            Some(server) => builder_for(server),
            None => self.builder_of_machine()?,
        };
        set(builder.options_mut(), dns, kind);
        let made = Arc::new(builder.build().map_err(|error| error.to_string())?);
        self.resolvers.lock().insert(key, ParsedFile { made: made.clone(), version });
        Ok(made)
    }

    fn builder_of_machine(&self) -> Result<ResolverBuilder<TokioRuntimeProvider>, String> {
        let mut last = self.of_machine.lock();
        match name_servers_of_machine() {
            Ok(read) => *last = Some(read),
            Err(error) if last.is_none() => return Err(format!("reading {RESOLV_CONF}: {error}")),
            Err(_) => {}
        }
        let (config, options) = last.clone().unwrap_or_default();
        let provider = TokioRuntimeProvider::default();
        Ok(TokioResolver::builder_with_config(config, provider).with_options(options))
    }
}

/// Reads the name servers of the machine.
fn name_servers_of_machine() -> io::Result<(ResolverConfig, ResolverOpts)> {
    let mut text = Vec::new();
    open_named(Path::new(RESOLV_CONF))?.take(RESOLV_CONF_MAX).read_to_end(&mut text)?;
    parse_resolv_conf(text).map_err(io::Error::other)
}

/// Addresses of one family, or the reason why there are none.
type Answer = Result<LookupIp, NoAnswer>;

/// Failure to get addresses of one family.
struct NoAnswer {
    reason: String,
    /// True if a name server said that there are none.
    is_negative: bool,
}

fn builder_for(server: SocketAddr) -> ResolverBuilder<TokioRuntimeProvider> {
    let config = ResolverConfig::from_parts(None, Vec::new(), vec![name_server(server)]);
    TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
}

fn name_server(address: SocketAddr) -> NameServerConfig {
    let at_port = |mut connection: ConnectionConfig| {
        connection.port = address.port();
        connection
    };
    let connections = vec![at_port(ConnectionConfig::udp()), at_port(ConnectionConfig::tcp())];
    NameServerConfig::new(address.ip(), true, connections)
}

fn set(options: &mut ResolverOpts, dns: &Dns, kind: Kind) {
    options.timeout = dns.timeout;
    options.attempts = dns.retries as usize;
    options.positive_min_ttl = Some(dns.least_ttl);
    options.positive_max_ttl = Some(dns.longest_ttl);
    options.use_hosts_file = ResolveHosts::Never;
    options.ip_strategy = match kind {
        Kind::V4 => LookupIpStrategy::Ipv4Only,
        Kind::V6 => LookupIpStrategy::Ipv6Only,
    };
}

/// Returns when an answer expires.
fn clamped(until: Instant, dns: &Dns) -> Instant {
    let now = Instant::now();
    let least = now + dns.least_ttl;
    until.max(least).min(now + dns.longest_ttl.max(dns.least_ttl))
}

/// Returns the addresses of each host, none for one without an address in time. Blocks.
pub fn addresses_of(hosts: &[&str], patience: Duration) -> Vec<Vec<IpAddr>> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return vec![Vec::new(); hosts.len()];
    };
    let (names, dns) = (Names::default(), Dns::default());
    let ask = async |host: &&str| {
        let resolved = timeout(patience, names.resolve(host, &dns)).await;
        resolved.ok().and_then(Result::ok).map_or_else(Vec::new, |resolved| resolved.addresses)
    };
    runtime.block_on(futures_util::future::join_all(hosts.iter().map(ask)))
}

/// Returns the full name of a host, as the name servers of this machine know it: with the domain in which it was found, and
/// that of the host itself for an alias. `None` if they tell no address of it in time. Blocks.
pub fn full_name(host: &str, patience: Duration) -> Option<String> {
    full_name_by(host, patience, TokioResolver::builder_tokio().ok()?)
}

fn full_name_by(
    host: &str,
    patience: Duration,
    mut builder: ResolverBuilder<TokioRuntimeProvider>,
) -> Option<String> {
    let options = builder.options_mut();
    options.use_hosts_file = ResolveHosts::Never;
    options.ip_strategy = LookupIpStrategy::Ipv4thenIpv6;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let asked = async {
        let resolver = builder.build().ok()?;
        timeout(patience, resolver.lookup_ip(host)).await.ok()?.ok()
    };
    let found = runtime.block_on(asked)?;
    let records = found.as_lookup().answers();
    let name = &records.iter().rfind(|record| record.data.ip_addr().is_some())?.name;
    Some(name.to_string().trim_end_matches('.').to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use esker_testkit::name_server::{NameAnswer, NameServer};

    use super::*;

    #[test]
    fn full_names_come_from_name_servers() {
        let server = NameServer::start(60);
        let here = vec![Ipv4Addr::LOCALHOST];
        server.tell("node.cluster.test", NameAnswer::At(here.clone()));
        server.tell("head.cluster.test", NameAnswer::Alias("server.other.test".to_owned(), here));
        server.tell("silent.cluster.test", NameAnswer::Silence);
        let ask = |host: &str, patience: Duration| {
            let domain = Name::from_str("cluster.test.").expect("a name");
            let config = ResolverConfig::from_parts(None, vec![domain], vec![name_server(server.address())]);
            let builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
            full_name_by(host, patience, builder)
        };
        let long = Duration::from_secs(60);
        for (host, name) in [
            ("node", Some("node.cluster.test")),
            ("node.cluster.test", Some("node.cluster.test")),
            ("head", Some("server.other.test")),
            ("none", None),
        ] {
            assert_eq!(ask(host, long).as_deref(), name, "{host}");
        }
        assert_eq!(ask("silent", Duration::from_millis(100)), None);
    }

    #[test]
    fn a_name_is_resolved_again_soon_if_the_answer_for_one_family_was_lost() {
        let server = NameServer::start(3600);
        server.tell_v6(Some(vec![Ipv6Addr::LOCALHOST]));
        server.tell("both.test", NameAnswer::At(vec![Ipv4Addr::LOCALHOST]));
        server.tell("none.test", NameAnswer::At(Vec::new()));
        server.tell("lost.test", NameAnswer::SilenceOfV4);
        let dns = Dns {
            server: Some(server.address()),
            timeout: Duration::from_millis(200),
            retries: 0,
            family: Family::PreferV4,
            least_ttl: Duration::from_secs(60),
            longest_ttl: Duration::from_secs(3600),
            addresses_max: 0,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        for (host, addresses, is_soon) in
            [("both.test", 2, false), ("none.test", 1, false), ("lost.test", 1, true)]
        {
            let found = runtime.block_on(Names::default().resolve(host, &dns)).expect("addresses");
            assert_eq!(found.addresses.len(), addresses, "{host}");
            let valid = found.until.saturating_duration_since(Instant::now());
            assert_eq!(valid <= dns.least_ttl, is_soon, "{host}: {valid:?}");
        }
    }
}
