//! Loads the files of a configuration in their order.
//!
//! ```text
//! default.conf  default.d/*.conf   then CVMFS_CONFIG_REPOSITORY is settled
//!   R/default.conf                 R: etc/cvmfs in the configuration repository
//! default.local
//!   R/domain.d/DOMAIN.conf   domain.d/DOMAIN.conf   domain.d/DOMAIN.local
//!   R/config.d/NAME.conf     config.d/NAME.conf     config.d/NAME.local
//! Esker's own: esker.toml  domain.d/DOMAIN.toml  config.d/NAME.toml, of the machine, then of the user
//! ```
//!
//! Later files override earlier ones.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use esker_format::canary;
use esker_threads::watchdog::within;

use super::files::{FILE_MAX, Files};
use super::problem::{Problem, ProblemKind, SourceLine};
use super::shell::{Machine, Shell, Variable};
use super::table::Setter;
use super::{Origin, Parameters, Setting, table, toml_file};

/// Parameter for the configuration repository, which can't be changed once it was used.
const CONFIG_REPOSITORY: &str = "CVMFS_CONFIG_REPOSITORY";

/// Release of CernVM-FS whose parameters are known, for files that distinguish releases.
pub const EMULATED_VERSION: &str = "2.14.0";
/// Same as a number, with two digits for each part but the first.
const EMULATED_VERSION_NUMERIC: &str = "21400";

/// Location of a configuration, and the repository to read it for.
#[derive(Clone)]
pub struct Request {
    /// File access.
    pub files: Arc<dyn Files>,
    /// Facts of `uname`.
    pub machine: Machine,
    /// Variables that the files may refer to.
    pub environment: BTreeMap<String, String>,
    /// The folder of CernVM-FS's configuration.
    pub folder: PathBuf,
    /// The folders of Esker's own configuration; a later one wins.
    pub own: Vec<PathBuf>,
    /// Name of the repository; `None` for the settings of all.
    pub name: Option<String>,
    /// Timeout for files in a configuration repository, which is a mount and may hang.
    pub patience: Duration,
}

impl Request {
    /// Reads the configuration. Always returns the readable part; errors are among the problems.
    pub fn load(&self) -> Parameters {
        let request = self.clone();
        if let Some(parameters) = within(self.patience, move || Load::new(&request).all(true)) {
            return parameters;
        }
        // The thread hangs in a mount and is detached; files outside of the mount are read again.
        let mut parameters = Load::new(self).all(false);
        let path = parameters.get("CVMFS_MOUNT_DIR").map_or("/cvmfs", |setting| &setting.value);
        let path =
            Path::new(path).join(parameters.get(CONFIG_REPOSITORY).map_or("", |setting| &setting.value));
        let why = format!("it did not answer within {} s", self.patience.as_secs());
        let kind = ProblemKind::ConfigRepository { path, why, required: parameters.is_required() };
        parameters.problems.push(Problem { place: None, kind });
        parameters
    }
}

struct Load<'a> {
    request: &'a Request,
    shell: Shell<'a>,
    values: BTreeMap<String, Setting>,
    read: Vec<PathBuf>,
    /// Configuration repository that can't be changed any more.
    settled: Option<String>,
    /// True if the configuration repository was missed already.
    missed: bool,
}

impl<'a> Load<'a> {
    fn new(request: &'a Request) -> Self {
        let mut shell = Shell::new(&*request.files, &request.machine);
        let given = [
            ("CVMFS_ARCH", Some(&*request.machine.architecture)),
            ("CVMFS_FQRN", request.name.as_deref()),
            ("CVMFS_VERSION", Some(EMULATED_VERSION)),
            ("CVMFS_VERSION_NUMERIC", Some(EMULATED_VERSION_NUMERIC)),
        ];
        let given = given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
        let environment = request.environment.iter().map(|(name, value)| (name.clone(), value.clone()));
        let inherited = |(name, value): (String, String)| {
            let variable = Variable::inherited(value);
            let is_fixed = name.starts_with("CVMFS_VERSION");
            (name, if is_fixed { variable.read_only() } else { variable })
        };
        shell.variables = environment.chain(given).map(inherited).collect();
        Self { request, shell, values: BTreeMap::new(), read: Vec::new(), settled: None, missed: false }
    }

