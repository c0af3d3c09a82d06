//! Hardware of the host in a container: by rules that come with Esker, or are a site's own.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use esker_run::container::{BindOptions, Environment, Mount, What};
use esker_run::hooks::{HostParts, Rules};

use super::{ContainerArgs, say};
use crate::error::{Context, Failure, Kind};

/// Folder of a site's rules; they replace those of the same name that come with Esker.
const FOLDER: &str = "/etc/esker/hooks";
/// Maximum size of a rules file in bytes.
const LONGEST: u64 = 1 << 20;

const GPU: &str = include_str!("hooks/gpu.hook");
const MPI: &str = include_str!("hooks/mpi.hook");

/// Folder of a container with the files of hooks.
const PLACE: &str = "/.esker/host";

/// Parts of the host that match the rules.
#[derive(Default)]
pub(super) struct Hooks(Vec<HostParts>);

pub(super) fn load(args: &ContainerArgs) -> Result<Hooks, Failure> {
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    if args.gpu {
        wanted.push(("gpu", "--gpu"));
    }
    if args.mpi {
        wanted.push(("mpi", "--mpi"));
    }
    wanted.extend(args.hook.iter().map(|name| (name.as_str(), "--hook")));
    let mut all = Hooks::default();
    for (name, option) in wanted {
        let text = text(name)?;
        let rules = Rules::parse(&text).map_err(|error| {
            Failure::usage(format!("{option}: rules {name}: {error}")).hint("see docs/guides/containers.md")
        })?;
        let found = rules.find();
        if found.is_empty() {
            say(format!(
                "{option}: this host has nothing that the rules {name} name ({}), so the command gets nothing",
                rules.summary()
            ));
        }
        all.0.push(found);
    }
    Ok(all)
}

fn text(name: &str) -> Result<String, Failure> {
    let path =
        if name.contains('/') { PathBuf::from(name) } else { Path::new(FOLDER).join(format!("{name}.hook")) };
    match (fs::metadata(&path), name) {
        (Ok(meta), _) if meta.len() <= LONGEST => {
            fs::read_to_string(&path).context(Kind::Usage, format!("can't read the rules {}", path.display()))
        }
        (Ok(_), _) => Err(Failure::usage(format!("the rules {} are too long", path.display()))),
        (Err(_), "gpu") => Ok(GPU.to_owned()),
        (Err(_), "mpi") => Ok(MPI.to_owned()),
        (Err(error), _) => Err(Failure::usage(format!("can't read the rules {}: {error}", path.display()))
            .hint("name a file, or one of gpu, mpi and those in /etc/esker/hooks")),
    }
}

impl Hooks {
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
