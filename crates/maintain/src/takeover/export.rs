//! Writes the configuration with which `cvmfs_server` can manage the repository.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use esker_format::compress::Compression;
use esker_format::hash::ContentHash;
use esker_format::manifest::{self, Manifest};
use esker_format::name::RepositoryName;
use esker_format::reflog;
use esker_repository::{
    AutomaticCollect, DATABASE_MAX, Limits, OpenStorage, RememberedStorage, RepositoryError, Settings,
    SpecialFiles, signed::SMALL_FILE_MAX, spool::REFLOG_CHECKSUM,
};
use esker_store::{RealDisk, make_dirs, persist};
use serde::Serialize;

use super::error::TakeoverError;
use super::s3_conf::S3Conf;

/// Warnings for a repository in a bucket.
const BUCKET_WARNINGS: [&str; 2] = [
    "add CVMFS_S3_ACCESS_KEY and CVMFS_S3_SECRET_KEY to s3.conf, and let only its owner read the file",
    "once `cvmfs_server` publishes, Esker's publishers must not write to the bucket any more: the two don't see each \
     other's commits",
];

/// Configuration files of `cvmfs_server` for a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExportedConfig {
    /// Text of `server.conf`.
    pub server_conf: String,
    /// Text of `client.conf`.
    pub client_conf: String,
    /// Text of `s3.conf`, without keys; none for a repository in a folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3_conf: Option<String>,
    /// Lines for `/etc/fstab`.
    pub fstab: Vec<String>,
    /// Shell commands for root that make the spool folder, add the lines to `/etc/fstab`, and mount.
    pub commands: Vec<String>,
    /// Settings that `cvmfs_server` does not have.
    pub warnings: Vec<String>,
}

impl ExportedConfig {
    /// Makes the configuration of the repository at a place.
    pub fn new(
        place: impl OpenStorage,
        name: &RepositoryName,
        owner: &str,
        stratum0: Option<&str>,
        spool: Option<&Path>,
    ) -> Result<Self, TakeoverError> {
        let storage = place.storage()?;
        let root = storage.place();
        let missing = || RepositoryError::NoRepository(storage.describe());
        let remembered = RememberedStorage::read(root)?;
        let bucket = remembered.as_ref().map(S3Conf::new).transpose()?;
        let sink = storage.sink();
        let bytes = sink.read(manifest::PATH, SMALL_FILE_MAX)?;
        let head = Manifest::parse(&bytes.ok_or_else(missing)?).map_err(|error| {
            RepositoryError::Untrusted { name: name.to_string(), source: Box::new(error.into()) }
        })?;
        let settings = Settings::read_of(&storage)?.unwrap_or_default();
        let default = PathBuf::from(format!("/var/spool/cvmfs/{name}"));
        let public = remembered.as_ref().and_then(RememberedStorage::public_url);
        let usual = || public.unwrap_or_else(|| format!("http://localhost/cvmfs/{name}"));
        let spool = spool.unwrap_or(&default).display().to_string();
        let upstream = match &bucket {
            None => format!("local,{0}/data/txn,{0}", root.display()),
            Some(bucket) => {
                format!("S3,{spool}/tmp,{}@/etc/cvmfs/repositories.d/{name}/s3.conf", bucket.path)
            }
        };
        let stratum0 = stratum0.map_or_else(usual, str::to_owned);
        let place = Place { name: name.as_str(), upstream, spool, stratum0, owner };
        let lines = bucket.as_ref().map(|bucket| bucket.lines.iter().map(|(_, value)| value));
        let words = [&place.upstream, &place.spool, &place.stratum0, &owner.to_owned()];
        for text in words.into_iter().chain(lines.into_iter().flatten()) {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-:@%+~,".contains(&byte);
            if !text.bytes().all(plain) {
                let (path, reason) =
                    ("server.conf".into(), format!("{text:?} would be evaluated by the shell"));
                return Err(TakeoverError::ServerConf { path, reason });
            }
        }
        let reflog = sink.read(reflog::PATH, DATABASE_MAX)?;
        let checksum = reflog.map(|bytes| ContentHash::of(head.root_catalog.algorithm(), &bytes));
        let mut warnings = warnings(&settings);
        if bucket.is_some() {
            warnings.extend(BUCKET_WARNINGS.map(str::to_owned));
        }
        Ok(Self {
            server_conf: place.server_conf(&head, &settings),
            client_conf: place.client_conf(),
            s3_conf: bucket.map(|bucket| text(&bucket.lines)),
            fstab: place.fstab(),
            commands: place.commands(checksum),
            warnings,
        })
    }