    fn all(mut self, with_repository: bool) -> Parameters {
        let folder = self.request.folder.clone();
        self.local(&folder.join("default.conf"));
        let defaults = folder.join("default.d");
        match self.request.files.names(&defaults) {
            Ok(names) => {
                for name in names.iter().filter(|name| name.ends_with(".conf")) {
                    self.local(&defaults.join(name));
                }
            }
            Err(error) => self.missing(&defaults, &error),
        }
        self.settled = Some(self.value(CONFIG_REPOSITORY).unwrap_or_default());
        if self.request.name.is_some() && with_repository {
            self.of_repository("default.conf");
        }
        self.local(&folder.join("default.local"));
        if let Some(name) = self.request.name.clone() {
            let domain = name.split_once('.').map_or("", |(_, domain)| domain);
            for (part, stem) in [("domain.d", domain), ("config.d", name.as_str())] {
                if with_repository {
                    self.of_repository(&format!("{part}/{stem}.conf"));
                }
                self.local(&folder.join(part).join(format!("{stem}.conf")));
                self.local(&folder.join(part).join(format!("{stem}.local")));
            }
        }
        for folder in &self.request.own {
            self.own(&folder.join("esker.toml"));
            if let Some(name) = &self.request.name {
                let domain = name.split_once('.').map_or("", |(_, domain)| domain);
                self.own(&folder.join("domain.d").join(format!("{domain}.toml")));
                self.own(&folder.join("config.d").join(format!("{name}.toml")));
            }
        }
        let Self { shell, values, read, .. } = self;
        Parameters { name: self.request.name.clone(), values, problems: shell.problems, read }
    }

    fn value(&self, name: &str) -> Option<String> {
        self.values.get(name).map(|setting| setting.value.clone())
    }

    /// Reads a file of the configuration repository, if one is configured.
    fn of_repository(&mut self, name: &str) {
        let repository = self.settled.clone().unwrap_or_default();
        let valid = !repository.is_empty()
            && repository.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
            && !repository.starts_with('.');
        if !valid || Some(&repository) == self.request.name.as_ref() {
            return;
        }
        let mounts = self.value("CVMFS_MOUNT_DIR").unwrap_or_else(|| "/cvmfs".into());
        let root = Path::new(&mounts).join(&repository);
        let folder = root.join("etc/cvmfs");
        match self.request.files.names(&folder) {
            Ok(_) => _ = self.file(&folder.join(name), Setter::Any),
            Err(_) if self.missed => {}
            Err(error) => {
                self.missed = true;
                let required = self.values.get("CVMFS_CONFIG_REPO_REQUIRED");
                let kind = ProblemKind::ConfigRepository {
                    path: root,
                    why: error.to_string(),
                    required: required.is_some_and(|setting| table::switch(&setting.value) == Some(true)),
                };
                self.shell.problems.push(Problem { place: None, kind });
            }
        }
    }

    fn missing(&mut self, path: &Path, error: &io::Error) {
        if error.kind() != io::ErrorKind::NotFound {
            let kind = ProblemKind::Unreadable { path: path.to_owned(), why: error.to_string() };
            self.shell.problems.push(Problem { place: None, kind });
        }
    }

    fn content(&mut self, path: &Path) -> Option<Vec<u8>> {
        match self.request.files.read(path, FILE_MAX) {
            Ok(bytes) => {
                self.read.push(path.to_owned());
                Some(bytes)
            }
            Err(error) => {
                self.missing(path, &error);
                None
            }
        }
    }

    /// Reads one file of this machine, and reports lines without effect. Its administrator should know which
    /// lines have no effect.
    fn local(&mut self, path: &Path) {
        let mut names = self.file(path, Setter::Local);
        names.retain(|name| table::row(name).is_some());
        if !names.is_empty() {
            let place = SourceLine { path: Arc::from(path), line: 1 };
            let kind = ProblemKind::OnlySourced { names };
            self.shell.problems.push(Problem { place: Some(place), kind });
        }
    }

