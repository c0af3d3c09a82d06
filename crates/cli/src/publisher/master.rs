//! Signs whitelists with the master key.

use std::path::PathBuf;

use esker_format::hash::ContentHash;
use esker_maintain::{KeysError, Resign, Resigned};
use esker_repository::{KeyFolder, is_exposed};

use super::{ChangeArgs, Interrupt, Place, now, warn_of_key};

/// Options for the key that signs whitelists.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct MasterArgs {
    /// Master key [default: NAME.masterkey in the keys folder]
    #[arg(long, value_name = "FILE")]
    pub(crate) master_key: Option<PathBuf>,

    /// Command that signs in place of the master key [default: the one in NAME.masterkey.signer, if there is no key]
    #[arg(long, value_name = "CMD", conflicts_with = "master_key")]
    pub(crate) master_signer: Option<String>,

    /// Days for which the whitelist is valid
    #[arg(long, value_name = "DAYS", default_value_t = esker_repository::WHITELIST_DAYS,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(esker_repository::WHITELIST_DAYS_MAX)))]
    pub(crate) whitelist_days: u32,
}

impl MasterArgs {
    pub(crate) fn keys(&self, keys: KeyFolder) -> KeyFolder {
        keys.with_master_signer(self.master_signer.clone())
    }

    /// Returns how whitelists are signed, without some certificates.
    pub(crate) fn resign(&self, drop: Vec<ContentHash>) -> Resign {
        let master = self.master_key.clone();
        master.iter().filter(|key| is_exposed(key)).for_each(|key| warn_of_key(key));
        Resign { days: self.whitelist_days, master, only_own: false, drop }
    }

    /// Signs the whitelist of a repository, or returns what would be signed.
    pub(crate) fn sign(
        &self,
        resign: &Resign,
        place: &Place,
        change: &ChangeArgs,
        interrupt: &Interrupt,
    ) -> Result<Resigned, KeysError> {
        let (root, name, keys) = (&place.root, &place.name, self.keys(place.keys.clone()));
        match change.dry_run {
            true => resign.dry_run(root, name, &keys, now()),
            false => change.lock.when_free(interrupt, false, || resign.run(root, name, &keys, now())),
        }
    }
}
