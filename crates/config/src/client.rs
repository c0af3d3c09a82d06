//! Converts parameters to the types that parts of the client use.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use esker_format::hash::ContentHash;
use esker_format::time::UnixTime;
use esker_store::{Authorities, Dns, Family, InfoHeaders, Order, Proxies, Servers, Timings};
use esker_view::Pin;

use super::{Finding, Origin, Parameters, Severity, table};

/// Missing or invalid parameter, with advice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// A required parameter is not set.
    #[error("{parameter} is not set for {name}")]
    Missing {
        /// Name of the parameter.
        parameter: &'static str,
        /// Repository.
        name: String,
        /// Advice for the user.
        mend: String,
    },
    /// A parameter has an invalid value.
    #[error("{parameter}={value} ({origin}): {why}")]
    Bad {
        /// Parameter, by the name that it is set by.
        parameter: String,
        /// Invalid value.
        value: String,
        /// Origin of the value.
        origin: Box<Origin>,
        /// Reason why it is invalid.
        why: String,
        /// Advice for the user.
        mend: String,
    },
}

impl ParameterError {
    /// Returns the advice.
    pub fn mend(&self) -> &str {
        match self {
            ParameterError::Missing { mend, .. } | ParameterError::Bad { mend, .. } => mend,
        }
    }
}

pub(super) type Read<T> = Result<T, ParameterError>;

/// Location of a repository's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Files, or a folder of files.
    pub paths: Vec<PathBuf>,
    /// Parameter and its line; `None` for the default folder.
    pub from: Option<(String, Origin)>,
}

/// A cache according to the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredCache {
    /// The folder of Esker's cache. That of CernVM-FS is beside it, so that both clients can run on a node.
    pub path: PathBuf,
    /// Parameter with its value's origin.
    pub from: (String, Origin),
    /// Quota in bytes; `None` for no limit or no setting.
    pub quota: Option<u64>,
}

/// Port of name servers.
const DNS_PORT: u16 = 53;
/// Default of the reference client for keys.
const KEYS: &str = "/etc/cvmfs/keys";
const GRID: &str = "/etc/grid-security/certificates";
const BLACKLIST: &str = "/etc/cvmfs/blacklist";

impl Parameters {
    pub(super) fn checked(&self, name: &str) -> Read<Option<&str>> {
        let Some((by, setting)) = self.named(name) else { return Ok(None) };
        let kind = table::row(name).map_or(table::Kind::Text, |row| row.kind);
        match kind.check(&setting.value) {
            Ok(()) => Ok(Some(&setting.value)),
            Err(why) => Err(self.bad(by, why)),
        }
    }

    pub(super) fn bad(&self, name: &str, why: impl Into<String>) -> ParameterError {
        let takes = table::row(name).map(|row| row.kind.words()).unwrap_or_default();
        let (parameter, setting) = match self.named(name) {
            Some((by, setting)) => (by, setting.clone()),
            None => (name, super::Setting { value: String::new(), origin: Origin::Option("nothing") }),
        };
        ParameterError::Bad {
            parameter: parameter.to_owned(),
            mend: format!("correct {}; {parameter} takes {takes}", setting.origin),
            value: table::shown(parameter, &setting.value).into_owned(),
            origin: Box::new(setting.origin),
            why: why.into(),
        }
    }

    pub(super) fn missing(&self, parameter: &'static str, mend: String) -> ParameterError {
        let name = self.name().unwrap_or("all repositories").to_owned();
        ParameterError::Missing { parameter, name, mend }
    }

    /// Returns a switch, if it is set.
    pub fn switch(&self, name: &str) -> Read<Option<bool>> {
        Ok(self.checked(name)?.and_then(table::switch))
    }

    /// Returns a number, if it is set.
    pub fn number(&self, name: &str) -> Read<Option<i64>> {
        match self.checked(name)? {
            Some(text) => text.parse().map(Some).map_err(|_| self.bad(name, "it is too large")),
            None => Ok(None),
        }
    }

    fn count<T: TryFrom<i64>>(&self, name: &str) -> Read<Option<T>> {
        self.number(name)?
            .map(|number| T::try_from(number).map_err(|_| self.bad(name, "it is too large")))
            .transpose()
    }

