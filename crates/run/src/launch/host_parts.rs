//! Hardware of the host in a container: by rules that come with Esker, or are a site's own.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Notice, Notify};
use crate::container::{BindOptions, ContainerError, Environment, Mount, What};
use crate::hooks::{HostParts, Rules};

/// Folder of a site's rules; they replace those of the same name that come with Esker.
const FOLDER: &str = "/etc/esker/hooks";
/// Maximum size of a rules file in bytes.
const LONGEST: u64 = 1 << 20;

const GPU: &str = include_str!("rules/gpu.hook");
const MPI: &str = include_str!("rules/mpi.hook");

/// Folder of a container with the files of hooks.
const PLACE: &str = "/.esker/host";

/// Rules that the user wants applied.
#[derive(Clone, Debug)]
pub struct WantedRules {
    /// Name of the rules, or the path of their file.
    pub name: String,
    /// Option that names them, for messages.
    pub option: &'static str,
}

/// Parts of the host that match the rules.
#[derive(Default)]
pub(super) struct FoundParts(Vec<HostParts>);

/// Finds the parts of the host that the rules name.
pub(super) fn load(wanted: &[WantedRules], notify: Notify) -> Result<FoundParts, ContainerError> {
    let mut all = FoundParts::default();
    for WantedRules { name, option } in wanted {
        let text = text(name)?;
        let rules = Rules::parse(&text).map_err(|error| {
            refused(format!("{option}: rules {name}: {error}"), Some("see docs/guides/containers.md"))
        })?;
        let found = rules.find();
        if found.is_empty() {
            notify(Notice::Text(format!(
                "{option}: this host has nothing that the rules {name} name ({}), so the command gets nothing",
                rules.summary()
            )));
        }
        all.0.push(found);
    }
    Ok(all)
}

fn refused(what: String, remedy: Option<&str>) -> ContainerError {
    ContainerError::Usage { what, remedy: remedy.map(str::to_owned) }
}

fn text(name: &str) -> Result<String, ContainerError> {
    let path =
        if name.contains('/') { PathBuf::from(name) } else { Path::new(FOLDER).join(format!("{name}.hook")) };
    let unreadable = |error| format!("can't read the rules {}: {error}", path.display());
    match (fs::metadata(&path), name) {
        (Ok(meta), _) if meta.len() <= LONGEST => {
            fs::read_to_string(&path).map_err(|error| refused(unreadable(error), None))
        }
        (Ok(_), _) => Err(refused(format!("the rules {} are too long", path.display()), None)),
        (Err(_), "gpu") => Ok(GPU.to_owned()),
        (Err(_), "mpi") => Ok(MPI.to_owned()),
        (Err(error), _) => Err(refused(
            unreadable(error),
            Some("name a file, or one of gpu, mpi and those in /etc/esker/hooks"),
        )),
    }
}

impl FoundParts {
    /// Returns the mounts that the rules list.
    pub(super) fn mounts(&self) -> Vec<Mount> {
        let bind = |from: &PathBuf, target: PathBuf| {
            Mount::asked(target, What::Bind { from: from.clone(), options: BindOptions::default() })
        };
        let place = Path::new(PLACE);
        let mut mounts = Vec::new();
        let mut seen = BTreeSet::new();
        for found in &self.0 {
            let libraries =
                found.libraries.iter().map(|(name, from)| bind(from, place.join("lib").join(name)));
            let programs = found.programs.iter().map(|(name, from)| bind(from, place.join("bin").join(name)));
            let others = found.paths.iter().chain(&found.devices).map(|path| bind(path, path.clone()));
            let all = libraries.chain(programs).chain(others);
            mounts.extend(all.filter(|mount| seen.insert(mount.target.clone())));
        }
        if !mounts.is_empty() {
            mounts.insert(0, Mount::asked(place, What::Scratch(0o755)));
        }
        mounts
    }

    pub(super) fn apply_to(&self, environment: &mut Environment) {
        if self.0.iter().any(|found| !found.libraries.is_empty()) {
            environment.prepend("LD_LIBRARY_PATH", &format!("{PLACE}/lib"));
        }
        if self.0.iter().any(|found| !found.programs.is_empty()) {
            environment.prepend("PATH", &format!("{PLACE}/bin"));
        }
        for (name, value) in self.0.iter().flat_map(|found| &found.variables) {
            environment.insist(name, value);
        }
    }
}