    /// Writes the files to a folder; existing ones are refused.
    pub fn write(&self, folder: &Path) -> Result<Vec<PathBuf>, TakeoverError> {
        let files: Vec<(PathBuf, &str)> =
            self.files().map(|(name, text)| (folder.join(name), text)).collect();
        if let Some((path, _)) = files.iter().find(|(path, _)| path.symlink_metadata().is_ok()) {
            let source = std::io::ErrorKind::AlreadyExists.into();
            return Err(RepositoryError::File { doing: "writing", path: path.clone(), source }.into());
        }
        let disk = &RealDisk::SERVED;
        make_dirs(disk, folder).map_err(RepositoryError::file("making folder", folder))?;
        for (path, text) in &files {
            persist(disk, path, text.as_bytes()).map_err(RepositoryError::file("writing", path))?;
        }
        Ok(files.into_iter().map(|(path, _)| path).collect())
    }

    /// Returns names and texts of the files.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let always = [("server.conf", &*self.server_conf), ("client.conf", &*self.client_conf)];
        always.into_iter().chain(self.s3_conf.as_deref().map(|text| ("s3.conf", text)))
    }
}

fn warnings(settings: &Settings) -> Vec<String> {
    let zstd = settings.compression == Compression::Zstd;
    let zstd = zstd.then(|| {
        "no released CernVM-FS reads zstd; new files will be compressed with zlib, those that are there stay"
            .to_owned()
    });
    zstd.into_iter().collect()
}

struct Place<'p> {
    name: &'p str,
    /// Storage as `cvmfs_server` names it.
    upstream: String,
    spool: String,
    stratum0: String,
    owner: &'p str,
}

impl Place<'_> {
    fn server_conf(&self, head: &Manifest, settings: &Settings) -> String {
        let Self { name, upstream, spool, stratum0, owner } = self;
        let on = |value: bool| if value { "true" } else { "false" };
        let compression = if settings.compression == Compression::Stored { "none" } else { "default" };
        let span = settings.automatic_tags_for.map(|days| format!("{days} days ago")).unwrap_or_default();
        let chunks = settings.chunks;
        let mut lines: Vec<(&str, String)> = vec![
            ("CREATOR_VERSION", "143".to_owned()),
            ("REPOSITORY_NAME", (*name).to_owned()),
            ("REPOSITORY_TYPE", "stratum0".to_owned()),
            ("USER", (*owner).to_owned()),
            ("UNION_DIR", format!("/cvmfs/{name}")),
            ("SPOOL_DIR", spool.clone()),
            ("STRATUM0", stratum0.clone()),
            ("UPSTREAM_STORAGE", upstream.clone()),
            ("USE_FILE_CHUNKING", on(true).to_owned()),
            ("MIN_CHUNK_SIZE", chunks.min().to_string()),
            ("AVG_CHUNK_SIZE", chunks.average().to_string()),
            ("MAX_CHUNK_SIZE", chunks.max().to_string()),
            ("UNION_FS_TYPE", "overlayfs".to_owned()),
            ("HASH_ALGORITHM", head.root_catalog.algorithm().to_string()),
            ("COMPRESSION_ALGORITHM", compression.to_owned()),
            ("EXTERNAL_DATA", on(settings.external_data).to_owned()),
            ("AUTO_TAG", on(settings.automatic_tags).to_owned()),
            ("AUTO_TAG_TIMESPAN", format!("\"{span}\"")),
            ("GARBAGE_COLLECTION", on(head.garbage_collectable).to_owned()),
            ("AUTO_REPAIR_MOUNTPOINT", on(true).to_owned()),
            ("AUTOCATALOGS", on(settings.balance.is_some()).to_owned()),
            ("ASYNC_SCRATCH_CLEANUP", on(true).to_owned()),
            ("PRINT_STATISTICS", on(false).to_owned()),
            ("UPLOAD_STATS_DB", on(false).to_owned()),
            ("UPLOAD_STATS_PLOTS", on(false).to_owned()),
            ("IGNORE_XDIR_HARDLINKS", on(true).to_owned()),
        ];
        if let Some(balance) = settings.balance {
            lines.push(("AUTOCATALOGS_MAX_WEIGHT", balance.max.to_string()));
            lines.push(("AUTOCATALOGS_MIN_WEIGHT", balance.min.to_string()));
        }
        let further = [
            ("CATALOG_ALT_PATHS", head.alternative_paths),
            ("VIRTUAL_DIR", settings.virtual_snapshots),
            ("INCLUDE_XATTRS", settings.xattrs),
            ("ENABLE_MTIME_NS", settings.nanoseconds),
            ("IGNORE_SPECIAL_FILES", settings.special_files == SpecialFiles::Skip),
            ("ENFORCE_LIMITS", settings.limits.enforced),
        ];
        lines.extend(
            further.into_iter().filter(|(_, is_on)| *is_on).map(|(key, _)| (key, on(true).to_owned())),
        );
        lines.extend(limits(&settings.limits));
        lines.extend(automatic_collect(&settings.automatic_collect));
        let ttl = settings.ttl.unwrap_or(head.ttl);
        if ttl != esker_repository::TTL {
            lines.push(("REPOSITORY_TTL", ttl.to_string()));
        }
        text(&lines)
    }

    fn client_conf(&self) -> String {
        let Self { name, spool, stratum0, owner, .. } = self;
        let cache = format!("{spool}/cache");
        text(&[
            ("CACHE_BASE", cache.clone()),
            ("RELOAD_SOCKETS", cache),
            ("QUOTA_LIMIT", "4000".to_owned()),
            ("MOUNT_DIR", "/cvmfs".to_owned()),
            ("SERVER_URL", stratum0.clone()),
            ("HTTP_PROXY", "DIRECT".to_owned()),
            ("PUBLIC_KEY", format!("/etc/cvmfs/keys/{name}.pub")),
            ("CHECK_PERMISSIONS", "yes".to_owned()),
            ("IGNORE_SIGNATURE", "no".to_owned()),
            ("AUTO_UPDATE", "no".to_owned()),
            ("NFS_SOURCE", "no".to_owned()),
            ("MAGIC_XATTRS_VISIBILITY", "never".to_owned()),
            ("FOLLOW_REDIRECTS", "yes".to_owned()),
            ("SERVER_CACHE_MODE", "yes".to_owned()),
            ("NFILES", "65536".to_owned()),
            ("TALK_SOCKET", format!("{spool}/cvmfs_io")),
            ("TALK_OWNER", (*owner).to_owned()),
            ("USE_SSL_SYSTEM_CA", "true".to_owned()),
        ])
    }

    fn fstab(&self) -> Vec<String> {
        let Self { name, spool, .. } = self;
        let mark = format!("# added by CernVM-FS for {name}");
        let config = format!("/etc/cvmfs/repositories.d/{name}/client.conf:{spool}/client.local");
        vec![
            format!(
                "cvmfs2#{name} {spool}/rdonly fuse allow_other,fsname={name},config={config},cvmfs_suid,noauto 0 0 {mark}"
            ),
            format!(
                "overlay_{name} /cvmfs/{name} overlay upperdir={spool}/scratch/current,lowerdir={spool}/rdonly,workdir={spool}/ofs_workdir,noauto,nodev,ro 0 0 {mark}"
            ),
        ]
    }

    /// Makes the spool folder as `cvmfs_server mkfs` does.
    fn commands(&self, reflog: Option<ContentHash>) -> Vec<String> {
        let Self { name, spool, owner, .. } = self;
        let folders = ["rdonly", "scratch/current", "scratch/wastebin", "ofs_workdir", "tmp", "cache"];
        let folders: String = folders.iter().map(|folder| format!(" {spool}/{folder}")).collect();
        let mut commands = vec![format!("mkdir -p /cvmfs/{name}{folders}")];
        commands.extend(reflog.map(|hash| format!("printf %s {hash} >{spool}/{REFLOG_CHECKSUM}")));
        commands.push(format!("touch {spool}/client.local"));
        commands.push(format!("chown -R {owner} /cvmfs/{name} {spool}"));
        commands.extend(self.fstab().iter().map(|line| format!("echo '{line}' >>/etc/fstab")));
        commands.push(format!("cvmfs_server mount {name}"));
        commands
    }
}