    pub(super) fn seconds(&self, name: &str) -> Read<Option<Duration>> {
        Ok(self.count::<u64>(name)?.map(Duration::from_secs))
    }

    /// Returns the servers of the repository and their routes. `auto` is the meaning of `auto` among proxies.
    pub fn servers(&self, auto: Option<&str>) -> Read<Servers> {
        let (metalinks, metalink) = self.metalinks("CVMFS_METALINK_URL")?;
        let urls = metalinks.map_or_else(|| self.urls(), Ok)?;
        let order = self.order()?;
        Ok(Servers {
            urls,
            full: self.full_servers()?,
            metalink,
            proxies: self.proxies("CVMFS_HTTP_PROXY", auto)?.ok_or_else(|| {
                let mend = "set it in /etc/cvmfs/default.local, to DIRECT if there is no proxy, or use --proxy GROUPS";
                self.missing("CVMFS_HTTP_PROXY", mend.into())
            })?,
            fallback: self.proxies("CVMFS_FALLBACK_PROXY", auto)?.unwrap_or_else(Proxies::none),
            sharding: self.switch("CVMFS_PROXY_SHARD")?.unwrap_or(false),
            redirects: self.switch("CVMFS_FOLLOW_REDIRECTS")?.unwrap_or(false),
            order,
            geo_name: self.checked("CVMFS_PROXY_TEMPLATE")?.map(str::to_owned),
            most: self.count("CVMFS_MAX_SERVERS")?.unwrap_or(0),
            info_headers: self.told()?,
            timings: self.timings()?,
            dns: self.dns()?,
            authorities: self.authorities()?,
            http2: self.switch("ESKER_HTTP2")?.unwrap_or(true),
            external: None,
        })
    }

    /// Adds the servers for external data, if any are configured.
    pub fn add_external(&self, servers: &mut Servers, auto: Option<&str>) -> Read<()> {
        let (metalinks, metalink) = self.metalinks("CVMFS_EXTERNAL_METALINK")?;
        let given = self.checked("CVMFS_EXTERNAL_URL")?.map(addresses);
        let Some(urls) = metalinks.or(given) else { return Ok(()) };
        let mut timings = servers.timings.clone();
        timings.proxy = self.seconds("CVMFS_EXTERNAL_TIMEOUT")?.unwrap_or(timings.proxy);
        timings.direct = self.seconds("CVMFS_EXTERNAL_TIMEOUT_DIRECT")?.or(timings.direct);
        let external = Servers {
            urls,
            full: Vec::new(),
            metalink,
            proxies: self.proxies("CVMFS_EXTERNAL_HTTP_PROXY", auto)?.unwrap_or_else(Proxies::direct),
            fallback: self.proxies("CVMFS_EXTERNAL_FALLBACK_PROXY", auto)?.unwrap_or_else(Proxies::none),
            most: self.count("CVMFS_EXTERNAL_MAX_SERVERS")?.unwrap_or(0),
            timings,
            // Only servers of repositories have the Geo-API.
            order: if servers.order == Order::Geo { Order::RoundTrip } else { servers.order },
            ..servers.clone()
        };
        servers.external = Some(Box::new(external));
        Ok(())
    }

    /// Returns the certificate authorities for TLS.
    pub fn authorities(&self) -> Read<Authorities> {
        let system = self.switch("CVMFS_USE_SSL_SYSTEM_CA")?;
        let own = self.checked("ESKER_CA")?.into_iter().flat_map(|paths| paths.split(':')).map(str::trim);
        let bundle = self.checked("X509_CERT_BUNDLE")?;
        // Default of the reference client; without the system's authorities it is the only one.
        let usual = (system == Some(false) || Path::new(GRID).is_dir()).then_some(GRID);
        let folder = self.checked("X509_CERT_DIR")?.or(usual);
        Ok(Authorities {
            system: system != Some(false),
            paths: own.chain(bundle).chain(folder).map(str::to_owned).collect(),
        })
    }

