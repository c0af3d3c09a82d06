//! Resolves a repository that the command line names by URL or by name, as far as possible without network.
//!
//! ```text
//!   environment < files < options ─► Parameters ─┬─► servers, keys, cache, lower caches, streaming
//!                                                └─► Configured: what has no option
//! ```
//!
//! A URL has no files: the settings come from the environment and the options alone.

use std::path::{Path, PathBuf};

use esker_cache_share::memory::is_memory;
use esker_config::{Origin, Parameters, Problem, ProblemKind, Root, Severity};
use esker_format::blacklist::Blacklist;
use esker_format::name::RepositoryName;
use esker_node::mount_spec::RepositorySpec;
use esker_node::push::Push;
use esker_node::repository::RepositoryOptions;
use esker_store::Servers;
use esker_view::{Pin, ViewOptions};

use super::address::{Address, is_name, split_tag, two_revisions};
use super::args::RepositoryArgs;
use super::configuration::{full_name, load, of_parameter, without_files};
use super::configured::Configured;
use super::folders::Settings;
use super::setting::Setting;
use super::{cache, missing, public_keys, servers, tiers};
use crate::error::{Failure, warn};

/// Blacklist of CernVM-FS installations.
const BLACKLIST: &str = "/etc/cvmfs/blacklist";

/// Parts that open a repository, checked as far as possible without network.
pub(crate) struct ResolvedRepository {
    pub(crate) address: Address,
    pub(crate) options: RepositoryOptions,
    configured: Configured,
    /// Tag of the revision, if the repository was named with one.
    tag: Option<String>,
}

/// Settings that a URL and a configured name find in different ways, and the parameters for the others.
struct Found {
    name: RepositoryName,
    servers: Servers,
    keys: Vec<(PathBuf, Vec<u8>)>,
    blacklist: Blacklist,
    configured: Configured,
    parameters: Parameters,
}

impl Found {
    fn at_url(place: &str, args: &RepositoryArgs, settings: &Settings) -> Result<Self, Failure> {
        let name = Address::parse(place, args.fqrn.as_deref())?.name;
        Self::with_keys(place, public_keys::public_keys(&args.public_key, &name, settings)?, args, settings)
    }

    fn with_keys(
        place: &str,
        keys: Vec<(PathBuf, Vec<u8>)>,
        args: &RepositoryArgs,
        settings: &Settings,
    ) -> Result<Self, Failure> {
        let address = Address::parse(place, args.fqrn.as_deref())?;
        let name = RepositoryName::parse(&address.name).map_err(|error| Failure::usage(error.to_string()))?;
        Ok(Self {
            servers: servers::servers(&address.url, args, &settings.environment)?,
            keys,
            blacklist: blacklist(Path::new(BLACKLIST))?,
            configured: Configured::default(),
            parameters: without_files(&settings.environment),
            name,
        })
    }

    fn configured(name: &str, args: &RepositoryArgs, settings: &Settings) -> Result<Self, Failure> {
        let name = full_name(settings, name)?;
        let mut parameters = load(settings, Some(name.as_str()));
        servers::overrule(&mut parameters, args)?;
        tell(&parameters);
        for problem in parameters.problems() {
            require(problem)?;
        }
        parameters.allowed().map_err(of_parameter)?;
        let root = Root::new(&settings.config_root);
        let keys = public_keys::configured(&parameters, args, &name, settings, &root);
        let keys = missing::name_all(&parameters, keys)?;
        let servers = servers::configured(&parameters, args, &settings.environment)?;
        let configured = Configured::read(&parameters, &root)?;
        let blacklist = blacklist(&root.place(&parameters.blacklist().map_err(of_parameter)?))?;
        Ok(Self { name, servers, keys, blacklist, configured, parameters })
    }
}

impl ResolvedRepository {
    /// Finds a repository by its URL, or by its name in the configuration; both may be followed by `@` and a tag.
    pub(crate) fn new(place: &str, args: &RepositoryArgs, settings: &Settings) -> Result<Self, Failure> {
        let (place, tag) = split_tag(place)?;
        let found = match is_name(place) {
            true => Found::configured(place, args, settings)?,
            false => Found::at_url(place, args, settings)?,
        };
        Self::of(found, tag.map(str::to_owned), args, settings)
    }

