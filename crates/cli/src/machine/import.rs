//! Imports domains for `esker setup import`: their servers, CDN and keys.
//!
//! ```text
//!   FILE | DIR | URL ─► Tree: files in memory ─► evaluated like a machine's own ─► Unit: a few settings, keys ─► Items
//! ```
//!
//! No file of a source is copied. Its files are evaluated without a shell, and only their servers, routes and keys
//! are written to files of Esker's own.

mod fetch;
mod tree;
mod unit;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use tree::Tree;
pub(crate) use unit::{Scope, Unit};

use esker_config::read_file;

use crate::error::Failure;
use crate::settings::Settings;
use crate::settings::configuration;
use unit::Evaluation;

/// Maximum number of domains and repositories of one source.
const UNITS_MAX: usize = 200;

/// A source after reading.
pub(crate) struct Import {
    /// Units that can be imported.
    pub(crate) units: Vec<Unit>,
    /// Remarks about lines without effect.
    pub(crate) remarks: Vec<String>,
}

/// Reads a source.
pub(crate) fn read(
    source: &str,
    names: &[String],
    settings: &Settings,
    patience: Duration,
) -> Result<Tree, Failure> {
    let single = |names: &[String]| names.first().cloned();
    if source.contains("://") {
        let bytes = fetch::fetch(source, settings, patience)?;
        let path = source.split('?').next().unwrap_or_default();
        let last = path.rsplit('/').next().unwrap_or_default();
        return Tree::of_bytes(source, Path::new(last), bytes, single(names), None);
    }
    let path = PathBuf::from(source);
    let failed = |error: std::io::Error| Failure::usage(format!("can't read {source}: {error}"));
    if std::fs::metadata(&path).map_err(failed)?.is_dir() {
        return Tree::of_folder(&path);
    }
    let bytes = read_file(&path, tree::SOURCE_MAX).map_err(failed)?;
    let beside = path.parent().map(Path::to_owned);
    Tree::of_bytes(source, &path, bytes, single(names), beside)
}

impl Import {
    /// Evaluates the files of a source for the domains and repositories `names`, or for all of the source.
    pub(crate) fn new(tree: Tree, names: &[String], settings: &Settings) -> Result<Self, Failure> {
        let (all, source) = (tree.scopes(), tree.source().to_owned());
        let wanted = wanted(all, names, &source)?;
        let machine = configuration::load(settings, None);
        let proxies = machine.get("CVMFS_HTTP_PROXY").map(|setting| setting.origin.to_string());
        let evaluation = Evaluation::new(Arc::new(tree), &settings.environment, &machine, proxies);
        let mut import = Self { units: Vec::new(), remarks: Vec::new() };
        for scope in wanted {
            let found = evaluation.unit(&scope, &mut import.remarks)?;
            match found {
                Some(unit) if import.says_already(&unit) => {}
                Some(unit) => import.units.push(unit),
                None if names.is_empty() => {
                    import.remarks.push(format!("{}: it names no servers (CVMFS_SERVER_URL)", scope.file()));
                }
                None => {
                    let message =
                        format!("{source} names no servers (CVMFS_SERVER_URL) for {}", scope.name());
                    return Err(Failure::usage(message));
                }
            }
        }
        // Foreign texts must not control the terminal.
        let plain = |text: &mut String| *text = text.replace(char::is_control, "?");
        import.remarks.iter_mut().for_each(plain);
        import.remarks.sort();
        import.remarks.dedup();
        match import.units.is_empty() {
            false => Ok(import),
            true => {
                Err(Failure::usage(format!("{source} names the servers of no domain and of no repository"))
                    .hint(tree::WANTED))
            }
        }
    }

    /// Returns true if the unit of the whole domain has all settings of this repository's unit.
    fn says_already(&self, unit: &Unit) -> bool {
        let Scope::Repository(name) = &unit.scope else { return false };
        let domain = name.split_once('.').map_or("", |(_, domain)| domain);
        self.units.iter().any(|other| {
            matches!(&other.scope, Scope::Domain(known) if known == domain) && other.says_the_same(unit)
        })
    }
}

fn wanted(all: Vec<Scope>, names: &[String], source: &str) -> Result<Vec<Scope>, Failure> {
    if all.len() > UNITS_MAX {
        let message = format!("{source} has {} domains and repositories, more than {UNITS_MAX}", all.len());
        return Err(Failure::usage(message));
    }
    for name in names {
        if !all.iter().any(|scope| scope.name() == name) {
            let known: Vec<_> = all.iter().map(Scope::name).collect();
            let known = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
            return Err(
                Failure::usage(format!("{source} has nothing for {name}; it has {known}")).hint(tree::WANTED)
            );
        }
    }
    Ok(all
        .into_iter()
        .filter(|scope| names.is_empty() || names.iter().any(|name| name == scope.name()))
        .collect())
}
