//! Repositories that are copied alike: named one by one, or as a server lists them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser as _;
use esker_format::glob::Glob;
use esker_format::name::RepositoryName;
use esker_repository::{ReplicaState, Repository, ServedFiles};
use esker_store::{Servers, StoredFiles as _};
use serde::Deserialize;

use super::Args;
use crate::error::{Context as _, Failure, Kind, of_store};
use crate::output::parse_size;
use crate::publisher::{BucketArgs, PublisherArgs};
use crate::settings::Settings;
use crate::settings::args::RepositoryArgs;
use crate::settings::servers;

/// List of the repositories of a server, below its folder of repositories.
const LIST: &str = "info/v1/repositories.json";
/// Longest list.
const LIST_MAX: u64 = 16 << 20;
/// Longest wait for a list.
const TIMEOUT: Duration = Duration::from_secs(60);
const SERVERS: &str = "Servers and keys";

/// Options of a group of repositories.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct GroupArgs {
    /// URLs of repositories; further servers of the same ones follow after `;`. http://HOST/cvmfs/ stands for all that the
    /// server lists, http://HOST/cvmfs/*.example.org for some of them. Or names of replicas that are here
    #[arg(value_name = "URL|NAME")]
    pub(super) sources: Vec<String>,

    /// Folder of repositories, each below its name, or the folder of this one; or object storage, like
    /// s3://BUCKET/PREFIX [default: /srv/cvmfs for root, else ~/.local/share/esker/repositories]
    #[arg(long, value_name = "DIR|URL", alias = "storage")]
    pub(super) to: Option<PathBuf>,

    /// URL of the server of the bucket that --to names, like https://s3.example.org:9000 [default: $AWS_ENDPOINT_URL, else that
    /// of the provider]
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,

    /// Master public key or a folder of them [default: those that the replica was made with, else /etc/cvmfs/keys]
    #[arg(long, value_name = "FILE|DIR", help_heading = SERVERS)]
    pub(super) public_key: Vec<PathBuf>,

    /// Proxies for requests to the servers, as `esker mount` has them [default: $http_proxy, else none]
    #[arg(long, value_name = "GROUPS", help_heading = SERVERS)]
    proxy: Option<String>,

    /// Additional CA certificates for TLS, beside those of the system: a file or a folder of files
    #[arg(long, value_name = "FILE|DIR", help_heading = SERVERS)]
    pub(super) ca: Vec<PathBuf>,

    /// Accept a recreated repository whose revision is older than that of the replica
    #[arg(long, help_heading = SERVERS)]
    pub(super) forget_history: bool,

    /// Number of tagged revisions to copy besides the head, the newest first [default: all]
    #[arg(long, value_name = "N", help_heading = "Selection")]
    pub(super) revisions: Option<u64>,

    /// Copy only the catalogs above, at and below this path, and those of earlier runs; clients read the others from other
    /// servers [default: the whole repository]
    #[arg(long, value_name = "/PATH", help_heading = "Selection")]
    pub(super) path: Vec<PathBuf>,

    /// Copy the paths of --path only, and those of earlier runs no more
    #[arg(long, requires = "path", help_heading = "Selection")]
    pub(super) set_path: bool,

    /// Copy all revisions and paths of a replica that was made with --revisions or --path
    #[arg(long, conflicts_with_all = ["revisions", "path"], help_heading = "Selection")]
    pub(super) whole: bool,

    /// Space that stays free on the file system of the replica [default: as the last run was told, else 256M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Resources")]
    pub(super) reserve: Option<u64>,

    #[command(flatten)]
    bucket: BucketArgs,
}

/// A group of repositories.
pub(super) struct Group(pub(super) GroupArgs);

/// A repository as it is named.
pub(super) struct NamedSource {
    text: String,
    /// True if a list has it, and not the command line.
    pub(super) is_listed: bool,
}

/// A line of a file with groups.
#[derive(clap::Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Line {
    #[command(flatten)]
    group: GroupArgs,
}

/// The list of a server.
#[derive(Deserialize)]
struct Listed {
    #[serde(default)]
    repositories: Vec<ListedRepository>,
    #[serde(default)]
    replicas: Vec<ListedRepository>,
}

