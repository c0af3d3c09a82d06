//! Configurations as distributions and large domains ship them, recreated: the reference's way to evaluate them, which
//! starts a shell for each file, and Esker's give the same values.
//!
//! In the texts `@@` stands for the folder that holds the machine's files.

mod configurations;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use configurations::{ALL, Configuration, R};

use crate::{Machine, Parameters, Request, Root};

/// The reference's way, as its source has it: each file goes to a shell of its own, which starts in the folder of the
/// file and is then asked with `echo` for each name that stands before a `=` in a line. Values are exported for the
/// next file.
struct Judge {
    shell: &'static str,
    values: BTreeMap<String, String>,
    settled: Option<String>,
    name: &'static str,
}

impl Judge {
    fn all(shell: &'static str, base: &Path, name: &'static str) -> BTreeMap<String, String> {
        let mut judge = Self { shell, values: BTreeMap::new(), settled: None, name };
        let etc = base.join("etc/cvmfs");
        judge.file(&etc.join("default.conf"));
        let mut defaults: Vec<PathBuf> = fs::read_dir(etc.join("default.d"))
            .map(|entries| entries.map(|entry| entry.expect("an entry").path()).collect())
            .unwrap_or_default();
        defaults.sort();
        defaults.iter().for_each(|path| judge.file(path));
        judge.settled = Some(judge.values.get("CVMFS_CONFIG_REPOSITORY").cloned().unwrap_or_default());
        judge.of_repository("default.conf");
        judge.file(&etc.join("default.local"));
        let domain = name.split_once('.').expect("a domain").1;
        for stem in [format!("domain.d/{domain}"), format!("config.d/{name}")] {
            judge.of_repository(&format!("{stem}.conf"));
            judge.file(&etc.join(format!("{stem}.conf")));
            judge.file(&etc.join(format!("{stem}.local")));
        }
        judge.values
    }

    fn of_repository(&mut self, name: &str) {
        let repository = self.settled.clone().unwrap_or_default();
        if !repository.is_empty() && repository != self.name {
            let mounts = self.values.get("CVMFS_MOUNT_DIR").expect("set by default.conf");
            self.file(&Path::new(mounts).join(repository).join("etc/cvmfs").join(name));
        }
    }

    fn file(&mut self, path: &Path) {
        let Ok(text) = fs::read_to_string(path) else { return };
        let mut child = Command::new(self.shell)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("CVMFS_FQRN", self.name)
            .envs(&self.values)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        let mut input = child.stdin.take().expect("a pipe");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let folder = path.parent().expect("a folder");
        writeln!(input, "cd \"{}\"\n{text}", folder.display()).expect("writing");
        for name in text.lines().filter_map(parameter) {
            writeln!(input, "echo ${name}").expect("writing");
            let mut value = String::new();
            output.read_line(&mut value).expect("reading");
            let org = self.name.split('.').next().expect("a name");
            let value = value.trim_end_matches('\n').replace("@fqrn@", self.name).replace("@org@", org);
            let settled = self.settled.as_ref().filter(|settled| **settled != value);
            if name != "CVMFS_CONFIG_REPOSITORY" || settled.is_none() {
                self.values.insert(name, value);
            }
        }
        drop(input);
        child.wait().expect("it ends");
    }
}

/// Returns the name in a line with a `=`, without declaring words; `None` if anything else is before it.
fn parameter(line: &str) -> Option<String> {
    let line = line.split('#').next().unwrap_or_default().trim();
    let name = line.split_once('=')?.0.trim();
    let words = ["readonly ", "export ", "eval "];
    let name = words.iter().find_map(|word| name.strip_prefix(word)).unwrap_or(name).trim();
    (!name.is_empty() && !name.contains(' ')).then(|| name.to_owned())
}

fn load(base: &Path, name: &str) -> Parameters {
    Request {
        files: Arc::new(Root::new("/")),
        machine: Machine::this(),
        environment: BTreeMap::new(),
        folder: base.join("etc/cvmfs"),
        own: Vec::new(),
        name: Some(name.to_owned()),
        patience: Duration::from_secs(60),
    }
    .load()
}

#[test]
fn configurations_have_the_values_of_the_reference() {
    let shells: Vec<&str> = ["/usr/bin/dash", "/bin/bash", "/bin/sh"]
        .into_iter()
        .filter(|shell| fs::exists(shell).unwrap_or_default())
        .collect();
    assert_eq!(ALL.len(), 10);
    for Configuration { what, name, files, links, expected } in ALL {
        let folder = tempfile::tempdir().expect("a folder");
        let base = folder.path();
        let text_of = |text: &str| text.replace("@@", base.to_str().expect("text"));
        for (path, text) in *files {
            let path = base.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("mkdir");
            fs::write(path, text_of(text)).expect("writing");
        }
        fs::create_dir_all(base.join(R)).expect("mkdir");
        for (path, target) in *links {
            std::os::unix::fs::symlink(target, base.join(path)).expect("a link");
        }
        let parameters = load(base, name);
        let problems: Vec<String> = parameters.problems().iter().map(ToString::to_string).collect();
        assert_eq!(problems, Vec::<String>::new(), "{what}");
        let value = |name: &str| parameters.all().get(name).map_or("", |setting| setting.value.as_str());
        for (name, expected) in *expected {
            assert_eq!(value(name), text_of(expected), "{what}: {name}");
        }
        for shell in &shells {
            let judged = Judge::all(shell, base, name);
            for (name, expected) in &judged {
                assert_eq!(value(name), expected, "{what}: {name}, says {shell}");
            }
            let more = parameters.all().iter().filter(|(name, setting)| {
                name.starts_with("CVMFS_") && !setting.value.is_empty() && !judged.contains_key(*name)
            });
            assert_eq!(more.collect::<Vec<_>>(), [], "{what}: {shell} does not know them");
        }
    }
}