/// Returns the limits that differ from those of `cvmfs_server`, rounded up to its units.
fn limits(limits: &Limits) -> Vec<(&'static str, String)> {
    let usual = Limits::default();
    let of = |name, limit: Option<u64>, usual, unit| {
        (limit != usual).then(|| (name, limit.map_or(0, |limit| limit.div_ceil(unit)).to_string()))
    };
    let all = [
        of("FILE_MBYTE_LIMIT", limits.file, usual.file, 1 << 20),
        of("ROOT_KCATALOG_LIMIT", limits.root_entries, usual.root_entries, 1000),
        of("NESTED_KCATALOG_LIMIT", limits.nested_entries, usual.nested_entries, 1000),
    ];
    all.into_iter().flatten().collect()
}

fn automatic_collect(terms: &AutomaticCollect) -> Vec<(&'static str, String)> {
    let ago = |seconds: u32| format!("\"{seconds} seconds ago\"");
    let every = terms.every.map(|every| [("AUTO_GC", "true".to_owned()), ("AUTO_GC_LAPSE", ago(every))]);
    let usual = AutomaticCollect::default().keep;
    let keep = (terms.keep != usual).then(|| ("AUTO_GC_TIMESPAN", ago(terms.keep)));
    every.into_iter().flatten().chain(keep).collect()
}

fn text(lines: &[(&str, String)]) -> String {
    let mut text = String::new();
    for (key, value) in lines {
        writeln!(text, "CVMFS_{key}={value}")
            .expect("writing to memory succeeds because a string takes every text");
    }
    text
}
