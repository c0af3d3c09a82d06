//! The roots a command is run from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tempfile::TempDir;

use crate::measure;

/// A client, as a file describes it. In its lines `{mountpoint}` and `{cache}` stand for folders made for it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// What it is called in the results.
    pub name: String,
    /// Mounts, and returns when the mount answers.
    pub mount: String,
    /// Unmounts, and returns when the client has ended.
    pub unmount: String,
    /// Empties its cache; run while nothing is mounted.
    pub drop_cache: String,
    /// Prints its status as `esker status --json` does, if it can.
    pub status: Option<String>,
    /// Where in the mount the tree lies.
    #[serde(default)]
    pub inside: PathBuf,
}

/// The file of clients.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clients {
    /// The clients, in the order of the results.
    #[serde(default)]
    pub client: Vec<Client>,
}

impl Clients {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} doesn't describe clients", path.display()))
    }
}

/// What a client answered the kernel, by the protocol's name of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Callbacks(pub BTreeMap<String, Callback>);

/// Requests of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Callback {
    /// How many.
    pub requests: u64,
    /// Of these, how many waited for the network.
    pub parked: u64,
    /// Microseconds the client's threads spent on them.
    pub busy_us: u64,
}

impl Callbacks {
    /// Reads what `esker status --json` prints for one mount.
    pub fn parse(json: &[u8]) -> Result<Self> {
        let status: Value = serde_json::from_slice(json).context("the status isn't JSON")?;
        let requests = status["mounts"][0]["requests"].as_array().context("the status has no requests")?;
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let each = requests.iter().map(|request| {
            let name = request["name"].as_str().context("a request without a name")?.to_owned();
            let callback = Callback {
                requests: number(&request["requests"]),
                parked: number(&request["parked"]),
                busy_us: number(&request["busy_us"]),
            };
            Ok((name, callback))
        });
        Ok(Self(each.collect::<Result<_>>()?))
    }

    /// What came after `before`.
    pub fn since(&self, before: &Self) -> Self {
        let difference = |(name, now): (&String, &Callback)| {
            let then = before.0.get(name).copied().unwrap_or_default();
            let callback = Callback {
                requests: now.requests.saturating_sub(then.requests),
                parked: now.parked.saturating_sub(then.parked),
                busy_us: now.busy_us.saturating_sub(then.busy_us),
            };
            (callback != Callback::default()).then(|| (name.clone(), callback))
        };
        Self(self.0.iter().filter_map(difference).collect())
    }
}

/// Somewhere to run from. A mount ends with it.
#[derive(Debug)]
pub enum Root {
    /// A directory of this machine.
    Directory {
        /// What it is called in the results.
        name: String,
        /// Where it is.
        path: PathBuf,
        /// If it was made for this.
        _made: Option<TempDir>,
    },
    /// A client's mount.
    Mount {
        /// How.
        client: Box<Client>,
        /// Its mountpoint and its cache.
        folder: TempDir,
        /// Whether it is mounted.
        mounted: bool,
    },
}

impl Root {
    /// A directory as it is.
    pub fn directory(path: &Path) -> Result<Self> {
        let path = path.canonicalize().with_context(|| format!("can't find {}", path.display()))?;
        Ok(Self::Directory { name: "native".into(), path, _made: None })
    }

    /// A copy of a directory in memory.
    pub fn in_memory(path: &Path) -> Result<Self> {
        let made = tempfile::Builder::new().prefix("esker-bench-").tempdir_in("/dev/shm")?;
        let status = Command::new("cp").arg("-a").arg(path).arg(made.path().join("tree")).status()?;
        ensure!(status.success(), "copying {} into memory failed: {status}", path.display());
        Ok(Self::Directory { name: "tmpfs".into(), path: made.path().join("tree"), _made: Some(made) })
    }

    /// A client's mount, not mounted yet; its cache will be below `scratch`, which should be a disk.
    pub fn of_client(client: Client, scratch: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("esker-bench-").tempdir_in(scratch)?;
        for name in ["mountpoint", "cache"] {
            std::fs::create_dir(folder.path().join(name))?;
        }
        Ok(Self::Mount { client: Box::new(client), folder, mounted: false })
    }

