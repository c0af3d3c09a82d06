//! Collects settings and keys of a source for one domain or repository.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use esker_config::table::{self, Kind as Takes};
use esker_config::{Machine, Origin, Parameters, ProblemKind, Request};
use esker_format::master_keys::{MasterKeys, ShownKey};

use super::Tree;
use crate::error::{Failure, chain};
use crate::machine::setup::{Item, OURS};
use crate::settings::environment::Environment;

/// Imported parameters besides keys: servers and routes.
const TAKEN: [&str; 6] = [
    "CVMFS_SERVER_URL",
    "CVMFS_USE_GEOAPI",
    "CVMFS_MAX_SERVERS",
    "CVMFS_FOLLOW_REDIRECTS",
    "CVMFS_HTTP_PROXY",
    "CVMFS_FALLBACK_PROXY",
];
/// Parameters for which the settings of this machine take precedence.
const PROXIES: [&str; 2] = ["CVMFS_HTTP_PROXY", "CVMFS_FALLBACK_PROXY"];
/// Parameters that name keys, which are imported as key files.
const KEYS: [&str; 2] = ["CVMFS_PUBLIC_KEY", "CVMFS_KEYS_DIR"];
/// Parameters that only affect the evaluation of a source.
const EVALUATED: [&str; 2] = ["CVMFS_USE_CDN", "CVMFS_CLIENT_PROFILE"];
/// Name that stands for any repository of a domain while its files are evaluated.
const ANY: &str = "any-repository";
/// Maximum number of keys of one domain.
const KEYS_MAX: usize = 50;
/// Timeout for evaluating files, all of which are in memory.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Domain or repository of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Domain(String),
    Repository(String),
}

impl Scope {
    pub(crate) fn name(&self) -> &str {
        match self {
            Scope::Domain(name) | Scope::Repository(name) => name,
        }
    }

    /// Returns the name of its file without extension.
    pub(super) fn file(&self) -> String {
        match self {
            Scope::Domain(name) => format!("domain.d/{name}"),
            Scope::Repository(name) => format!("config.d/{name}"),
        }
    }
}

/// A setting to import.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    parameter: &'static str,
    pub(crate) value: String,
    pub(crate) origin: String,
}

impl Taken {
    /// Returns the setting as a line for a configuration file.
    pub(crate) fn line(&self) -> String {
        let key = self.parameter.trim_start_matches("CVMFS_").to_ascii_lowercase();
        let value = match table::row(self.parameter).map(|row| row.kind) {
            Some(Takes::Switch) => (table::switch(&self.value) == Some(true)).to_string(),
            Some(Takes::Count) => self.value.clone(),
            Some(Takes::Urls) => {
                let urls: Vec<_> = self.value.split(';').map(|url| format!("{:?}", url.trim())).collect();
                format!("[{}]", urls.join(", "))
            }
            _ => format!("{:?}", self.value),
        };
        format!("{key} = {value}")
    }
}

/// A public key and where it was found.
#[derive(Clone, Debug)]
pub(crate) struct FoundKey {
    pub(crate) key: ShownKey,
    pub(crate) file: String,
}

/// A domain or a repository: its servers and its keys.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub(crate) scope: Scope,
    pub(crate) settings: Vec<Taken>,
    pub(crate) keys: Vec<FoundKey>,
    /// True if the user has to choose proxies.
    pub(crate) wants_proxy: bool,
}

impl Unit {
    /// True if another unit, for a repository of this domain, adds nothing.
    pub(super) fn says_the_same(&self, other: &Unit) -> bool {
        let settings = |unit: &Unit| -> Vec<String> {
            unit.settings.iter().map(|taken| taken.line().replace(unit.scope.name(), "@fqrn@")).collect()
        };
        let keys = |unit: &Unit| -> Vec<String> {
            unit.keys.iter().map(|found| found.key.fingerprint.clone()).collect()
        };
        self.settings.iter().map(Taken::line).eq(settings(other)) && keys(self) == keys(other)
    }

