//! Resolves a repository's name: its configuration, overridden by the command line.

mod colon;
mod missing;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use esker_cache_share::location::{self, CacheLocation};
use esker_cache_share::memory;
use esker_config::{
    ConfiguredCache, ConfiguredTier, ParameterError, Parameters, Problem, ProblemKind, Root, Severity,
    SyslogOptions, TalkOptions, Telemetry, Tuning,
};
use esker_format::name::RepositoryName;
use esker_fuse::{SessionOptions, XattrGuard};
use esker_node::push::Push;
use esker_store::{Lower, LowerForm, Servers};
use esker_view::{IdMap, Ownership, Pin, Protected, ViewOptions, Visibility};
use rustix::fs::{Access, access, statvfs};

pub(crate) use colon::hint_at_colon;

pub(crate) use crate::settings::args::is_name;

use crate::error::{Failure, warn};
use crate::settings::args::{Address, RepositoryArgs, hurry, public_keys};
use crate::settings::cache_folder;
use crate::settings::configuration::{self, of_parameter};
use crate::settings::tiers::tier;
use crate::settings::{Settings, default_quota, in_memory};

/// Configuration of a mount other than servers and keys.
#[derive(Default)]
pub(crate) struct Configured {
    pin: Option<Pin>,
    ttl_max: Option<Duration>,
    claim: bool,
    uids: IdMap,
    gids: IdMap,
    world_readable: bool,
    magic: Visibility,
    protected: Protected,
    enforce_acls: bool,
    variables: BTreeMap<String, String>,
    push: Option<Push>,
    /// Lower cache folders.
    pub(crate) lower: Vec<Lower>,
    /// True if the content of files is not cached.
    pub(crate) streaming: bool,
    /// Settings of the mount's process.
    pub(crate) tuning: Tuning,
    /// Syslog settings, if the log goes there too.
    pub(crate) syslog: Option<SyslogOptions>,
    /// Destination of its counters.
    pub(crate) telemetry: Option<Telemetry>,
    /// Socket for `cvmfs_talk`.
    pub(crate) talk: Option<TalkOptions>,
}

impl Configured {
    /// Returns the source of push notifications: of the command line, else as configured, else the server itself.
    pub(crate) fn push(&self, said: Option<&Push>) -> Push {
        said.or(self.push.as_ref()).cloned().unwrap_or_default()
    }

    /// Applies the configuration to the options of a session.
    pub(crate) fn session(&self, session: SessionOptions) -> SessionOptions {
        SessionOptions { xattr_guard: self.xattr_guard(), enforce_acls: self.enforce_acls, ..session }
    }

    /// Returns the guard of attributes; `None` if all users may read all of them.
    fn xattr_guard(&self) -> Option<XattrGuard> {
        let protected = self.protected.clone();
        (!protected.names.is_empty())
            .then(|| Arc::new(move |name: &[u8], group: u32| protected.may_ask(name, group)) as XattrGuard)
    }

    /// Applies the configuration to the options of a view, unless the command line sets them.
    pub(crate) fn applied_to(&self, view: &ViewOptions) -> ViewOptions {
        let mut view = view.clone();
        view.pin = view.pin.or_else(|| self.pin.clone());
        view.ttl_max = view.ttl_max.or(self.ttl_max);
        if self.claim {
            let uid = rustix::process::geteuid().as_raw();
            view.ownership = Ownership::Claim { uid, gid: rustix::process::getegid().as_raw() };
        }
        (view.uids, view.gids) = (self.uids.clone(), self.gids.clone());
        view.world_readable = self.world_readable;
        view.magic = self.magic;
        // The reference exports all parameters before it expands variant symlinks.
        view.variables.extend(self.variables.clone());
        view
    }
}

/// A repository from the configuration.
pub(crate) struct NamedRepository {
    pub(crate) name: RepositoryName,
    pub(crate) servers: Servers,
    pub(crate) keys: Vec<(PathBuf, Vec<u8>)>,
    pub(crate) blacklist: PathBuf,
    pub(crate) place: CacheLocation,
    pub(crate) quota: u64,
    pub(crate) configured: Configured,
}

