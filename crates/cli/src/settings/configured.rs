//! Settings of a mount that only the configuration has, beside servers, keys and cache.

use std::collections::BTreeMap;
use std::time::Duration;

use esker_config::{ParameterError, Parameters, Root, SyslogOptions, TalkOptions, Telemetry, Tuning};
use esker_node::mount_spec::RepositorySpec;
use esker_node::push::Push;
use esker_node::repository::RepositoryOptions;
use esker_view::{IdMap, Ownership, Pin, Protected, ViewOptions, Visibility};

use super::configuration::of_parameter;
use crate::error::{Failure, warn};

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
    without_bundles: bool,
    variables: BTreeMap<String, String>,
    push: Option<Push>,
    tuning: Tuning,
    syslog: Option<SyslogOptions>,
    telemetry: Option<Telemetry>,
    talk: Option<TalkOptions>,
}

impl Configured {
    /// Reads the parameters of a mount.
    pub(super) fn read(parameters: &Parameters, root: &Root) -> Result<Self, Failure> {
        let (uids, gids) = parameters.id_maps(root).map_err(of_parameter)?;
        Ok(Self {
            uids,
            gids,
            world_readable: parameters.switch("CVMFS_WORLD_READABLE").map_err(of_parameter)? == Some(true),
            magic: parameters.visibility().map_err(of_parameter)?,
            protected: parameters.protected().map_err(of_parameter)?,
            enforce_acls: parameters.switch("CVMFS_ENFORCE_ACLS").map_err(of_parameter)? == Some(true),
            without_bundles: parameters.switch("CVMFS_PREFETCH_FILEBUNDLES").map_err(of_parameter)?
                == Some(false),
            tuning: parameters.tuning().map_err(of_parameter)?,
            syslog: Some(parameters.syslog().map_err(of_parameter)?),
            telemetry: parameters.telemetry().unwrap_or_else(without),
            talk: parameters.talk(root).unwrap_or_else(without),
            pin: parameters.pin().map_err(of_parameter)?,
            ttl_max: parameters.longest_ttl().map_err(of_parameter)?,
            claim: parameters.switch("CVMFS_CLAIM_OWNERSHIP").map_err(of_parameter)? == Some(true),
            variables: variables(parameters),
            push: parameters.notification_server().map_err(of_parameter)?.map(Push::Notifications),
        })
    }

    /// Returns the source of push notifications: of the command line, else as configured, else the server itself.
    pub(crate) fn push(&self, said: Option<&Push>) -> Push {
        said.or(self.push.as_ref()).cloned().unwrap_or_default()
    }

    /// Returns the options of a mount, with the configuration applied to those of the view.
    pub(super) fn into_spec(
        self,
        options: RepositoryOptions,
        view: &ViewOptions,
        push: Push,
    ) -> RepositorySpec {
        let view = self.applied_to(view);
        let Self { protected, enforce_acls, tuning, syslog, telemetry, talk, .. } = self;
        RepositorySpec { options, view, protected, enforce_acls, push, tuning, syslog, telemetry, talk }
    }

    /// Applies the configuration to the options of a view, unless the command line sets them.
    fn applied_to(&self, view: &ViewOptions) -> ViewOptions {
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
        view.without_bundles = self.without_bundles;
        // The reference exports all parameters before it expands variant symlinks.
        view.variables.extend(self.variables.clone());
        view
    }
}

/// Logs an error of an optional part; the mount continues without that part.
fn without<T>(error: ParameterError) -> Option<T> {
    warn(Some(&format!("{error}; {}", error.mend())));
    None
}

/// Returns the variables for variant symlinks.
fn variables(parameters: &Parameters) -> BTreeMap<String, String> {
    let architecture = esker_config::Machine::this().architecture;
    let given =
        [("CVMFS_FQRN", parameters.name().unwrap_or_default().to_owned()), ("CVMFS_ARCH", architecture)];
    let set = parameters
        .all()
        .iter()
        .map(|(name, setting)| (name.clone(), esker_config::table::shown(name, &setting.value).into_owned()));
    given.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(set).collect()
}