#[derive(Deserialize)]
struct ListedRepository {
    name: String,
}

impl Group {
    /// Returns the groups of a command line.
    pub(super) fn all(args: &Args) -> Result<Vec<Self>, Failure> {
        let Some(file) = &args.groups else {
            if args.group.sources.is_empty() && !args.all {
                return Err(Failure::usage("no repository is named")
                    .hint("as in: esker replicate http://server/cvmfs/sw.example.org; or give --all or --groups FILE"));
            }
            return Ok(vec![Self(args.group.clone())]);
        };
        let named = || format!("--groups {}", file.display());
        let text = std::fs::read_to_string(file).context(Kind::Usage, named())?;
        let mut groups = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.is_empty() {
                continue;
            }
            let refused = |why: String| Failure::usage(format!("{}, line {}: {why}", named(), number + 1));
            let parsed = Line::try_parse_from(words).map_err(|error| {
                let text = error.to_string();
                refused(text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned())
            })?;
            if parsed.group.sources.is_empty() {
                return Err(refused("no repository is named".to_owned()));
            }
            let mut group = parsed.group;
            group.to = group.to.or_else(|| args.group.to.clone());
            groups.push(Self(group));
        }
        match groups.is_empty() {
            true => Err(Failure::usage(format!("{} has no group", named()))),
            false => Ok(groups),
        }
    }

    /// Returns the options of the bucket of the replicas.
    pub(super) fn bucket(&self) -> BucketArgs {
        self.0.bucket.clone().at(self.0.endpoint.clone())
    }

    /// Returns the place of the replicas.
    pub(super) fn storage(&self) -> PublisherArgs {
        PublisherArgs::in_storage(self.0.to.as_deref())
    }

    /// True if repositories may be added to those of the command line.
    pub(super) fn grows(&self) -> bool {
        self.0.sources.is_empty() || self.0.sources.iter().any(|source| list_of(source).is_some())
    }

    /// Returns the repositories; those of lists are asked for anew.
    pub(super) fn sources(&self, args: &Args, settings: &Settings) -> Result<Vec<NamedSource>, Failure> {
        let listed = |text| NamedSource { text, is_listed: true };
        if self.0.sources.is_empty() {
            let replicas = replicas(&self.storage().storage_folder(settings)?, args.follow)?;
            return Ok(replicas.into_iter().map(listed).collect());
        }
        let mut all = Vec::new();
        for source in &self.0.sources {
            match list_of(source) {
                None => all.push(NamedSource { text: source.clone(), is_listed: false }),
                Some((bases, pattern)) => {
                    let names = self.listed(&bases, &pattern, settings)?;
                    let urls = |name: &String| {
                        bases.iter().map(|base| format!("{base}/{name}")).collect::<Vec<_>>().join(";")
                    };
                    all.extend(names.iter().map(urls).map(listed));
                }
            }
        }
        Ok(all)
    }

    /// Asks servers for their list, and returns the names in it that match a pattern.
    fn listed(&self, bases: &[String], pattern: &str, settings: &Settings) -> Result<Vec<String>, Failure> {
        let place = bases.join(";");
        let what = format!("can't read the list of repositories of {place}");
        let files = ServedFiles::new(self.servers(bases, settings)?, Some(TIMEOUT));
        let read = files.and_then(|files| files.read(LIST, LIST_MAX));
        let text = read.map_err(|error| of_store(&what, &error))?.ok_or_else(|| {
            Failure::new(Kind::Network, format!("{what}: it has none"))
                .hint("name the repositories, as in http://server/cvmfs/sw.example.org")
        })?;
        let list: Listed = serde_json::from_slice(&text).context(Kind::Network, what)?;
        let elements: Vec<(u8, bool)> = pattern.bytes().map(|byte| (byte, false)).collect();
        let glob = Glob::new(&elements);
        let mut names: Vec<String> =
            list.repositories.into_iter().chain(list.replicas).map(|listed| listed.name).collect();
        names.retain(|name| RepositoryName::parse(name).is_ok() && glob.fits(name.as_bytes()));
        names.sort_unstable();
        names.dedup();
        match names.is_empty() {
            true => Err(Failure::usage(format!("{place} lists no repository that matches {pattern}"))),
            false => Ok(names),
        }
    }

    /// Returns servers with the routes to them.
    pub(super) fn servers(&self, urls: &[String], settings: &Settings) -> Result<Servers, Failure> {
        let first = urls.first().map_or("", String::as_str);
        let is_remote = first.starts_with("http");
        let by_variable =
            settings.environment.proxy().filter(|_| is_remote && !settings.environment.is_near(first));
        let mut args = RepositoryArgs::default();
        args.proxy = self.0.proxy.clone().or_else(|| by_variable.map(|_| "auto".to_owned()));
        args.ca.clone_from(&self.0.ca);
        let mut servers = servers::servers(first, &args, &settings.environment)?;
        servers.urls = urls.to_vec();
        Ok(servers)
    }
}

