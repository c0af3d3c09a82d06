//! Resolves the lower cache folders, which are read before the network.

use std::path::{Path, PathBuf};

use esker_config::{ConfiguredTier, Origin, Parameters, Root};
use esker_store::{Lower, LowerForm, make_alien};

use super::configuration::of_parameter;
use super::folders::Settings;
use super::setting::Setting;
use crate::error::{Failure, warn};

/// Heading of the options of caches in help.
pub(super) const CACHE: &str = "Cache";

/// Options for cache tiers below the node's own cache.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct TierArgs {
    /// Folder that is read before the network: a cache of CernVM-FS (like /var/lib/cvmfs/shared) or Esker, or a
    /// preloaded one; may be repeated
    #[arg(long, value_name = "DIR", help_heading = CACHE)]
    lower: Vec<PathBuf>,

    /// Folder on a shared file system in the layout of CernVM-FS's alien caches: read before the network, and written
    /// with fetched objects for other nodes
    #[arg(long, value_name = "DIR", help_heading = CACHE)]
    alien: Option<PathBuf>,
}

impl TierArgs {
    /// True if a folder is named.
    pub(crate) fn any(&self) -> bool {
        !self.lower.is_empty() || self.alien.is_some()
    }

    /// Returns the named folders.
    pub(crate) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.lower.iter_mut().chain(&mut self.alien)
    }

    /// Returns the named tiers, those of this node first.
    fn tiers(&self, settings: &Settings) -> Result<Vec<Lower>, Failure> {
        let adopted = self.lower.iter().map(|folder| tier("--lower", folder, LowerForm::Adopted, settings));
        let alien = self.alien.iter().map(|folder| tier("--alien", folder, LowerForm::Alien, settings));
        adopted.chain(alien).collect()
    }
}

/// Returns the lower cache folders: those of the configuration, unless options name others.
pub(super) fn resolve(
    parameters: &Parameters,
    args: &TierArgs,
    settings: &Settings,
) -> Result<Setting<Vec<Lower>>, Failure> {
    let configured = configured(parameters, settings)?;
    let option = if args.lower.is_empty() { "--alien" } else { "--lower" };
    let named = args.any().then(|| args.tiers(settings)).transpose()?;
    let named = named.map(|named| (named, Origin::Option(option)));
    Ok(Setting::of_default(Vec::new()).or_higher(configured).or_higher(named))
}

/// Returns the configured lower cache folders, with the origin of the first.
fn configured(parameters: &Parameters, settings: &Settings) -> Result<Option<(Vec<Lower>, Origin)>, Failure> {
    if let Some((parameter, origin)) = parameters.unknown_cache().map_err(of_parameter)? {
        warn(Some(&format!(
            "{parameter} ({origin}) asks for a kind of cache that there isn't; the cache is in a folder"
        )));
    }
    let root = Root::new(&settings.config_root);
    let tiers = parameters.tiers().map_err(of_parameter)?;
    let origin = tiers.first().map(|tier| tier.from.1.clone());
    let tiers: Result<Vec<Lower>, Failure> = tiers
        .into_iter()
        .map(|ConfiguredTier { folder, alien, from: (parameter, origin) }| {
            let form = if alien { LowerForm::Alien } else { LowerForm::Adopted };
            tier(&format!("{parameter} ({origin})"), &root.place(&folder), form, settings)
        })
        .collect();
    origin.map(|origin| tiers.map(|tiers| (tiers, origin))).transpose()
}

/// Makes a tier at a folder that `from` names.
pub(crate) fn tier(
    from: &str,
    folder: &Path,
    form: LowerForm,
    settings: &Settings,
) -> Result<Lower, Failure> {
    let failed = |error: std::io::Error| Failure::usage(format!("{from} {}: {error}", folder.display()));
    let folder = std::path::absolute(folder).map_err(failed)?;
    if form == LowerForm::Alien && !folder.is_dir() {
        make_alien(&folder).map_err(failed)?;
    }
    if !folder.is_dir() {
        return Err(Failure::usage(format!("{from} {}: there is no such folder", folder.display()))
            .hint("name the folder of a cache, for example /var/lib/cvmfs/shared"));
    }
    Ok(Lower { folder, form, root: settings.root_uid() })
}
