//! Changes settings by name: plans, then writes the settings file, and signs the head if one of its terms changed.

use std::path::Path;

use esker_format::time::UnixTime;
use esker_format::trust::ClaimedHead;
use serde::Serialize;

use crate::error::RepositoryError;
use crate::head::sign_head;
use crate::repository::Repository;
use crate::settings::{
    NAMED, NamedSetting, Place, SettingValue, Settings, TTL, closest, current, number, parse_switch,
};
use crate::signed::SMALL_FILE_MAX;
use crate::state;
use crate::storage::{OpenStorage, Storage};

/// Reasons why settings were not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The repository can't be read, or its head can't be replaced.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// A setting can't have this value.
    #[error("setting `{name}` can't be `{value}`: {reason}; it takes {values}")]
    Setting {
        /// Name of the setting.
        name: String,
        /// The value.
        value: String,
        /// Reason for the refusal.
        reason: String,
        /// Accepted values.
        values: &'static str,
    },
    /// There is no such setting.
    #[error("there is no setting `{name}`{}", closest.map(|name| format!("; there is `{name}`")).unwrap_or_default())]
    UnknownSetting {
        /// Name of the setting.
        name: String,
        /// Name of a similar setting.
        closest: Option<&'static str>,
    },
}

/// Settings to change, by name.
#[derive(Clone, Debug, Default)]
pub struct SettingsChange {
    /// Names with new values; none returns to the value of a new repository.
    pub values: Vec<(String, Option<String>)>,
}

/// A setting whose value differs from the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangedSetting {
    /// Name of the setting.
    pub name: &'static str,
    /// Value before.
    pub before: String,
    /// Value after.
    pub after: String,
}

/// A change of settings that was made, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SettingsChanged {
    /// The settings that differ.
    pub changed: Vec<ChangedSetting>,
    /// True if the head is signed again, since one of its fields changes.
    pub signs_head: bool,
}

/// Terms of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Terms {
    ttl: u32,
    garbage_collectable: bool,
}

/// Everything that a change leads to.
struct Plan {
    settings: Settings,
    terms: Terms,
    told: SettingsChanged,
}

impl SettingsChange {
    /// Returns the settings of the repository at a place.
    pub fn list(place: impl OpenStorage) -> Result<Vec<SettingValue>, RepositoryError> {
        let storage = place.storage()?;
        let (terms, settings) = (terms(&storage)?, Settings::read_of(&storage)?.unwrap_or_default());
        Ok(current(&settings, Some((terms.ttl, terms.garbage_collectable))))
    }

    /// Returns what would change in the repository at a place, and changes nothing.
    pub fn dry_run(&self, place: impl OpenStorage) -> Result<SettingsChanged, SettingsError> {
        let storage = place.storage()?;
        Ok(self.plan(&storage, terms(&storage)?)?.told)
    }

    /// Changes the settings of a repository that has no change of its head to sign, or of an open one.
    pub fn run(
        &self,
        place: impl OpenStorage,
        open: impl FnOnce() -> Result<Repository, RepositoryError>,
        now: UnixTime,
    ) -> Result<SettingsChanged, SettingsError> {
        let storage = place.storage()?;
        let told = self.plan(&storage, terms(&storage)?)?.told;
        if !told.signs_head {
            let _lock = storage.lock()?;
            // Another process may have changed them before the lock was taken.
            let plan = self.plan(&storage, terms(&storage)?)?;
            if !plan.told.changed.is_empty() {
                write(&storage, &plan.settings, &state::make(&storage)?)?;
            }
            return Ok(plan.told);
        }
        let repository = open()?;
        let manifest = repository.head.manifest();
        let terms = Terms { ttl: manifest.ttl, garbage_collectable: manifest.garbage_collectable };
        let plan = self.plan(&storage, terms)?;
        write(&storage, &plan.settings, repository.state())?;
        if plan.terms != terms {
            sign_head(&repository, now, Some(plan.terms.garbage_collectable))?;
        }
        Ok(plan.told)
    }

    fn plan(&self, storage: &Storage, before: Terms) -> Result<Plan, SettingsError> {
        let old = Settings::read_of(storage)?.unwrap_or_default();
        let (mut new, mut terms) = (old, before);
        for (name, value) in &self.values {
            let named = find(name)?;
            let refused = |reason| SettingsError::Setting {
                name: named.name.to_owned(),
                value: value.clone().unwrap_or_default(),
                reason,
                values: named.values,
            };
            match (named.place, value) {
                (Place::File { set, .. }, Some(text)) => set(&mut new, text.trim()).map_err(refused)?,
                (Place::File { get, set }, None) => {
                    set(&mut new, &get(&Settings::of_new_repository())).map_err(refused)?
                }
                (Place::Ttl, text) => {
                    let ttl = text.as_ref().map_or(Ok(TTL), |text| number(text.trim(), 1..=u32::MAX));
                    new.ttl = Some(ttl.map_err(refused)?);
                }
                (Place::GarbageCollectable, text) => {
                    let value = text.as_ref().map_or(Ok(true), |text| parse_switch(text.trim()));
                    terms.garbage_collectable = value.map_err(refused)?;
                }
            }
        }
        let of = |settings: &Settings, terms: Terms| {
            current(settings, Some((terms.ttl, terms.garbage_collectable)))
        };
        let pairs = of(&old, before).into_iter().zip(of(&new, terms));
        let changed = pairs.filter(|(before, after)| before.value != after.value);
        let changed = changed.map(|(before, after)| ChangedSetting {
            name: after.name,
            before: before.value.unwrap_or_default(),
            after: after.value.unwrap_or_default(),
        });
        let told = SettingsChanged { changed: changed.collect(), signs_head: terms != before };
        Ok(Plan { settings: new, terms, told })
    }
}

fn write(storage: &Storage, settings: &Settings, state: &Path) -> Result<(), RepositoryError> {
    let _lock = state::lock(state)?;
    settings.write(&*storage.disks().private, &Settings::path(state))
}

fn find(name: &str) -> Result<&'static NamedSetting, SettingsError> {
    let plain = name.trim().to_ascii_lowercase().replace('-', "_");
    let unknown = || SettingsError::UnknownSetting { name: name.to_owned(), closest: closest(name) };
    NAMED.iter().find(|named| named.name == plain).ok_or_else(unknown)
}

/// Reads the terms of the published head, whose signature matters only when it is signed again.
fn terms(storage: &Storage) -> Result<Terms, RepositoryError> {
    let missing = || RepositoryError::NoRepository(storage.describe());
    let bytes = storage.sink().read(esker_format::manifest::PATH, SMALL_FILE_MAX)?.ok_or_else(missing)?;
    let claimed = ClaimedHead::parse(&bytes).map_err(|source| RepositoryError::Untrusted {
        name: storage.describe(),
        source: Box::new(source),
    })?;
    let manifest = claimed.manifest();
    Ok(Terms { ttl: manifest.ttl, garbage_collectable: manifest.garbage_collectable })
}
