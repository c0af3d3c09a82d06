//! Names to addresses, without the C library: a static binary can't load its modules.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Instant;

use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::{ResolverBuilder, TokioResolver};

use crate::error::Cause;
use crate::servers::{Dns, Family};

/// What is known of a name.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    /// Its addresses, in the order to try them; at least one.
    pub(crate) addresses: Vec<IpAddr>,
    /// Until when that holds.
    pub(crate) until: Instant,
}

/// Asks `/etc/hosts`, then the servers of `/etc/resolv.conf` or those that were named; remembers answers as long as
/// they allow.
#[derive(Default)]
pub(super) struct Names {
    resolvers: RefCell<HashMap<Dns, Rc<TokioResolver>>>,
}

impl Names {
    /// The addresses of a host.
    pub(super) async fn resolve(&self, host: &str, dns: &Dns) -> Result<Resolved, Cause> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(Resolved { addresses: vec![address], until: Instant::now() + dns.longest_ttl });
        }
        let failed = |reason: String| Cause::Unresolved { host: host.to_owned(), reason };
        let resolver = self.resolver(dns).map_err(failed)?;
        match resolver.lookup_ip(host).await {
            Ok(found) => {
                let addresses: Vec<_> = found.iter().collect();
                if addresses.is_empty() {
                    return Err(failed("it has no address".to_owned()));
                }
                Ok(Resolved { addresses, until: clamped(found.valid_until(), dns) })
            }
            Err(error) => {
                // The network may have changed, and with it /etc/resolv.conf: read it again next time.
                self.resolvers.borrow_mut().remove(dns);
                Err(failed(error.to_string()))
            }
        }
    }

    fn resolver(&self, dns: &Dns) -> Result<Rc<TokioResolver>, String> {
        if let Some(resolver) = self.resolvers.borrow().get(dns) {
            return Ok(resolver.clone());
        }
        let mut builder = builder(dns)?;
        set(builder.options_mut(), dns);
        let built = Rc::new(builder.build().map_err(|error| error.to_string())?);
        self.resolvers.borrow_mut().insert(dns.clone(), built.clone());
        Ok(built)
    }
}

fn builder(dns: &Dns) -> Result<ResolverBuilder<TokioRuntimeProvider>, String> {
    match dns.server {
        Some(server) => Ok(TokioResolver::builder_with_config(
            ResolverConfig::from_parts(None, Vec::new(), vec![name_server(server)]),
            TokioRuntimeProvider::default(),
        )),
        None => TokioResolver::builder_tokio().map_err(|error| format!("reading /etc/resolv.conf: {error}")),
    }
}

fn name_server(address: SocketAddr) -> NameServerConfig {
    let at_port = |mut connection: ConnectionConfig| {
        connection.port = address.port();
        connection
    };
    let connections = vec![at_port(ConnectionConfig::udp()), at_port(ConnectionConfig::tcp())];
    NameServerConfig::new(address.ip(), true, connections)
}

fn set(options: &mut ResolverOpts, dns: &Dns) {
    options.timeout = dns.timeout;
    options.attempts = dns.retries as usize;
    options.positive_min_ttl = Some(dns.least_ttl);
    options.positive_max_ttl = Some(dns.longest_ttl);
    options.ip_strategy = match dns.family {
        Family::PreferV4 => LookupIpStrategy::Ipv4AndIpv6,
        Family::PreferV6 => LookupIpStrategy::Ipv6AndIpv4,
        Family::OnlyV4 => LookupIpStrategy::Ipv4Only,
    };
}

/// When an answer is to be asked for again.
fn clamped(until: Instant, dns: &Dns) -> Instant {
    let now = Instant::now();
    let least = now + dns.least_ttl;
    until.max(least).min(now + dns.longest_ttl.max(dns.least_ttl))
}