    fn urls(&self) -> Read<Vec<String>> {
        const NAME: &str = "CVMFS_SERVER_URL";
        let text = self.checked(NAME)?.ok_or_else(|| {
            let domain = self.name().and_then(|name| name.split_once('.')).map_or("DOMAIN", |(_, domain)| domain);
            let mend = format!(
                "set it in /etc/cvmfs/domain.d/{domain}.local, copy the domain's /etc/cvmfs/domain.d/{domain}.conf and keys from \
                 a machine that has them, or give a URL in place of the name"
            );
            self.missing(NAME, mend)
        })?;
        Ok(addresses(text))
    }

    /// Returns the servers with what a partial replica lacks, if the client is to use them.
    fn full_servers(&self) -> Read<Vec<String>> {
        const URL: &str = "CVMFS_FULL_STRATUM1_URL";
        let mode = self.checked("CVMFS_PARTIAL_REPLICA_MODE")?.unwrap_or_default();
        if !mode.eq_ignore_ascii_case("failover") {
            return Ok(Vec::new());
        }
        let mend = format!("set {URL}, or CVMFS_PARTIAL_REPLICA_MODE=off");
        self.checked(URL)?.map(addresses).ok_or_else(|| self.missing(URL, mend))
    }

    /// Returns the metalink servers of a list, and the time for which the servers are used that they link to.
    fn metalinks(&self, list: &str) -> Read<(Option<Vec<String>>, Option<Duration>)> {
        let Some(text) = self.checked(list)? else { return Ok((None, None)) };
        let kept = match self.seconds("CVMFS_METALINK_RESET_AFTER")? {
            Some(kept) => Some(kept),
            None => self.timings()?.proxy_reset,
        };
        // Zero means never, as it does for proxies.
        let kept = kept.filter(|kept| !kept.is_zero()).unwrap_or(Duration::from_secs(u32::MAX.into()));
        Ok((Some(addresses(text)), Some(kept)))
    }

    fn order(&self) -> Read<Order> {
        if let Some(order) = self.checked("ESKER_SERVER_ORDER")? {
            return order.parse().map_err(|why: String| self.bad("ESKER_SERVER_ORDER", why));
        }
        Ok(if self.switch("CVMFS_USE_GEOAPI")? == Some(true) { Order::Geo } else { Order::Given })
    }

    fn told(&self) -> Read<InfoHeaders> {
        // One fetch serves all readers; the mounting user can be sent, but not the reading process.
        let uid = rustix::process::getuid().as_raw().to_string();
        let gid = rustix::process::getgid().as_raw().to_string();
        const TEMPLATE: &str = "CVMFS_INFO_HEADER";
        let known = |key: &str| match key {
            "uid" => Some(uid.clone()),
            "gid" => Some(gid.clone()),
            "pid" => Some("-".to_owned()),
            key => std::env::var(key.strip_prefix("env:")?).ok(),
        };
        let template = match self.checked(TEMPLATE)? {
            Some(text) => Some(
                InfoHeaders::fill_in(text, known)
                    .ok_or_else(|| self.bad(TEMPLATE, "a field of a request can't have it"))?,
            ),
            None => None,
        };
        let what = self.switch("CVMFS_SEND_INFO_HEADER")?.unwrap_or(false);
        if self.switch("CVMFS_HTTP_TRACING")? != Some(true) {
            return Ok(InfoHeaders { what, template, fields: Vec::new() });
        }
        const FIELDS: &str = "CVMFS_HTTP_TRACING_HEADERS";
        let own = self.checked(FIELDS)?.unwrap_or_default();
        let own = InfoHeaders::parse_fields(own)
            .ok_or_else(|| self.bad(FIELDS, "it is not like name:value|name:value"))?;
        let usual = [("UID".to_owned(), uid), ("GID".to_owned(), gid)];
        Ok(InfoHeaders { what, template, fields: usual.into_iter().chain(own).collect() })
    }

    /// Returns the notification server for new revisions, if one is configured.
    pub fn notification_server(&self) -> Read<Option<String>> {
        Ok(self.checked("CVMFS_NOTIFICATION_SERVER")?.map(str::to_owned))
    }