impl NamedRepository {
    pub(crate) fn find(name: &str, args: &RepositoryArgs, settings: &Settings) -> Result<Self, Failure> {
        let name = configuration::full_name(settings, name)?;
        let mut parameters = configuration::load(settings, Some(name.as_str()));
        overrule(&mut parameters, args)?;
        tell(&parameters);
        for problem in parameters.problems() {
            require(problem)?;
        }
        parameters.allowed().map_err(of_parameter)?;
        let root = Root::new(&settings.config_root);
        let keys = keys(&parameters, args, &name, settings, &root);
        let keys = missing::name_all(&parameters, keys)?;
        let auto = std::env::var("http_proxy").ok().filter(|proxy| !proxy.trim().is_empty());
        if let Some(unknown) = parameters.unknown_auto(auto.as_deref()) {
            warn(Some(&format!("{unknown}; {}", unknown.mend)));
        }
        let mut servers = parameters.servers(auto.as_deref()).map_err(of_parameter)?;
        for url in &mut servers.urls {
            *url = Address::parse(url, Some(name.as_str()))?.url;
        }
        parameters.add_external(&mut servers, auto.as_deref()).map_err(of_parameter)?;
        let authorities = configuration::authorities(&parameters, &args.ca)?;
        if let Some(external) = &mut servers.external {
            external.authorities = authorities.clone();
        }
        servers.authorities = authorities;
        hurry(&mut servers, args);
        let (place, quota) = cache(&parameters, args, settings)?;
        let (uids, gids) = parameters.id_maps(&root).map_err(of_parameter)?;
        let configured = Configured {
            uids,
            gids,
            world_readable: parameters.switch("CVMFS_WORLD_READABLE").map_err(of_parameter)? == Some(true),
            magic: parameters.visibility().map_err(of_parameter)?,
            protected: parameters.protected().map_err(of_parameter)?,
            enforce_acls: parameters.switch("CVMFS_ENFORCE_ACLS").map_err(of_parameter)? == Some(true),
            tuning: parameters.tuning().map_err(of_parameter)?,
            syslog: Some(parameters.syslog().map_err(of_parameter)?),
            telemetry: parameters.telemetry().unwrap_or_else(without),
            talk: parameters.talk(&root).unwrap_or_else(without),
            pin: parameters.pin().map_err(of_parameter)?,
            ttl_max: parameters.longest_ttl().map_err(of_parameter)?,
            claim: parameters.switch("CVMFS_CLAIM_OWNERSHIP").map_err(of_parameter)? == Some(true),
            variables: variables(&parameters, &name),
            push: parameters.notification_server().map_err(of_parameter)?.map(Push::Notifications),
            lower: lower(&parameters, &root, settings)?,
            streaming: parameters.switch("CVMFS_STREAMING_CACHE").map_err(of_parameter)? == Some(true),
        };
        let blacklist = root.place(&parameters.blacklist().map_err(of_parameter)?);
        Ok(Self { name, servers, keys, blacklist, place, quota, configured })
    }
}

/// Logs an error of an optional part; the mount continues without that part.
fn without<T>(error: ParameterError) -> Option<T> {
    warn(Some(&format!("{error}; {}", error.mend())));
    None
}

/// Applies options of the command line, which override the files.
fn overrule(parameters: &mut Parameters, args: &RepositoryArgs) -> Result<(), Failure> {
    if !args.server.is_empty() {
        let urls: Result<Vec<_>, _> = args
            .server
            .iter()
            .map(|url| Address::parse(url, args.fqrn.as_deref()).map(|it| it.url))
            .collect();
        parameters.overrule("CVMFS_SERVER_URL", urls?.join(";"), "--server");
    }
    if !args.external.is_empty() {
        parameters.overrule("CVMFS_EXTERNAL_URL", args.external.join(";"), "--external");
    }
    if args.no_http2 {
        parameters.overrule("ESKER_HTTP2", "no".to_owned(), "--no-http2");
    }
    if let Some(order) = &args.server_order {
        parameters.overrule("ESKER_SERVER_ORDER", order.to_string(), "--server-order");
    }
    if let Some(proxy) = &args.proxy {
        parameters.overrule("CVMFS_HTTP_PROXY", proxy.clone(), "--proxy");
    }
    Ok(())
}

/// Reports each line with a mistake, and all ignored parameters in one line.
fn tell(parameters: &Parameters) {
    let findings = parameters.findings();
    for error in findings.iter().filter(|finding| finding.severity == Severity::Error) {
        warn(Some(&error.to_string()));
    }
    let is_missed = |problem: &&Problem| matches!(problem.kind, ProblemKind::ConfigRepository { .. });
    for problem in parameters.problems().iter().filter(is_missed) {
        warn(Some(&problem.to_string()));
    }
    let further = findings.iter().filter(|finding| finding.severity == Severity::Warning).count();
    if further > 0 {
        let name = parameters.name().unwrap_or_default();
        warn(Some(&format!(
            "{further} lines of the configuration of {name} have no effect; `esker config show {name}` lists them"
        )));
    }
}

fn require(problem: &Problem) -> Result<(), Failure> {
    match &problem.kind {
        ProblemKind::ConfigRepository { required: true, .. } => {
            Err(Failure::usage(format!("{problem}, and CVMFS_CONFIG_REPO_REQUIRED is set"))
                .hint(problem.mend()))
        }
        _ => Ok(()),
    }
}

