//! Prepares the roots from which a command is run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tempfile::TempDir;

use super::status::Status;
use crate::measure;

/// A client, as a file describes it. In its lines `{mountpoint}` and `{cache}` stand for folders made for it, and `{url}`
/// for the repository, perhaps through a link.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Name in the results.
    pub name: String,
    /// Mounts, and returns when the mount answers.
    pub mount: String,
    /// Unmounts, and returns when the client has ended.
    pub unmount: String,
    /// Command that empties the client's cache; run while nothing is mounted.
    pub drop_cache: String,
    /// Command that prints the status as `esker status --json` does, if the client has one.
    pub status: Option<String>,
    /// Prints a line about it for the conditions: its version, how its image was made.
    pub about: Option<String>,
    /// Path of the tree in the mount.
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
    /// Reads the description of clients.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} doesn't describe clients", path.display()))
    }
}

/// A root from which the command is run. A mount ends with it.
#[derive(Debug)]
pub enum Root {
    /// A directory of this machine.
    Directory {
        /// Name in the results.
        name: String,
        /// Path of the directory.
        path: PathBuf,
        /// Guard that removes a temporary directory.
        _made: Option<TempDir>,
    },
    /// A client's mount.
    Mount {
        /// Client that mounts it.
        client: Box<Client>,
        /// Folder for mountpoint and cache.
        folder: TempDir,
        /// URL that is mounted, if it is mounted.
        mounted: Option<String>,
    },
}

/// Minimum free part of the disk while old caches are kept.
const FREE_PART: u64 = 16;

impl Root {
    /// Uses a directory as it is.
    pub fn directory(path: &Path) -> Result<Self> {
        let path = path.canonicalize().with_context(|| format!("can't find {}", path.display()))?;
        Ok(Self::Directory { name: "native".into(), path, _made: None })
    }

    /// Copies a directory into memory.
    pub fn in_memory(path: &Path) -> Result<Self> {
        let made = tempfile::Builder::new().prefix("esker-bench-").tempdir_in("/dev/shm")?;
        let status = Command::new("cp").arg("-a").arg(path).arg(made.path().join("tree")).status()?;
        ensure!(status.success(), "copying {} into memory failed: {status}", path.display());
        Ok(Self::Directory { name: "tmpfs".into(), path: made.path().join("tree"), _made: Some(made) })
    }

    /// Prepares a client's mount, not mounted yet; its cache will be below `scratch`, which should be a disk.
    pub fn of_client(client: Client, scratch: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("esker-bench-").tempdir_in(scratch)?;
        for name in ["mountpoint", "cache"] {
            std::fs::create_dir(folder.path().join(name))?;
        }
        Ok(Self::Mount { client: Box::new(client), folder, mounted: None })
    }

    /// Returns the name in the results.
    pub fn name(&self) -> &str {
        match self {
            Self::Directory { name, .. } => name,
            Self::Mount { client, .. } => &client.name,
        }
    }

