//! The configuration of this machine: where its files are, and what stands in them for a repository.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use esker_format::name::RepositoryName;
use esker_node::parameters::{Machine, Parameters, Request, Root};

use crate::exit::{Context, Failure, Kind};
use crate::settings::Settings;

/// CernVM-FS's folder.
const CERNVMFS: &str = "/etc/cvmfs";
/// Esker's own.
const OWN: &str = "/etc/esker";
/// For files in a mounted configuration repository; those on a disk take no time.
const PATIENCE: Duration = Duration::from_secs(15);

/// Reads the configuration for a repository, or what holds for all.
pub(crate) fn load(settings: &Settings, name: Option<&str>) -> Parameters {
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let own = [Some(PathBuf::from(OWN)), settings.own_config.clone()];
    let request = Request {
        files: Arc::new(Root::new(&settings.config_root)),
        machine: Machine::this(),
        environment,
        folder: CERNVMFS.into(),
        own: own.into_iter().flatten().collect(),
        name: name.map(str::to_owned),
        patience: PATIENCE,
    };
    request.load()
}

/// The fully qualified name: the default domain is added to a short one.
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
    RepositoryName::parse(&full).context(Kind::Usage, format!("{full:?} can't be the name of a repository"))
}
