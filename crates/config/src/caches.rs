//! Resolves cache parameters: named caches, tiered caches, and caches shared between nodes.
//!
//! `CVMFS_CACHE_PRIMARY` names one; without it there is `default`, whose parameters have no name in theirs. A tiered
//! cache consists of two others: the upper one is our own folder, the lower one is tried before the network.

use std::path::PathBuf;

use super::client::{ConfiguredCache, Read};
use super::{Origin, Parameters};

/// A folder below the cache, as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredTier {
    /// Path of the folder.
    pub folder: PathBuf,
    /// True if the cache is shared with other nodes and written.
    pub alien: bool,
    /// Parameter with its value's origin.
    pub from: (String, Origin),
}

/// A cache in memory, as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredMemory {
    /// Quota in bytes, if configured.
    pub bytes: Option<u64>,
    /// Parameter with its value's origin.
    pub from: (String, Origin),
}

/// Name of Esker's cache in a folder that is configured for the reference's.
const OWN: &str = "esker";
/// Name of the cache whose parameters have no cache name in theirs.
const DEFAULT: &str = "default";
/// Maximum depth of tiered caches; more indicate a circle.
const DEPTH_MAX: usize = 4;

/// Returns the name of a parameter of a cache.
fn parameter(cache: &str, what: &str) -> String {
    if cache == DEFAULT { format!("CVMFS_CACHE_{what}") } else { format!("CVMFS_CACHE_{cache}_{what}") }
}

impl Parameters {
    /// Returns the configured cache; of a tiered one the uppermost.
    pub fn cache(&self) -> Read<Option<ConfiguredCache>> {
        let cache = self.uppermost()?;
        let Some((name, folder)) = self.base(cache)? else { return Ok(None) };
        let shared = name.ends_with("_DIR") || self.switch(&parameter(cache, "SHARED"))?.unwrap_or(false);
        let own = match self.name() {
            Some(repository) if !shared => format!("{OWN}-{repository}"),
            _ => OWN.to_owned(),
        };
        let from = self.origin_of(&name);
        Ok(Some(ConfiguredCache { path: PathBuf::from(folder).join(own), from, quota: self.quota(cache)? }))
    }

    /// Returns the cache in memory, if one is configured, on a machine with `machine` bytes.
    pub fn memory(&self, machine: u64) -> Read<Option<ConfiguredMemory>> {
        let cache = self.uppermost()?;
        if self.kind(cache)? != Some("ram") {
            return Ok(None);
        }
        let name = parameter(cache, "SIZE");
        let size = self.checked(&name)?.map(|text| {
            let bytes = match text.strip_suffix('%') {
                Some(percent) => {
                    percent.parse::<u64>().ok().filter(|part| *part <= 100).map(|part| machine / 100 * part)
                }
                None => text.parse::<u64>().ok().and_then(|megabytes| megabytes.checked_mul(1 << 20)),
            };
            bytes.ok_or_else(|| self.bad(&name, "it is neither a number of MB nor a percentage of memory"))
        });
        let from = self.origin_of(&parameter(cache, "TYPE"));
        Ok(Some(ConfiguredMemory { bytes: size.transpose()?, from }))
    }

    /// Returns the lower cache folders, in the order in which they are tried.
    pub fn tiers(&self) -> Read<Vec<ConfiguredTier>> {
        let (mut cache, mut tiers) = (self.primary()?, Vec::new());
        for _ in 0..DEPTH_MAX {
            if self.kind(cache)? != Some("tiered") {
                tiers.splice(0..0, self.alien(cache, false)?);
                return Ok(tiers);
            }
            let lower = parameter(cache, "LOWER");
            let read_only = self.switch(&parameter(cache, "LOWER_READONLY"))?.unwrap_or(false);
            let below = self.checked(&lower)?.ok_or_else(|| self.bad(&lower, "a tiered cache needs it"))?;
            match self.alien(below, read_only)? {
                Some(tier) => tiers.insert(0, tier),
                // Another client manages it: it is read.
                None => {
                    tiers.insert(0, self.adopted(below)?.ok_or_else(|| self.bad(&lower, "it has no folder"))?)
                }
            }
            cache = self.upper(cache)?;
        }
        Err(self.bad(&parameter(cache, "UPPER"), "it refers to itself"))
    }