    /// Returns a finding if proxies name `auto` and its meaning is not configured.
    pub fn unknown_auto(&self, auto: Option<&str>) -> Option<Finding> {
        let (_, setting) = self.named("CVMFS_HTTP_PROXY").filter(|_| auto.is_none())?;
        setting.value.split([';', '|']).find(|member| member.trim() == "auto")?;
        let what = format!(
            "CVMFS_HTTP_PROXY={}: `auto` is left out, because the environment variable http_proxy is not set and proxy \
             configuration files (CVMFS_PAC_URLS) are not run",
            table::shown("CVMFS_HTTP_PROXY", &setting.value)
        );
        let mend = "name the proxies that the file names, like CVMFS_HTTP_PROXY='http://proxy:3128;DIRECT', in \
                    /etc/cvmfs/default.local; or set http_proxy for whatever mounts";
        Some(Finding::new(Severity::Warning, what, mend).at(&setting.origin))
    }

    fn proxies(&self, name: &str, auto: Option<&str>) -> Read<Option<Proxies>> {
        match self.checked(name)? {
            Some(text) => {
                Proxies::parse(text, auto).map(Some).map_err(|error| self.bad(name, error.to_string()))
            }
            None => Ok(None),
        }
    }

    fn timings(&self) -> Read<Timings> {
        let usual = Timings::default();
        // Zero means never.
        let reset = |name, usual| {
            let set: Option<Duration> = self.seconds(name)?;
            Ok(set.map_or(usual, |after| (!after.is_zero()).then_some(after)))
        };
        Ok(Timings {
            proxy: self.seconds("CVMFS_TIMEOUT")?.unwrap_or(usual.proxy),
            direct: self.seconds("CVMFS_TIMEOUT_DIRECT")?.or(usual.direct),
            low_speed: self.count("CVMFS_LOW_SPEED_LIMIT")?.or(usual.low_speed),
            indefinitely: self.switch("CVMFS_FAILOVER_INDEFINITELY")?.unwrap_or(usual.indefinitely),
            retries: self.count("CVMFS_MAX_RETRIES")?.unwrap_or(usual.retries),
            first_pause: self.seconds("CVMFS_BACKOFF_INIT")?.or(usual.first_pause),
            longest_pause: self.seconds("CVMFS_BACKOFF_MAX")?.or(usual.longest_pause),
            proxy_reset: reset("CVMFS_PROXY_RESET_AFTER", usual.proxy_reset)?,
            server_reset: reset("CVMFS_HOST_RESET_AFTER", usual.server_reset)?,
        })
    }

