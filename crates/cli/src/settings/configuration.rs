//! Loads the configuration of this machine, and its settings for a repository.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use esker_config::{Files, Machine, Origin, ParameterError, Parameters, Probe, Request, Root};
use esker_format::name::RepositoryName;
use esker_store::Authorities;

use super::environment::Environment;
use super::folders::Settings;
use crate::error::{Context, Failure, Kind};
use crate::machine::doctor::{NoAnswer, ProbeTarget, touch};

/// Folder of the configuration of CernVM-FS.
const CERNVMFS: &str = "/etc/cvmfs";
/// Folder of Esker's own configuration.
const OWN: &str = "/etc/esker";
/// Timeout for files in a mounted configuration repository; those on a disk take no time.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout for a sign of life of that mount.
const TOUCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads configuration files of this machine in a way that survives a hanging mount. A folder outside of `/etc`
/// is in a configuration repository, which may be a mount that hangs; and a process with a thread that waits
/// for that may not be able to end. So a child process that can be detached touches it first.
struct Guarded {
    root: Root,
    stuck: Mutex<BTreeSet<PathBuf>>,
}

impl Files for Guarded {
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        self.root.read(path, limit)
    }

    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        if !folder.starts_with("/etc") {
            let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
            let answer = || touch(ProbeTarget::Mount, &self.root.place(folder), TOUCH_TIMEOUT);
            if stuck.contains(folder) || matches!(answer(), Err(NoAnswer::Hangs)) {
                stuck.insert(folder.to_owned());
                let why = format!("it does not answer within {} s", TOUCH_TIMEOUT.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
        }
        self.root.names(folder)
    }

    fn is_public(&self, path: &Path) -> io::Result<bool> {
        self.root.is_public(path)
    }

    fn probe(&self, path: &Path, probe: Probe) -> bool {
        self.root.probe(path, probe)
    }
}

/// Loads the configuration for a repository, or the common one.
pub(crate) fn load(settings: &Settings, name: Option<&str>) -> Parameters {
    let own = [Some(PathBuf::from(OWN)), settings.own_config.clone()];
    let request = Request {
        files: Arc::new(Guarded { root: Root::new(&settings.config_root), stuck: Mutex::default() }),
        machine: Machine::this(),
        environment: settings.environment.texts(),
        folder: CERNVMFS.into(),
        own: own.into_iter().flatten().collect(),
        name: name.map(str::to_owned),
        patience: TIMEOUT,
    };
    let mut parameters = request.load();
    add_environment(&mut parameters, &settings.environment);
    parameters
}

/// Returns the parameters of the environment, without any file: for servers that the command line names by URL.
pub(crate) fn without_files(environment: &Environment) -> Parameters {
    let mut parameters = Parameters::default();
    add_environment(&mut parameters, environment);
    parameters
}

/// Adds certificate authorities from the environment where no file has any: from the reference's variables, and those
/// of most programs.
fn add_environment(parameters: &mut Parameters, environment: &Environment) {
    let mut take = |name: &str, variable: &'static str| {
        let value = environment.get(variable).and_then(OsStr::to_str).filter(|value| value.starts_with('/'));
        match value {
            Some(value) if parameters.get(name).is_none() => {
                parameters.overrule(name, value.to_owned(), Origin::Environment(variable));
            }
            _ => return false,
        }
        true
    };
    take("X509_CERT_DIR", "X509_CERT_DIR");
    take("X509_CERT_BUNDLE", "X509_CERT_BUNDLE");
    if take("ESKER_CA", "SSL_CERT_FILE") | take("X509_CERT_DIR", "SSL_CERT_DIR")
        && parameters.get("CVMFS_USE_SSL_SYSTEM_CA").is_none()
    {
        let from = Origin::Environment("SSL_CERT_FILE or SSL_CERT_DIR");
        parameters.overrule("CVMFS_USE_SSL_SYSTEM_CA", "no".to_owned(), from);
    }
}

/// Returns the additional certificate authorities for TLS, from configuration and command line.
pub(crate) fn authorities(parameters: &Parameters, named: &[PathBuf]) -> Result<Authorities, Failure> {
    let mut authorities = parameters.authorities().map_err(of_parameter)?;
    for path in named {
        let what = || format!("--ca {}", path.display());
        let path = std::path::absolute(path).and_then(|path| path.metadata().map(|_| path));
        let path = path.context(Kind::Usage, what())?.into_os_string().into_string();
        let path = path.ok().filter(|path| !path.contains('\n'));
        authorities
            .paths
            .push(path.ok_or_else(|| Failure::usage(format!("{}: its path is not text", what())))?);
    }
    Ok(authorities)
}

/// Returns the fully qualified name: the default domain is added to a short one.
pub(crate) fn full_name(settings: &Settings, name: &str) -> Result<RepositoryName, Failure> {
    let full = if name.contains('.') {
        name.to_owned()
    } else {
        let general = load(settings, None);
        let domain = general.get("CVMFS_DEFAULT_DOMAIN").ok_or_else(|| {
            Failure::usage(format!("{name:?} is a short name, and CVMFS_DEFAULT_DOMAIN is not set"))
                .hint(format!("write the whole name, or set it in {CERNVMFS}/default.local"))
        })?;
        format!("{name}.{}", domain.value)
    };
    RepositoryName::parse(&full).map_err(|error| Failure::usage(error.to_string()))
}

pub(crate) fn of_parameter(error: ParameterError) -> Failure {
    let mend = error.mend().to_owned();
    Failure::usage(error.to_string()).hint(mend)
}