    /// Returns the files for it below `folder`, Esker's own.
    pub(crate) fn items(&self, folder: &Path, source: &str) -> Vec<Item> {
        let keys = folder.join("keys").join(self.scope.name());
        let file = |path: PathBuf, text: String| Item::File { path, text: text.into(), mode: 0o644 };
        let place = |key: &FoundKey| keys.join(format!("{}.pub", &key.key.fingerprint[..16]));
        let mut items: Vec<_> =
            self.keys.iter().map(|found| file(place(found), found.key.pem.clone())).collect();
        let source: String = source.chars().filter(|c| !c.is_control()).collect();
        let mut text = format!("# {OURS}\n# From {source}\n");
        for taken in &self.settings {
            text.push_str(&format!("{}\n", taken.line()));
        }
        let paths: Vec<_> =
            self.keys.iter().map(|found| format!("{:?}", place(found).display().to_string())).collect();
        text.push_str(&format!("public_key = [{}]\n", paths.join(", ")));
        items.push(file(folder.join(format!("{}.toml", self.scope.file())), text));
        items
    }
}

/// Settings for evaluating the files of a source.
pub(super) struct Evaluation {
    tree: Arc<Tree>,
    /// Settings of this machine that the files may refer to, such as the choice of a CDN.
    environment: BTreeMap<String, String>,
    /// File and line of this machine's proxy setting.
    proxies: Option<String>,
}

impl Evaluation {
    pub(super) fn new(
        tree: Arc<Tree>,
        environment: &Environment,
        machine: &Parameters,
        proxies: Option<String>,
    ) -> Self {
        let given = environment.texts().into_iter().filter(|(name, _)| name.starts_with("CVMFS_"));
        let set = machine.all().iter().map(|(name, setting)| (name.clone(), setting.value.clone()));
        // The source's values for these must not be this machine's.
        let is_taken = |name: &String| !TAKEN.iter().chain(&KEYS).any(|taken| taken == name);
        let environment = set.chain(given).filter(|(name, _)| is_taken(name)).collect();
        Self { tree, environment, proxies }
    }

    /// Returns the unit of the source; `None` if it names no servers.
    pub(super) fn unit(&self, scope: &Scope, remarks: &mut Vec<String>) -> Result<Option<Unit>, Failure> {
        let name = match scope {
            Scope::Domain(domain) => format!("{ANY}.{domain}"),
            Scope::Repository(name) => name.clone(),
        };
        let request = Request {
            files: self.tree.clone(),
            machine: Machine::this(),
            environment: self.environment.clone(),
            folder: "/etc/cvmfs".into(),
            own: vec!["/etc/esker".into()],
            name: Some(name.clone()),
            patience: TIMEOUT,
        };
        let parameters = request.load();
        for problem in parameters.problems() {
            // Values that a sourced file sets for itself are of no use here.
            let of_its_own = matches!(
                problem.kind,
                ProblemKind::ConfigRepository { .. } | ProblemKind::OnlySourced { .. }
            );
            if !of_its_own {
                remarks.push(problem.to_string());
            }
        }
        let general = |text: &str| match scope {
            Scope::Domain(_) => text.replace(&name, "@fqrn@").replace(ANY, "@org@"),
            Scope::Repository(_) => text.to_owned(),
        };
        let settings = self.settings(&parameters, &general, remarks)?;
        let Some(servers) = settings.iter().find(|taken| taken.parameter == "CVMFS_SERVER_URL") else {
            return Ok(None);
        };
        let scope = match scope {
            // A file about a single repository, whose servers are named with it.
            Scope::Domain(name)
                if servers
                    .value
                    .split(';')
                    .all(|url| url.trim_end_matches('/').ends_with(&format!("/{name}"))) =>
            {
                Scope::Repository(name.clone())
            }
            scope => scope.clone(),
        };
        let keys = self.keys(&parameters, &scope)?;
        let has_proxy = settings.iter().any(|taken| taken.parameter == PROXIES[0]);
        Ok(Some(Unit { scope, settings, keys, wants_proxy: !has_proxy && self.proxies.is_none() }))
    }