    /// Finds a replica by its URL, verified with the keys that it was made with, as PEM text.
    pub(crate) fn of_replica(
        url: &str,
        keys: String,
        args: &RepositoryArgs,
        settings: &Settings,
    ) -> Result<Self, Failure> {
        let keys = vec![(PathBuf::from("the state of the replica"), keys.into_bytes())];
        Self::of(Found::with_keys(url, keys, args, settings)?, None, args, settings)
    }

    fn of(
        found: Found,
        tag: Option<String>,
        args: &RepositoryArgs,
        settings: &Settings,
    ) -> Result<Self, Failure> {
        let Found { name, servers, keys, blacklist, configured, parameters } = found;
        let (place, quota) = cache::resolve(&parameters, args, settings)?;
        let keys = public_keys::master_keys(keys)?;
        if args.verbose {
            cache::place_lines(&place).iter().for_each(|line| tracing::info!("{line}"));
        }
        let lower = tiers::resolve(&parameters, &args.tiers, settings)?;
        let streaming = streaming(&parameters, args)?.value;
        // The broker doesn't know the lower folders of this mount; but the user named the broker, and this mount uses
        // them while it is away.
        let has_own_cache =
            streaming || is_memory(&place.path) || !(lower.is_of_option() || lower.value.is_empty());
        let broker = args.broker().filter(|_| args.names_broker() || !has_own_cache);
        let address = Address { url: servers.url().to_owned(), name: name.to_string() };
        let options = RepositoryOptions {
            kept_authorities: servers.kept_authorities(),
            servers,
            name,
            keys,
            blacklist,
            quota,
            lower: lower.value,
            cache: place.path,
            streaming,
            broker,
            offline: args.offline,
            forget_history: args.forget_history,
            valid_at: None,
            deadline: args.deadline,
        };
        Ok(Self { address, options, configured, tag })
    }

    /// Returns the same repository at the revision with a tag.
    pub(crate) fn tagged(self, tag: Option<&str>) -> Self {
        Self { tag: tag.map(str::to_owned), ..self }
    }

    /// Returns the options of a mount of this repository.
    pub(crate) fn into_spec(self, view: &ViewOptions, push: Push) -> Result<RepositorySpec, Failure> {
        let Self { address, options, configured, tag } = self;
        let mut view = view.clone();
        if let Some(tag) = tag {
            if view.pin.is_some() {
                return Err(two_revisions(&format!("{}@{tag}", address.name)));
            }
            view.pin = Some(Pin::Tag(tag));
        }
        // Without a cache, prefetching is useless.
        view.prefetch &= !options.streaming;
        Ok(configured.into_spec(options, &view, push))
    }

    /// Returns the source of push notifications.
    pub(crate) fn push(&self, said: Option<&Push>) -> Push {
        self.configured.push(said)
    }

    /// True if the repository was named with a tag.
    pub(crate) fn is_tagged(&self) -> bool {
        self.tag.is_some()
    }
}

/// Returns whether file contents are served uncached.
fn streaming(parameters: &Parameters, args: &RepositoryArgs) -> Result<Setting<bool>, Failure> {
    const NAME: &str = "CVMFS_STREAMING_CACHE";
    let of_file = parameters.switch(NAME).map_err(of_parameter)?;
    let of_file = of_file.zip(parameters.get(NAME).map(|setting| setting.origin.clone()));
    let of_option = args.streaming.then_some((true, Origin::Option("--streaming")));
    Ok(Setting::of_default(false).or_higher(of_file).or_higher(of_option))
}

fn blacklist(path: &Path) -> Result<Blacklist, Failure> {
    match std::fs::read(path) {
        Ok(text) => Ok(Blacklist::parse(&text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Blacklist::default()),
        Err(error) => Err(Failure::usage(format!("can't read the blacklist {}: {error}", path.display()))),
    }
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