    /// Reads one file in shell syntax, of this machine or of any; returns the names that only sourced files set.
    fn file(&mut self, path: &Path, of: Setter) -> Vec<String> {
        let Some(bytes) = self.content(path) else { return Vec::new() };
        self.shell.reads_public_files_only = of == Setter::Any;
        let gone = self.shell.file(path, &bytes);
        for name in self.shell.changed.clone() {
            if of == Setter::Any && !self.may_others_set(&name) {
                self.refuse(name, path);
                continue;
            }
            let variable = self.shell.variables.get(&name).cloned();
            let taken = variable.and_then(|variable| Some((variable.value?, variable.place?)));
            let Some((value, place)) = taken else {
                self.values.remove(&name);
                continue;
            };
            // The reference asks a shell with `echo $NAME`, which makes one blank of many.
            let value =
                value.split([' ', '\t', '\n']).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
            let value = self.filled_in(&value);
            let kept = self.set(&name, value, place);
            self.shell.variables.insert(name, Variable::inherited(kept));
        }
        gone
    }

    /// Returns whether a file of others may set a parameter to the value that it has now: one of this machine may be a folder below
    /// the one that this machine gives.
    fn may_others_set(&self, name: &str) -> bool {
        if canary::skipped("local-parameters") {
            return true;
        }
        let Some(row) = table::row(name).filter(|row| row.setter == Setter::Local) else { return true };
        let own = self.value(name).unwrap_or_else(|| row.default.to_owned());
        let value = self.shell.variables.get(name).and_then(|variable| variable.value.as_deref());
        let rest = value.and_then(|value| Path::new(value).strip_prefix(&own).ok());
        let goes_down = |rest: &Path| rest.components().all(|part| matches!(part, Component::Normal(_)));
        row.kind == table::Kind::Path && own.starts_with('/') && rest.is_some_and(goes_down)
    }

    /// Gives a parameter the value back that it had before a file of others, and reports that unless it is the same.
    fn refuse(&mut self, name: String, path: &Path) {
        let set = self.values.get(&name).map(|setting| setting.value.clone());
        let before = set.or_else(|| self.request.environment.get(&name).cloned());
        let after = self.shell.variables.remove(&name);
        let (value, place) = after.map_or((None, None), |after| (after.value, after.place));
        if let Some(before) = &before {
            self.shell.variables.insert(name.clone(), Variable::inherited(before.clone()));
        }
        if value != before {
            let place = place.unwrap_or_else(|| SourceLine { path: Arc::from(path), line: 1 });
            let kind = ProblemKind::NotForOthers { name };
            self.shell.problems.push(Problem { place: Some(place), kind });
        }
    }

    /// Reads one of Esker's own configuration files.
    fn own(&mut self, path: &Path) {
        let Some(bytes) = self.content(path) else { return };
        match toml_file::read(path, &bytes) {
            Ok(settings) => {
                for toml_file::TomlSetting { name, value, line } in settings {
                    let value = self.filled_in(&value);
                    self.set(&name, value, SourceLine { path: Arc::from(path), line });
                }
            }
            Err(problem) => self.shell.problems.push(problem),
        }
    }

    /// Sets a parameter, unless it is read-only; returns its value afterwards.
    fn set(&mut self, name: &str, value: String, place: SourceLine) -> String {
        if let (CONFIG_REPOSITORY, Some(settled)) = (name, &self.settled)
            && *settled != value
        {
            let kind = ProblemKind::Protected { value };
            self.shell.problems.push(Problem { place: Some(place), kind });
            return settled.clone();
        }
        self.values.insert(name.to_owned(), Setting { value: value.clone(), origin: Origin::File(place) });
        value
    }

    /// Replaces `@fqrn@` and `@org@`.
    fn filled_in(&self, value: &str) -> String {
        let Some(name) = &self.request.name else { return value.to_owned() };
        let org = name.split('.').next().unwrap_or_default();
        value.replace("@fqrn@", name).replace("@org@", org)
    }
}
