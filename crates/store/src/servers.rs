//! Servers of a repository, the proxies to them, and timeouts.

mod authorities;
mod login;
mod proxies;
mod text;

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

pub(crate) use authorities::BUNDLES;
pub use authorities::{Authorities, KeptAuthorities};
pub use login::{Login, without_passwords};
pub use proxies::{Proxies, Proxy, ProxyError};
pub use text::ServersError;

use crate::escaping::escaped;

/// Servers of one repository and the routes to them. The text form ([`Display`](std::fmt::Display) and
/// [`FromStr`](std::str::FromStr)) is equal for equal values, and just the URL for one server without a proxy. Sources
/// with equal text share connections and the state of servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Servers {
    /// Base URLs of the repository, the preferred one first: `http://server/cvmfs/NAME`, or one `file://…`.
    pub urls: Vec<String>,
    /// URLs of the whole repository, for what is missing because the servers have a partial replica.
    pub full: Vec<String>,
    /// Time for which the servers are used that the URLs, of metalink servers, link to; `None` for URLs of the repository.
    pub metalink: Option<Duration>,
    /// Proxies to use.
    pub proxies: Proxies,
    /// Further groups of proxies, for when the others fail.
    pub fallback: Proxies,
    /// True if the object determines the member of a group, so that each proxy caches a part of all objects.
    pub sharding: bool,
    /// True to follow redirects.
    pub redirects: bool,
    /// Order in which servers are used.
    pub order: Order,
    /// Client name in queries of the Geo-API; `None` for the proxy's name, or a random name.
    pub geo_name: Option<String>,
    /// Maximum number of servers in use, the first in order; 0 for all.
    pub most: usize,
    /// Additional fields of requests for the logs of proxies and servers.
    pub info_headers: InfoHeaders,
    /// Timeouts and retries.
    pub timings: Timings,
    /// Name resolution.
    pub dns: Dns,
    /// Trusted certificate authorities.
    pub authorities: Authorities,
    /// True if HTTP/2 is used with servers that offer it over TLS.
    pub http2: bool,
    /// Servers for external data, below the path of each file.
    pub external: Option<Box<Servers>>,
}

/// Order in which servers are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Order of the list.
    #[default]
    Given,
    /// By response time, measured at the start.
    RoundTrip,
    /// By distance, according to the Geo-API of CernVM-FS on one of the servers; applies to fallback proxies,
    /// too.
    Geo,
}

impl Order {
    /// All orders with their names.
    const NAMES: [(Self, &str); 3] =
        [(Self::Given, "given"), (Self::RoundTrip, "round-trip"), (Self::Geo, "geo")];
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::NAMES.iter().find(|(order, _)| order == self);
        f.write_str(named.map_or("", |(_, name)| name))
    }
}

impl FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::NAMES.iter().find(|(_, name)| *name == text);
        named.map(|(order, _)| *order).ok_or_else(|| format!("{text:?} is none of given, round-trip and geo"))
    }
}

/// Additional fields of requests, for sites that trace requests in logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InfoHeaders {
    /// True to send the path of the file or the kind of object (`cvmfs-info`).
    pub what: bool,
    /// Value of that field, in which `%{path}` stands for what is fetched; `None` for that alone.
    pub template: Option<String>,
    /// Fields by the second part of their names, after `X-CVMFS-`.
    pub fields: Vec<(String, String)>,
}

impl InfoHeaders {
    /// Stands for the path in a template.
    const PATH: &str = "%{path}";

    /// Parses `name:value|name:value`; returns `None` for invalid fields.
    pub fn parse_fields(text: &str) -> Option<Vec<(String, String)>> {
        let parts = text.split('|').map(str::trim).filter(|part| !part.is_empty());
        parts.map(|part| Self::field(part.split_once(':')?)).collect()
    }

    /// Returns the value of `cvmfs-info` for a path.
    pub(crate) fn value(&self, path: &[u8]) -> String {
        let path = escaped(path);
        self.template.as_ref().map_or_else(|| path.clone(), |template| template.replace(Self::PATH, &path))
    }

    /// Fills in a template of the reference (`CVMFS_INFO_HEADER`) as far as it is the same for all requests; returns `None` if a
    /// field of a request can't have it.
    ///
    /// `%{KEY}` is what `known` returns for the key, escaped; a key that is not known vanishes. Source: `jobinfo.cc` of CernVM-FS.
    pub fn fill_in(template: &str, known: impl Fn(&str) -> Option<String>) -> Option<String> {
        let (mut filled, mut rest) = (String::new(), template);
        while let Some((before, after)) = rest.split_once("%{")
            && let Some((key, after)) = after.split_once('}')
        {
            filled += before;
            match key {
                "path" => filled += Self::PATH,
                // A value of the environment is set apart by a blank.
                key => filled.extend(known(key).map(|value| match key.starts_with("env:") {
                    true if value.is_empty() => value,
                    true => format!(" {}", escaped(value.as_bytes())),
                    false => escaped(value.as_bytes()),
                })),
            }
            rest = after;
        }
        filled += rest;
        filled.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ').then_some(filled)
    }

    /// Returns a field that is valid in a request.
    fn field((name, value): (&str, &str)) -> Option<(String, String)> {
        let (name, value) = (name.trim(), value.trim());
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let plain = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
        let good = !name.is_empty() && name.bytes().all(token) && value.bytes().all(plain);
        good.then(|| (name.to_owned(), value.to_owned()))
    }
}