    fn settings(
        &self,
        parameters: &Parameters,
        general: &dyn Fn(&str) -> String,
        remarks: &mut Vec<String>,
    ) -> Result<Vec<Taken>, Failure> {
        let mut settings = Vec::new();
        for parameter in TAKEN {
            let Some(setting) = parameters.get(parameter) else { continue };
            let (value, origin) = (general(&setting.value), shown(&setting.origin));
            if PROXIES.contains(&parameter)
                && let Some(own) = &self.proxies
            {
                remarks.push(format!(
                    "{origin}: {parameter} is not taken over: this machine has its own in {own}"
                ));
                continue;
            }
            let kind = table::row(parameter).map_or(Takes::Text, |row| row.kind);
            let plain =
                value.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\');
            let bad = |why: String| {
                let value = table::shown(parameter, &value);
                Failure::usage(format!("{origin}: {parameter}={}: {why}", value.escape_debug()))
            };
            kind.check(&value).map_err(bad)?;
            if !plain {
                return Err(bad("it has letters that no address has".into()));
            }
            settings.push(Taken { parameter, value, origin });
        }
        for (name, setting) in parameters.all() {
            // default.conf describes the machine that the source comes from.
            let is_own = |folder: &Path| folder.ends_with("domain.d") || folder.ends_with("config.d");
            let own =
                matches!(&setting.origin, Origin::File(place) if place.path.parent().is_some_and(is_own));
            let seen = TAKEN.iter().chain(&KEYS).chain(&EVALUATED).any(|seen| seen == name);
            if own && !seen && table::row(name).is_some() {
                remarks.push(format!(
                    "{}: {name} is not taken over: it is for this machine to say",
                    shown(&setting.origin)
                ));
            }
        }
        Ok(settings)
    }

    fn keys(&self, parameters: &Parameters, scope: &Scope) -> Result<Vec<FoundKey>, Failure> {
        let name = scope.name();
        let domain = match scope {
            Scope::Domain(domain) => domain,
            Scope::Repository(name) => name.split_once('.').map_or("", |(_, domain)| domain),
        };
        let none = |why: String| {
            Failure::usage(format!("{} has no public key for {name}: {why}", self.tree.source()))
                .hint("take a source with its keys, or add those that its publisher gives you to it")
        };
        let mut texts = Vec::new();
        match parameters.get("CVMFS_PUBLIC_KEY") {
            Some(setting) if setting.value.contains("-----BEGIN") => {
                // Keys in a file of TOML, one after the other.
                let text = setting.value.replace(":-----BEGIN", "\n-----BEGIN");
                texts.push((shown(&setting.origin), text.into_bytes()));
            }
            Some(setting) => {
                for path in setting.value.split(':').map(str::trim) {
                    let found = self.tree.keys(Path::new(path), domain);
                    texts.extend(found.map_err(|error| {
                        none(format!("CVMFS_PUBLIC_KEY ({}) names {path}: {error}", shown(&setting.origin)))
                    })?);
                }
            }
            None => {
                let folder =
                    parameters.get("CVMFS_KEYS_DIR").map_or("/etc/cvmfs/keys", |setting| &setting.value);
                let found = self.tree.keys(Path::new(folder), domain);
                texts.extend(found.map_err(|error| none(format!("its keys would be in {folder}: {error}")))?);
            }
        }
        let mut keys: Vec<FoundKey> = Vec::new();
        for (file, text) in texts {
            let bad = |error: &dyn std::error::Error| {
                Failure::usage(format!("{file} is no public key for {name}: {}", chain(error)))
            };
            let shown =
                MasterKeys::parse(&text).and_then(|keys| keys.shown()).map_err(|error| bad(&error))?;
            for key in shown {
                if !keys.iter().any(|known| known.key == key) {
                    keys.push(FoundKey { key, file: file.clone() });
                }
            }
        }
        if keys.len() > KEYS_MAX {
            return Err(none(format!("it has {} keys, more than {KEYS_MAX}", keys.len())));
        }
        keys.sort_by(|a, b| a.key.fingerprint.cmp(&b.key.fingerprint));
        Ok(keys)
    }
}

/// Returns a place in the source.
fn shown(origin: &Origin) -> String {
    let text = origin.to_string();
    let inner = text.strip_prefix("/etc/cvmfs/").or_else(|| text.strip_prefix("/etc/esker/"));
    inner.unwrap_or(&text).to_owned()
}
