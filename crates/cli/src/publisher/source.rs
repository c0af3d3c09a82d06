//! Options of commands that read a source: ignored paths, owners, and how contents are stored.

use std::path::{Path, PathBuf};

use esker_publish::{Filter, OwnerMap, PublishError};
use esker_repository::{Deflate, Settings as PublishSettings};

use super::failure::of_operation;
use crate::error::{Context as _, Failure, Kind};

/// Options of the source of a publish.
pub(crate) trait SourceOptions: clap::Args {
    /// Reads the rules for ignored paths, and the maps of owners.
    fn filter(&self) -> Result<Filter, Failure>;

    /// Changes the settings for one publish.
    fn apply(&self, settings: &mut PublishSettings);
}

/// No options, for commands that read no source.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub(crate) struct NoSource {}

impl SourceOptions for NoSource {
    fn filter(&self) -> Result<Filter, Failure> {
        Ok(Filter::default())
    }

    fn apply(&self, _settings: &mut PublishSettings) {}
}

/// Options of commands that read a folder or an archive.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct SourceArgs {
    /// File with rules in the syntax of .gitignore, in addition to `.eskerignore` in the root of the source; ignored
    /// paths stay as they are in the repository
    #[arg(long, value_name = "FILE", help_heading = "Source")]
    ignore: Vec<PathBuf>,

    /// File that maps user ids of the source to published ones; each line has an old id (`*` for all others) and a
    /// new id
    #[arg(long, value_name = "FILE", help_heading = "Source")]
    uid_map: Option<PathBuf>,

    /// File that maps group ids, like --uid-map
    #[arg(long, value_name = "FILE", help_heading = "Source")]
    gid_map: Option<PathBuf>,

    /// Encoder for zlib: stock writes what CernVM-FS writes; fast takes less time, but `cvmfs_fsck` reports its
    /// objects as corrupt [default: as set by `repo create`]
    ///
    /// See `esker repo create --help`.
    #[arg(long, value_name = "stock|fast", help_heading = "Source")]
    deflate: Option<DeflateArg>,

    /// Publish hashes of files and not their contents, which clients read from servers for external data, by path [default:
    /// the setting external_data]
    #[arg(long, conflicts_with = "native", help_heading = "Source")]
    external: bool,

    /// Store contents of files in a repository of external data
    #[arg(long, help_heading = "Source")]
    native: bool,
}

impl SourceOptions for SourceArgs {
    fn filter(&self) -> Result<Filter, Failure> {
        let read =
            |path: &Path| std::fs::read(path).context(Kind::Usage, format!("can't read {}", path.display()));
        let used = |error: PublishError| of_operation("can't use a file", &error);
        let mut filter = Filter::default();
        for path in &self.ignore {
            filter.ignore(&read(path)?, path).map_err(used)?;
        }
        let map = |path: &Option<PathBuf>| match path {
            Some(path) => OwnerMap::parse(&read(path)?, path).map_err(used),
            None => Ok(OwnerMap::default()),
        };
        (filter.uids, filter.gids) = (map(&self.uid_map)?, map(&self.gid_map)?);
        Ok(filter)
    }

    fn apply(&self, settings: &mut PublishSettings) {
        if let Some(deflate) = self.deflate {
            settings.deflate = deflate.into();
        }
        settings.external_data = (settings.external_data || self.external) && !self.native;
    }
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum DeflateArg {
    Stock,
    Fast,
    /// zlib itself, which writes the same bytes as `stock`; for measurements.
    #[value(hide = true)]
    Zlib,
}

impl From<DeflateArg> for Deflate {
    fn from(arg: DeflateArg) -> Self {
        match arg {
            DeflateArg::Stock => Deflate::Stock,
            DeflateArg::Fast => Deflate::Fast,
            DeflateArg::Zlib => Deflate::Zlib,
        }
    }
}