    /// Returns the parameter that names an unknown kind of cache, if there is one.
    pub fn unknown_cache(&self) -> Read<Option<(String, Origin)>> {
        let cache = self.uppermost()?;
        let is_known = self.kind(cache)?.is_none_or(|kind| ["posix", "ram"].contains(&kind));
        Ok((!is_known).then(|| self.origin_of(&parameter(cache, "TYPE"))))
    }

    fn primary(&self) -> Read<&str> {
        Ok(self.checked("CVMFS_CACHE_PRIMARY")?.unwrap_or(DEFAULT))
    }

    fn kind(&self, cache: &str) -> Read<Option<&str>> {
        self.checked(&parameter(cache, "TYPE"))
    }

    fn upper(&self, cache: &str) -> Read<&str> {
        let name = parameter(cache, "UPPER");
        self.checked(&name)?.ok_or_else(|| self.bad(&name, "a tiered cache needs it"))
    }

    fn uppermost(&self) -> Read<&str> {
        let mut cache = self.primary()?;
        for _ in 0..DEPTH_MAX {
            if self.kind(cache)? != Some("tiered") {
                return Ok(cache);
            }
            cache = self.upper(cache)?;
        }
        Err(self.bad(&parameter(cache, "UPPER"), "it refers to itself"))
    }

    /// Returns the folder of a cache and the parameter that names it.
    fn base(&self, cache: &str) -> Read<Option<(String, &str)>> {
        for what in ["DIR", "BASE"] {
            let name = parameter(cache, what);
            if let Some(folder) = self.checked(&name)? {
                return Ok(Some((name, folder)));
            }
        }
        Ok(None)
    }

    fn alien(&self, cache: &str, read_only: bool) -> Read<Option<ConfiguredTier>> {
        let name = parameter(cache, "ALIEN");
        let Some(folder) = self.checked(&name)? else { return Ok(None) };
        let (folder, from) = (PathBuf::from(folder), self.origin_of(&name));
        Ok(Some(ConfiguredTier { folder, alien: !read_only, from }))
    }

    /// Returns the folder of another client's cache.
    fn adopted(&self, cache: &str) -> Read<Option<ConfiguredTier>> {
        let Some((name, folder)) = self.base(cache)? else { return Ok(None) };
        let mut folder = PathBuf::from(folder);
        if !name.ends_with("_DIR") {
            let shared = self.switch(&parameter(cache, "SHARED"))?.unwrap_or(false);
            folder.push(if shared { "shared" } else { self.name().unwrap_or("shared") });
        }
        let from = self.origin_of(&name);
        Ok(Some(ConfiguredTier { folder, alien: false, from }))
    }

    fn origin_of(&self, name: &str) -> (String, Origin) {
        let found = self.named(name).map(|(by, setting)| (by.to_owned(), setting.origin.clone()));
        found.unwrap_or_else(|| (name.to_owned(), Origin::Option("nothing")))
    }

    /// Returns the quota in bytes, the largest number for one without a limit; `None` if there is none.
    fn quota(&self, cache: &str) -> Read<Option<u64>> {
        let name = parameter(cache, "QUOTA_LIMIT");
        let bytes = self.number(&name)?.map(|megabytes| match u64::try_from(megabytes) {
            Ok(0) | Err(_) => Some(u64::MAX),
            Ok(megabytes) => megabytes.checked_mul(1 << 20),
        });
        bytes.map(|bytes| bytes.ok_or_else(|| self.bad(&name, "it is too large"))).transpose()
    }
}