    /// Returns the path of the tree.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Directory { path, .. } => path.clone(),
            Self::Mount { client, folder, .. } => folder.path().join("mountpoint").join(&client.inside),
        }
    }

    /// Returns a folder on the disk that is read: the root itself, or its client's own.
    pub fn disk(&self) -> PathBuf {
        match self {
            Self::Directory { path, .. } => path.clone(),
            Self::Mount { folder, .. } => folder.path().to_owned(),
        }
    }

    /// Returns the folder whose files a warm run reads: the root, or the client's cache.
    pub fn kept(&self) -> Option<PathBuf> {
        match self {
            Self::Directory { path, .. } => Some(path.clone()),
            Self::Mount { folder, .. } => {
                let cache = folder.path().join("cache");
                std::fs::read_dir(&cache).ok()?.next().map(|_| cache)
            }
        }
    }

    /// Returns the command with `{root}`, `{process}` and `{scratch}` replaced: `{process}` by the number of the
    /// process, `0/8` for the first of eight, and `{scratch}` by the folder for its output, if it has one.
    pub fn command(
        &self,
        words: &[String],
        process: usize,
        processes: usize,
        scratch: Option<&Path>,
    ) -> Command {
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let (root, scratch) = (path(&self.path()), scratch.map(path).unwrap_or_default());
        let part = format!("{process}/{processes}");
        let mut words = words.iter().map(|word| {
            word.replace("{root}", &root).replace("{process}", &part).replace("{scratch}", &scratch)
        });
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        command
    }

    fn line(line: &str, folder: &TempDir, url: &str) -> Command {
        let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let line = line.replace("{mountpoint}", &path("mountpoint")).replace("{cache}", &path("cache"));
        measure::shell(&line.replace("{url}", url))
    }

    /// Returns true if the content comes from the URL of a repository.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Mount { client, .. } if client.mount.contains("{url}"))
    }

    /// Returns the client's report about itself, if one is configured.
    pub fn about(&self) -> Result<Option<String>> {
        let Self::Mount { client, folder, .. } = self else { return Ok(None) };
        let Some(about) = &client.about else { return Ok(None) };
        let output = Self::line(about, folder, "").stdin(Stdio::null()).output()?;
        ensure!(output.status.success(), "{about} failed: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().next().map(|line| format!("{}: {}", client.name, line.trim())))
    }

    /// Mounts the root from this URL unless it is mounted; returns the seconds that this took.
    pub fn mount(&mut self, url: &str) -> Result<Option<f64>> {
        let Self::Mount { mounted, .. } = self else { return Ok(None) };
        match mounted {
            Some(from) if from == url => return Ok(None),
            Some(_) => self.unmount()?,
            None => {}
        }
        let Self::Mount { client, folder, mounted } = self else { return Ok(None) };
        let cost = measure::run(Self::line(&client.mount, folder, url))?;
        *mounted = Some(url.to_owned());
        Ok(Some(cost.real))
    }

    /// Unmounts the root if it is mounted.
    pub fn unmount(&mut self) -> Result<()> {
        let Self::Mount { client, folder, mounted } = self else { return Ok(()) };
        if let Some(url) = mounted.take() {
            measure::run(Self::line(&client.unmount, folder, &url))?;
        }
        Ok(())
    }

    /// Replaces a client's cache by a new folder without any learned data. The old folder is kept until the end
    /// or until the disk fills up: ext4 passes over inodes that were freed minutes ago for each new file, and a
    /// client with an empty cache has not just removed thousands of files.
    pub fn empty_cache(&self) -> Result<()> {
        if let Self::Mount { client, folder, mounted } = self {
            ensure!(mounted.is_none(), "{} is mounted while its cache is emptied", client.name);
            measure::run(Self::line(&client.drop_cache, folder, ""))?;
            let cache = folder.path().join("cache");
            let aside = folder.path().join("aside");
            let disk = rustix::fs::statvfs(folder.path())?;
            if aside.exists() && disk.f_bavail < disk.f_blocks / FREE_PART {
                std::fs::remove_dir_all(&aside)
                    .with_context(|| format!("can't remove {}", aside.display()))?;
            }
            std::fs::create_dir_all(&aside)?;
            let number = std::fs::read_dir(&aside)?.count();
            std::fs::rename(&cache, aside.join(number.to_string()))
                .with_context(|| format!("can't put {} aside", cache.display()))?;
            std::fs::create_dir(&cache)?;
        }
        Ok(())
    }

    /// Returns the client's status; empty if it has none.
    pub fn status(&self) -> Result<Status> {
        let Self::Mount { client, folder, .. } = self else { return Ok(Status::default()) };
        let Some(status) = &client.status else { return Ok(Status::default()) };
        let output = Self::line(status, folder, "").stdin(Stdio::null()).output()?;
        ensure!(output.status.success(), "{status} failed: {}", String::from_utf8_lossy(&output.stderr));
        Status::parse(&output.stdout)
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
    fn a_client_is_read_from_its_description_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("clients.toml");
        let text = "[[client]]\nname = 'copy'\nmount = 'echo {url} > {mountpoint}/mounted'\nunmount = 'rm {mountpoint}/mounted'\n\
                    drop_cache = 'rm -rf {cache}/*'\ninside = 'sub'\n";
        std::fs::write(&file, text).expect("a file");
        let client = Clients::read(&file).expect("clients").client.remove(0);
        let mut root = Root::of_client(client, folder.path()).expect("a root");
        assert!(root.is_remote());
        assert!(root.mount("http://near").expect("mounting").is_some());
        assert!(root.mount("http://near").expect("mounted already").is_none());
        assert!(root.mount("http://far").expect("mounted anew").is_some());
        let mounted = std::fs::read_to_string(root.path().parent().expect("above").join("mounted"));
        assert_eq!(mounted.expect("a file"), "http://far\n");
        assert!(root.empty_cache().is_err(), "it is in use");
        let words = ["{root}/bin/x", "--at={root}", "{process}", "--into={scratch}/out"].map(String::from);
        let command = format!("{:?}", root.command(&words, 2, 3, Some(Path::new("/s"))));
        for part in ["mountpoint/sub/bin/x", "2/3", "--into=/s/out"] {
            assert!(command.contains(part) && !command.contains('{'), "{command}");
        }
        root.unmount().expect("unmounting");
        let cache = root.path().ancestors().nth(2).expect("its folder").join("cache");
        std::fs::write(cache.join("object"), "x").expect("an object");
        root.empty_cache().expect("an empty cache");
        assert_eq!(std::fs::read_dir(&cache).expect("a folder").count(), 0);
        std::fs::write(&file, "[[client]]\nname = 'x'\nmont = 'y'\n").expect("a file");
        assert!(Clients::read(&file).is_err());
    }

    #[test]
    fn the_client_descriptions_of_the_guide_are_parsed() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("images/clients.toml");
        let clients = Clients::read(&file).expect("clients").client;
        let names: Vec<&str> = clients.iter().map(|client| client.name.as_str()).collect();
        assert_eq!(names, ["esker", "esker learned", "squashfs", "EROFS", "squashfuse_ll", "squashfuse"]);
        assert!(clients.iter().all(|client| client.about.is_some()), "the conditions tell what was measured");
    }
}