    /// What it is called in the results.
    pub fn name(&self) -> &str {
        match self {
            Self::Directory { name, .. } => name,
            Self::Mount { client, .. } => &client.name,
        }
    }

    /// Where the tree lies.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Directory { path, .. } => path.clone(),
            Self::Mount { client, folder, .. } => folder.path().join("mountpoint").join(&client.inside),
        }
    }

    /// The command with `{root}` replaced.
    pub fn command(&self, words: &[String]) -> Command {
        let root = self.path();
        let root = root.to_string_lossy();
        let mut words = words.iter().map(|word| word.replace("{root}", &root));
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        command
    }

    fn line(line: &str, folder: &TempDir) -> Command {
        let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        measure::shell(&line.replace("{mountpoint}", &path("mountpoint")).replace("{cache}", &path("cache")))
    }

    /// Mounts it if it isn't; gives the seconds that took.
    pub fn mount(&mut self) -> Result<Option<f64>> {
        let Self::Mount { client, folder, mounted } = self else { return Ok(None) };
        if *mounted {
            return Ok(None);
        }
        let cost = measure::run(Self::line(&client.mount, folder))?;
        *mounted = true;
        Ok(Some(cost.real))
    }

    /// Unmounts it if it is mounted.
    pub fn unmount(&mut self) -> Result<()> {
        let Self::Mount { client, folder, mounted } = self else { return Ok(()) };
        if std::mem::take(mounted) {
            measure::run(Self::line(&client.unmount, folder))?;
        }
        Ok(())
    }

    /// Empties a client's cache.
    pub fn empty_cache(&self) -> Result<()> {
        if let Self::Mount { client, folder, .. } = self {
            measure::run(Self::line(&client.drop_cache, folder))?;
        }
        Ok(())
    }

    /// What its client has answered so far; nothing if it can't tell.
    pub fn callbacks(&self) -> Result<Callbacks> {
        let Self::Mount { client, folder, .. } = self else { return Ok(Callbacks::default()) };
        let Some(status) = &client.status else { return Ok(Callbacks::default()) };
        let output = Self::line(status, folder).stdin(Stdio::null()).output()?;
        ensure!(output.status.success(), "{status} failed: {}", String::from_utf8_lossy(&output.stderr));
        Callbacks::parse(&output.stdout)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // After a failure that was reported already.
        let _ = self.unmount();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callbacks_are_differences() {
        let status = |reads: u64| {
            let text = format!(
                r#"{{"mounts":[{{"requests":[{{"name":"READ","requests":{reads},"parked":1,"busy_us":{}}},{{"name":"INIT","requests":1,"parked":0,"busy_us":3}}]}}]}}"#,
                reads * 10
            );
            Callbacks::parse(text.as_bytes()).expect("a status")
        };
        let since = status(7).since(&status(5));
        assert_eq!(since.0.len(), 1, "what didn't happen isn't told");
        assert_eq!(since.0["READ"], Callback { requests: 2, parked: 0, busy_us: 20 });
        assert!(Callbacks::parse(b"{}").is_err());
    }

    #[test]
    fn a_client_is_described_by_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("clients.toml");
        let text = "[[client]]\nname = 'copy'\nmount = 'touch {mountpoint}/mounted'\nunmount = 'rm {mountpoint}/mounted'\n\
                    drop_cache = 'rm -rf {cache}/*'\ninside = 'sub'\n";
        std::fs::write(&file, text).expect("a file");
        let client = Clients::read(&file).expect("clients").client.remove(0);
        let mut root = Root::of_client(client, folder.path()).expect("a root");
        assert!(root.mount().expect("mounting").is_some());
        assert!(root.mount().expect("mounted already").is_none());
        let command = format!("{:?}", root.command(&["{root}/bin/x".into(), "--at={root}".into()]));
        assert!(command.contains("mountpoint/sub/bin/x") && !command.contains("{root}"), "{command}");
        root.empty_cache().expect("an empty cache");
        root.unmount().expect("unmounting");
        std::fs::write(&file, "[[client]]\nname = 'x'\nmont = 'y'\n").expect("a file");
        assert!(Clients::read(&file).is_err());
    }
}