fn keys(
    parameters: &Parameters,
    args: &RepositoryArgs,
    name: &RepositoryName,
    settings: &Settings,
    root: &Root,
) -> Result<Vec<(PathBuf, Vec<u8>)>, Failure> {
    if !args.public_key.is_empty() {
        return public_keys(&args.public_key, name.as_str(), settings);
    }
    let keys = parameters.keys().map_err(of_parameter)?;
    let paths: Vec<PathBuf> = keys.paths.iter().map(|path| root.place(path)).collect();
    public_keys(&paths, name.as_str(), settings).map_err(|failure| {
        let from = keys.from.map(|(parameter, origin)| format!("{parameter} is set in {origin}; "));
        let from = from.unwrap_or_else(|| "neither CVMFS_PUBLIC_KEY nor CVMFS_KEYS_DIR is set; ".into());
        let message = format!("there is no public key for {name}: {}", failure.message);
        Failure::usage(message)
            .hint(format!("{from}put the key there (its publisher has it), or use --public-key FILE"))
    })
}

/// Returns the cache and its quota: from the command line or the environment, else as configured if this user may use
/// that, else this user's default.
fn cache(
    parameters: &Parameters,
    args: &RepositoryArgs,
    settings: &Settings,
) -> Result<(CacheLocation, u64), Failure> {
    let configured = parameters.cache().map_err(of_parameter)?;
    let own = args.cache.is_some() || settings.names_cache();
    if let Some(memory) = parameters.memory(memory::of_machine()).map_err(of_parameter)?.filter(|_| !own) {
        let (parameter, origin) = memory.from;
        match in_memory(args.quota.or(memory.bytes), format!("{parameter} ({origin})")) {
            Ok(cache) => return Ok(cache),
            // The mount matters more than the place of its cache.
            Err(failure) => warn(Some(&format!("{}; it is in a folder", failure.message))),
        }
    }
    let Some(configured) = configured.filter(|cache| !own && (settings.root || may_write(&cache.path)))
    else {
        return cache_folder::with_quota(settings, args);
    };
    let ConfiguredCache { path, from: (parameter, origin), quota } = configured;
    let from = format!("{parameter} ({origin})");
    let failed =
        |why: String| Failure::usage(format!("{from}: can't have the cache at {}: {why}", path.display()));
    let made = std::fs::create_dir_all(path.parent().unwrap_or(&path));
    made.map_err(|error| failed(error.to_string()).hint("`esker config check` has details"))?;
    if let Ok(Some(kind)) = location::network_of(&path)
        && !args.cache_on_network
    {
        return Err(failed(format!("it is on a network file system ({kind}), which may hang and is slow"))
            .hint("set it to a folder on a disk of this node, or use --cache-on-network"));
    }
    // Without a limit there is that of the disk.
    let disk = path.parent().and_then(|folder| statvfs(folder).ok());
    let total = disk.map_or(0, |disk| disk.f_blocks.saturating_mul(disk.f_frsize));
    let place = CacheLocation { path, from, total, passed_over: Vec::new() };
    let quota = args.quota.or(quota).unwrap_or(if total > 0 { total } else { default_quota(&place) });
    Ok((place, quota))
}

/// Returns the configured lower cache folders.
fn lower(parameters: &Parameters, root: &Root, settings: &Settings) -> Result<Vec<Lower>, Failure> {
    if let Some((parameter, origin)) = parameters.unknown_cache().map_err(of_parameter)? {
        warn(Some(&format!(
            "{parameter} ({origin}) asks for a kind of cache that there isn't; the cache is in a folder"
        )));
    }
    let tiers = parameters.tiers().map_err(of_parameter)?.into_iter();
    tiers
        .map(|ConfiguredTier { folder, alien, from: (parameter, origin) }| {
            let form = if alien { LowerForm::Alien } else { LowerForm::Adopted };
            tier(&format!("{parameter} ({origin})"), &root.place(&folder), form, settings)
        })
        .collect()
}

/// True if a folder is writable, or could be made.
fn may_write(path: &Path) -> bool {
    let there = path.ancestors().find(|folder| folder.exists());
    there.is_some_and(|folder| access(folder, Access::WRITE_OK).is_ok())
}

/// Returns the variables for variant symlinks.
fn variables(parameters: &Parameters, name: &RepositoryName) -> BTreeMap<String, String> {
    let architecture = esker_config::Machine::this().architecture;
    let given = [("CVMFS_FQRN", name.to_string()), ("CVMFS_ARCH", architecture)];
    let set = parameters
        .all()
        .iter()
        .map(|(name, setting)| (name.clone(), esker_config::table::shown(name, &setting.value).into_owned()));
    given.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(set).collect()
}
