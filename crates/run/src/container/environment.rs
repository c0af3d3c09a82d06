//! Which variables a command in a container gets.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Variables named `ESKER_ENV_X` become `X` in the container, whatever the image says.
pub const PREFIX: &str = "ESKER_ENV_";

/// Where programs are, unless the image says something else.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// These name files of the host, which are not in the image, or other ones.
const OF_THE_HOST: [&str; 5] = ["PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "XDG_RUNTIME_DIR"];

/// What a clean environment keeps: who one is, and the terminal.
const KEPT: [&str; 9] = ["HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "TZ", "TMPDIR"];

/// The variables of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<OsString, OsString>);

/// Where variables come from; later ones win.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    /// Those of whoever starts the command.
    pub host: Vec<(OsString, OsString)>,
    /// Take as few of them as possible.
    pub clean: bool,
    /// Those of the image.
    pub image: Vec<(OsString, OsString)>,
    /// Those that were asked for.
    pub asked: Vec<(OsString, OsString)>,
}

impl Environment {
    /// Puts the variables together.
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
        all.extend(wished);
        all.extend(origins.asked);
        Self(all)
    }

    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// Sets a variable.
    pub fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.0.insert(name.into(), value.into());
    }

    /// Puts a directory before the others of a variable that lists directories.
    pub fn prepend(&mut self, name: &str, directory: &str) {
        let mut value = OsString::from(directory);
        if let Some(rest) = self.get(name).filter(|rest| !rest.is_empty()) {
            value.push(":");
            value.push(rest);
        }
        self.set(name, value);
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
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
            image: pairs(&[("LANG", "C.UTF-8"), ("B", "image"), ("C", "image")]),
            asked: pairs(&[("C", "asked")]),
        }
    }

    fn shown(of: &Environment) -> String {
        let show = |(name, value): (&OsStr, &OsStr)| format!("{}={}", name.display(), value.display());
        of.iter().map(show).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_image_beats_the_host_and_a_wish_beats_both() {
        let expected = format!("B=wished C=asked LANG=C.UTF-8 OMP_NUM_THREADS=4 PATH={PATH} SLURM_JOB_ID=7");
        assert_eq!(shown(&Environment::new(origins())), expected);
    }

    #[test]
    fn a_clean_one_keeps_the_person_and_what_was_asked_for() {
        let clean = Origins { clean: true, image: Vec::new(), ..origins() };
        let mut environment = Environment::new(clean);
        assert_eq!(shown(&environment), format!("B=wished C=asked LANG=C OMP_NUM_THREADS=4 PATH={PATH}"));
        environment.prepend("LD_LIBRARY_PATH", "/a");
        environment.prepend("LD_LIBRARY_PATH", "/b");
        assert_eq!(environment.get("LD_LIBRARY_PATH"), Some(OsStr::new("/b:/a")));
    }
}