    fn dns(&self) -> Read<Dns> {
        let usual = Dns::default();
        let server = match self.checked("CVMFS_DNS_SERVER")? {
            Some(text) => {
                let address =
                    text.parse().or_else(|_| text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, DNS_PORT)));
                Some(address.map_err(|_| self.bad("CVMFS_DNS_SERVER", "it is not an address"))?)
            }
            None => None,
        };
        let family = match self.checked("CVMFS_IPFAMILY_PREFER")? {
            _ if self.get("CVMFS_IPV4_ONLY").is_some() => Family::OnlyV4,
            Some("6") => Family::PreferV6,
            _ => Family::PreferV4,
        };
        Ok(Dns {
            timeout: self.seconds("CVMFS_DNS_TIMEOUT")?.unwrap_or(usual.timeout),
            retries: self.count("CVMFS_DNS_RETRIES")?.unwrap_or(usual.retries),
            least_ttl: self.seconds("CVMFS_DNS_MIN_TTL")?.unwrap_or(usual.least_ttl),
            longest_ttl: self.seconds("CVMFS_DNS_MAX_TTL")?.unwrap_or(usual.longest_ttl),
            server,
            family,
            addresses_max: self.count("CVMFS_MAX_IPADDR_PER_PROXY")?.unwrap_or(usual.addresses_max),
        })
    }

    /// Returns the master keys of the repository.
    pub fn keys(&self) -> Read<Keys> {
        let from = |name: &str| self.named(name).map(|(by, setting)| (by.to_owned(), setting.origin.clone()));
        if let Some(text) = self.checked("CVMFS_PUBLIC_KEY")? {
            let paths = text.split(':').map(|path| PathBuf::from(path.trim())).collect();
            return Ok(Keys { paths, from: from("CVMFS_PUBLIC_KEY") });
        }
        let folder = self.checked("CVMFS_KEYS_DIR")?.unwrap_or(KEYS);
        Ok(Keys { paths: vec![folder.into()], from: from("CVMFS_KEYS_DIR") })
    }

    /// Returns the path of the blacklist.
    pub fn blacklist(&self) -> Read<PathBuf> {
        Ok(self.checked("CVMFS_BLACKLIST")?.unwrap_or(BLACKLIST).into())
    }

    /// Returns the pinned revision.
    pub fn pin(&self) -> Read<Option<Pin>> {
        if let Some(text) = self.checked("CVMFS_ROOT_HASH")? {
            let hash =
                ContentHash::parse(text).map_err(|error| self.bad("CVMFS_ROOT_HASH", error.to_string()))?;
            return Ok(Some(Pin::Root(hash)));
        }
        if let Some(tag) = self.checked("CVMFS_REPOSITORY_TAG")? {
            return Ok(Some(Pin::Tag(tag.to_owned())));
        }
        if let Some(text) = self.checked("CVMFS_REPOSITORY_DATE")? {
            let date = UnixTime::parse_iso(text)
                .ok_or_else(|| self.bad("CVMFS_REPOSITORY_DATE", "it is not a date"))?;
            return Ok(Some(Pin::Date(date)));
        }
        Ok(self.switch("CVMFS_AUTO_UPDATE")?.is_some_and(|follows| !follows).then_some(Pin::Head))
    }

    /// Returns the longest interval between two checks for a new revision.
    pub fn longest_ttl(&self) -> Read<Option<Duration>> {
        let minutes = self.seconds("CVMFS_MAX_TTL")?.map(|minutes| minutes.saturating_mul(60));
        let both = [minutes, self.seconds("CVMFS_MAX_TTL_SECS")?];
        // Zero is no limit.
        Ok(both.into_iter().flatten().filter(|limit| !limit.is_zero()).min())
    }

    /// Returns the configured repositories, with full names.
    pub fn repositories(&self) -> Read<Vec<String>> {
        self.full_names("CVMFS_REPOSITORIES")
    }

    /// Returns the names of a list, with the default domain where a name has none.
    fn full_names(&self, list: &str) -> Read<Vec<String>> {
        let domain = self.checked("CVMFS_DEFAULT_DOMAIN")?;
        let whole = |name: &str| match domain {
            Some(domain) if !name.contains('.') => format!("{name}.{domain}"),
            _ => name.to_owned(),
        };
        let listed = self.checked(list)?.unwrap_or_default();
        Ok(listed.split(',').map(str::trim).filter(|name| !name.is_empty()).map(whole).collect())
    }

    /// Returns an error if this repository must not be mounted, or only configured ones may be and this one is not.
    pub fn allowed(&self) -> Read<()> {
        let Some(name) = self.name() else { return Ok(()) };
        const REFUSED: &str = "CVMFS_REPOSITORIES_NOMOUNT";
        if self.full_names(REFUSED)?.iter().any(|it| it == name) {
            return Err(self.bad(REFUSED, format!("{name} is not to be mounted on this machine")));
        }
        let config = self.get("CVMFS_CONFIG_REPOSITORY").is_some_and(|setting| setting.value == name);
        if config
            || self.switch("CVMFS_STRICT_MOUNT")? != Some(true)
            || self.repositories()?.iter().any(|it| it == name)
        {
            return Ok(());
        }
        let why = format!("{name} is not in CVMFS_REPOSITORIES");
        let mut error = self.bad("CVMFS_STRICT_MOUNT", why);
        if let ParameterError::Bad { mend, .. } = &mut error {
            *mend = format!(
                "add {name} to CVMFS_REPOSITORIES, or set CVMFS_STRICT_MOUNT=no, in /etc/cvmfs/default.local"
            );
        }
        Err(error)
    }
}

/// Returns the URLs of a list.
fn addresses(text: &str) -> Vec<String> {
    text.split(';').map(|url| url.trim().trim_end_matches('/').to_owned()).collect()
}
