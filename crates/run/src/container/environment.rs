//! Environment of a command in a container.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Prefix of variables for the container: `ESKER_ENV_X` becomes `X`, whatever the image sets.
pub const PREFIX: &str = "ESKER_ENV_";

/// Default `PATH`, unless the image has one.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables that name files of the host, which the image lacks.
const OF_THE_HOST: [&str; 5] = ["PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "XDG_RUNTIME_DIR"];

/// Variables of a clean environment: identity of the user, and the terminal.
const KEPT: [&str; 9] = ["HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "TZ", "TMPDIR"];

/// The variables of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    all: BTreeMap<OsString, OsString>,
    /// Variables that the image's scripts can't change.
    insisted: BTreeSet<OsString>,
    /// Directories to put first in a variable, the last one foremost.
    front: Vec<(String, String)>,
}

/// Sources of variables; later ones override.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    /// Variables of the host.
    pub host: Vec<(OsString, OsString)>,
    /// True to inherit as few variables as possible.
    pub clean: bool,
    /// Variables of the image.
    pub image: Vec<(OsString, OsString)>,
    /// Variables that describe the container.
    pub own: Vec<(OsString, OsString)>,
    /// Variables that the user set by option.
    pub asked: Vec<(OsString, OsString)>,
}

impl Environment {
    /// Computes the variables.
    pub fn new(origins: Origins) -> Self {
        let mut all = BTreeMap::from([("PATH".into(), PATH.into())]);
        let mut wished = Vec::new();
        for (name, value) in origins.host {
            if let Some(wish) = name.as_bytes().strip_prefix(PREFIX.as_bytes()) {
                wished.push((OsString::from_vec(wish.to_vec()), value));
                continue;
            }
            let listed = |list: &[&str]| list.iter().any(|known| OsStr::new(known) == name);
            if !listed(&OF_THE_HOST) && (!origins.clean || listed(&KEPT)) {
                all.insert(name, value);
            }
        }
        all.extend(origins.image);
        all.extend(origins.own);
        let mut environment = Self { all, ..Self::default() };
        for (name, value) in wished.into_iter().chain(origins.asked) {
            environment.insist(name, value);
        }
        environment
    }

    /// Returns the host's variables except those that name files; only the usual ones if `clean`.
    pub fn of_host(clean: bool) -> Self {
        let is_kept = |name: &OsString| KEPT.iter().chain(&["PATH"]).any(|kept| OsStr::new(kept) == name);
        let all = std::env::vars_os()
            .filter(|(name, _)| !name.as_bytes().starts_with(PREFIX.as_bytes()) && (!clean || is_kept(name)));
        Self { all: all.collect(), ..Self::default() }
    }

    /// Returns the value of a variable.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.all.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// Sets a variable.
    pub fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.all.insert(name.into(), value.into());
    }

    /// Sets a variable that scripts of the image can't change.
    pub fn insist(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) {
        let name = name.into();
        self.insisted.insert(name.clone());
        self.all.insert(name, value.into());
    }

    /// Returns the variables that scripts of the image can't change.
    pub fn insisted(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.iter().filter(|(name, _)| self.insisted.contains(*name))
    }

    /// Returns directories to put first in variables that scripts of the image may change, the last one
    /// foremost.
    pub fn front(&self) -> impl Iterator<Item = (&str, &str)> {
        let free = |(name, _): &(&str, &str)| !self.insisted.contains(OsStr::new(name));
        self.front.iter().map(|(name, directory)| (name.as_str(), directory.as_str())).filter(free)
    }

    /// Puts a directory first in a variable that lists directories.
    pub fn prepend(&mut self, name: &str, directory: &str) {
        let mut value = OsString::from(directory);
        if let Some(rest) = self.get(name).filter(|rest| !rest.is_empty()) {
            value.push(":");
            value.push(rest);
        }
        self.set(name, value);
        self.front.push((name.to_owned(), directory.to_owned()));
    }

    /// Returns all variables.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.all.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(of: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        of.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    fn origins() -> Origins {
        Origins {
            host: pairs(&[
                ("PATH", "/opt/site/bin"),
                ("LD_PRELOAD", "/opt/site/lib/watch.so"),
                ("SLURM_JOB_ID", "7"),
                ("LANG", "C"),
                ("ESKER_ENV_OMP_NUM_THREADS", "4"),
                ("ESKER_ENV_B", "wished"),
            ]),
            clean: false,
            own: pairs(&[("HOME", "/her")]),
            image: pairs(&[("LANG", "C.UTF-8"), ("B", "image"), ("C", "image"), ("HOME", "/")]),
            asked: pairs(&[("C", "asked")]),
        }
    }

    fn shown(of: &Environment) -> String {
        let show = |(name, value): (&OsStr, &OsStr)| format!("{}={}", name.display(), value.display());
        of.iter().map(show).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_image_overrides_the_host_and_the_user_overrides_both() {
        let expected =
            format!("B=wished C=asked HOME=/her LANG=C.UTF-8 OMP_NUM_THREADS=4 PATH={PATH} SLURM_JOB_ID=7");
        assert_eq!(shown(&Environment::new(origins())), expected);
    }

    #[test]
    fn a_clean_environment_keeps_the_user_and_requested_variables() {
        let clean = Origins { clean: true, image: Vec::new(), ..origins() };
        let mut environment = Environment::new(clean);
        assert_eq!(
            shown(&environment),
            format!("B=wished C=asked HOME=/her LANG=C OMP_NUM_THREADS=4 PATH={PATH}")
        );
        environment.prepend("LD_LIBRARY_PATH", "/a");
        environment.prepend("LD_LIBRARY_PATH", "/b");
        assert_eq!(environment.get("LD_LIBRARY_PATH"), Some(OsStr::new("/b:/a")));
    }

    #[test]
    fn requested_variables_are_recorded() {
        let asked = pairs(&[("HOME", "/asked"), ("PATH", "/asked")]);
        let mut environment = Environment::new(Origins { asked, ..origins() });
        assert_eq!(environment.get("HOME"), Some(OsStr::new("/asked")));
        environment.prepend("PATH", "/front");
        environment.prepend("LD_LIBRARY_PATH", "/front");
        environment.insist("RULED", "yes");
        let insisted: Vec<_> = environment.insisted().collect();
        let expected = [
            ("B", "wished"),
            ("HOME", "/asked"),
            ("OMP_NUM_THREADS", "4"),
            ("PATH", "/front:/asked"),
            ("RULED", "yes"),
        ];
        assert_eq!(insisted, expected.map(|(name, value)| (OsStr::new(name), OsStr::new(value))));
        assert_eq!(environment.front().collect::<Vec<_>>(), [("LD_LIBRARY_PATH", "/front")]);
    }
}