impl NamedSource {
    /// True if this is no name of a replica that is here.
    pub(super) fn is_url(&self) -> bool {
        self.text.contains("://")
    }

    /// Returns the URLs of the servers.
    pub(super) fn urls(&self) -> Vec<String> {
        urls(&self.text)
    }

    /// Returns the name of the repository, and the folder of its replica.
    pub(super) fn place(
        &self,
        group: &Group,
        settings: &Settings,
    ) -> Result<(RepositoryName, PathBuf), Failure> {
        let urls = self.urls();
        let last = urls.first().and_then(|url| url.rsplit('/').next()).unwrap_or_default();
        let name =
            RepositoryName::parse(last).context(Kind::Usage, format!("{} names no repository", self.text))?;
        let root = Repository::locate(&group.storage().storage_folder(settings)?, &name);
        Ok((name, root))
    }
}

fn urls(source: &str) -> Vec<String> {
    source.split(';').map(|url| url.trim().trim_end_matches('/').to_owned()).collect()
}

/// Returns the folders of repositories of servers, and the pattern for names, if a source stands for a list.
fn list_of(source: &str) -> Option<(Vec<String>, String)> {
    let mut bases = Vec::new();
    let mut pattern = "*".to_owned();
    for url in urls(source) {
        let (_, place) = url.split_once("://").filter(|(scheme, _)| ["http", "https"].contains(scheme))?;
        let (base, last) = url.rsplit_once('/').filter(|_| place.contains('/'))?;
        if last.contains(['*', '?', '[']) {
            last.clone_into(&mut pattern);
            bases.push(base.to_owned());
        } else if last == "cvmfs" {
            bases.push(url);
        } else {
            return None;
        }
    }
    Some((bases, pattern))
}

/// Returns the names of the replicas in a folder.
fn replicas(folder: &Path, may_be_empty: bool) -> Result<Vec<String>, Failure> {
    let listed = std::fs::read_dir(folder)
        .map_err(|error| Failure::failed(format!("can't list {}: {error}", folder.display())))?;
    let mut names: Vec<String> = listed
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| RepositoryName::parse(name).is_ok())
        // One whose state can't be read fails by its name.
        .filter(|name| !matches!(ReplicaState::read(&folder.join(name)), Ok(None)))
        .collect();
    names.sort_unstable();
    if names.is_empty() && !may_be_empty {
        return Err(Failure::usage(format!("there is no replica in {}", folder.display()))
            .hint("make one with `esker replicate URL`"));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_repositories_and_a_pattern_stand_for_a_list() {
        let of = |source: &str| list_of(source).map(|(bases, pattern)| (bases.join(" "), pattern));
        let some = |bases: &str, pattern: &str| Some((bases.to_owned(), pattern.to_owned()));
        assert_eq!(of("http://h/cvmfs/"), some("http://h/cvmfs", "*"));
        assert_eq!(of("http://h:8000/cvmfs"), some("http://h:8000/cvmfs", "*"));
        assert_eq!(of("https://h/x/*.example.org"), some("https://h/x", "*.example.org"));
        assert_eq!(of("http://a/cvmfs/s*;http://b/cvmfs/"), some("http://a/cvmfs http://b/cvmfs", "s*"));
        for one in ["http://h/cvmfs/sw.example.org", "sw.example.org", "file:///srv/cvmfs", "http://cvmfs"] {
            assert_eq!(of(one), None, "{one}");
        }
    }
}