/// Timeouts and retries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timings {
    /// Timeout with a proxy: for a connection, for the first byte of a reply, and as the period of the
    /// low-speed limit.
    pub proxy: Duration,
    /// Timeout without a proxy; `None` for the values of [`HttpOptions`](crate::HttpOptions).
    pub direct: Option<Duration>,
    /// Minimum rate in bytes a second over that period; `None` for the value of
    /// [`HttpOptions`](crate::HttpOptions).
    pub low_speed: Option<u64>,
    /// True if rounds through all routes continue as long as the request may take, even after permanent
    /// failures.
    pub indefinitely: bool,
    /// Number of retries on the same route after a broken connection.
    pub retries: u32,
    /// Maximum of the first pause before another attempt, which is a random part of this
    pub first_pause: Option<Duration>,
    /// Maximum pause between retries; `None` for the value of [`RetryPolicy`](crate::RetryPolicy).
    pub longest_pause: Option<Duration>,
    /// Time after which the proxies of the first group are tried again; `None` for never.
    pub proxy_reset: Option<Duration>,
    /// Time after which the first server is tried again; `None` for never.
    pub server_reset: Option<Duration>,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            proxy: Duration::from_secs(5),
            direct: None,
            low_speed: None,
            indefinitely: false,
            retries: 1,
            first_pause: None,
            longest_pause: None,
            // Values of the reference client's default configuration.
            proxy_reset: Some(Duration::from_secs(300)),
            server_reset: Some(Duration::from_secs(1800)),
        }
    }
}

/// Resolution of names of servers and proxies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dns {
    /// Timeout of one query.
    pub timeout: Duration,
    /// Number of retries of a query.
    pub retries: u32,
    /// Minimum time for which an answer is used.
    pub least_ttl: Duration,
    /// Maximum time for which an answer is used, whatever its TTL.
    pub longest_ttl: Duration,
    /// Name server in place of those in `/etc/resolv.conf`.
    pub server: Option<SocketAddr>,
    /// Address family to use.
    pub family: Family,
    /// Maximum number of addresses of one proxy; 0 for all.
    pub addresses_max: usize,
}

impl Default for Dns {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(3),
            retries: 1,
            least_ttl: Duration::from_secs(60),
            longest_ttl: Duration::from_secs(86_400),
            server: None,
            family: Family::default(),
            addresses_max: 0,
        }
    }
}

/// Address families to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Family {
    /// Both versions, IPv4 first.
    #[default]
    PreferV4,
    /// Both versions, IPv6 first.
    PreferV6,
    /// Only IPv4.
    OnlyV4,
}

impl Servers {
    /// Returns one server that is used without a proxy.
    pub fn direct(url: impl Into<String>) -> Self {
        Self {
            urls: vec![url.into()],
            full: Vec::new(),
            metalink: None,
            proxies: Proxies::direct(),
            fallback: Proxies::none(),
            sharding: false,
            redirects: false,
            order: Order::default(),
            geo_name: None,
            most: 0,
            info_headers: InfoHeaders::default(),
            timings: Timings::default(),
            dns: Dns::default(),
            authorities: Authorities::default(),
            http2: true,
            external: None,
        }
    }

    /// Returns the preferred URL, which represents the repository in messages.
    pub fn url(&self) -> &str {
        self.urls.first().map_or("", String::as_str)
    }

    /// Reads the authorities, if a server or proxy is reached over https.
    pub fn kept_authorities(&self) -> KeptAuthorities {
        let is_secure = self.to_string().contains("https://");
        if is_secure { self.authorities.kept() } else { KeptAuthorities::default() }
    }

    /// Limits all timeouts for a server to this.
    pub fn within(&mut self, deadline: Duration) {
        self.timings.proxy = self.timings.proxy.min(deadline);
        self.timings.direct = self.timings.direct.map(|direct| direct.min(deadline));
        self.dns.timeout = self.dns.timeout.min(deadline);
        if let Some(external) = &mut self.external {
            external.within(deadline);
        }
    }

    /// Returns all groups in the order of use; with fallback proxies no server is used directly.
    pub(crate) fn groups(&self) -> Vec<Vec<Proxy>> {
        let all = |proxies: &Proxies| proxies.groups().to_vec();
        if self.fallback.is_empty() {
            return all(&self.proxies);
        }
        let mut groups = without_direct(all(&self.proxies));
        groups.extend(self.fallback_groups());
        groups
    }

    /// Returns the fallback groups, the last in the order of use.
    pub(crate) fn fallback_groups(&self) -> Vec<Vec<Proxy>> {
        without_direct(self.fallback.groups().to_vec())
    }
}

fn without_direct(mut groups: Vec<Vec<Proxy>>) -> Vec<Vec<Proxy>> {
    groups.iter_mut().for_each(|group| group.retain(|proxy| *proxy != Proxy::Direct));
    groups.retain(|group| !group.is_empty());
    groups
}

impl From<&str> for Servers {
    /// Returns one server that is used without a proxy.
    fn from(url: &str) -> Self {
        Self::direct(url)
    }
}

impl From<&String> for Servers {
    fn from(url: &String) -> Self {
        Self::direct(url.as_str())
    }
}
