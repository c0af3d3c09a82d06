//! Repositories of `cvmfs_server` taken over and given back.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::name::RepositoryName;
use esker_maintain::{
    ExportedConfig, Outcome, ParameterRow, ServerConf, Takeover, TakeoverError, Upstream, remembered_spool,
};
use esker_object_storage::{StorageSettings, StorageUrl};
use esker_repository::{
    Disks, KeyFolder, NewRepository, RememberedStorage, RepositoryError, SettingsChange, Storage,
};

use crate::workshop::{NAME, Workshop, now, shared_keys};

fn name() -> RepositoryName {
    RepositoryName::parse(NAME).unwrap()
}

/// As `cvmfs_server mkfs` writes it.
fn server_conf(workshop: &Workshop, changes: &[(&str, &str)]) -> ServerConf {
    let root = workshop.root().display().to_string();
    let spool = workshop.folder.path().join("spool").display().to_string();
    let usual = [
        ("CREATOR_VERSION", "143"),
        ("REPOSITORY_NAME", NAME),
        ("REPOSITORY_TYPE", "stratum0"),
        ("USER", "builder"),
        ("SPOOL_DIR", &spool),
        ("UPSTREAM_STORAGE", &format!("local,{root}/data/txn,{root}")),
        ("USE_FILE_CHUNKING", "true"),
        ("MIN_CHUNK_SIZE", "4194304"),
        ("AVG_CHUNK_SIZE", "8388608"),
        ("MAX_CHUNK_SIZE", "16777216"),
        ("UNION_FS_TYPE", "overlayfs"),
        ("HASH_ALGORITHM", "sha1"),
        ("COMPRESSION_ALGORITHM", "default"),
        ("AUTO_TAG", "true"),
        ("AUTO_TAG_TIMESPAN", "\"\""),
        ("AUTOCATALOGS", "false"),
    ];
    let text: String =
        usual.iter().chain(changes).map(|(key, value)| format!("CVMFS_{key}={value}\n")).collect();
    let path = workshop.folder.path().join("server.conf");
    fs::write(&path, text).unwrap();
    ServerConf::read(&path).unwrap()
}

fn storage(workshop: &Workshop) -> Storage {
    Storage::open(&workshop.root()).unwrap()
}

fn plan(workshop: &Workshop, conf: &ServerConf) -> Result<Takeover, TakeoverError> {
    Takeover::plan(conf, &storage(workshop), &name(), &workshop.keys(), now())
}

fn row<'t>(taken: &'t Takeover, parameter: &str) -> &'t ParameterRow {
    taken.told.parameters.iter().find(|row| row.parameter == format!("CVMFS_{parameter}")).unwrap()
}

fn values(workshop: &Workshop) -> Vec<String> {
    let all = SettingsChange::list(&workshop.root()).unwrap();
    all.into_iter().map(|setting| format!("{}={}", setting.name, setting.value.unwrap())).collect()
}

#[test]
fn parameters_become_settings() {
    let workshop = Workshop::new();
    let spool = workshop.folder.path().join("spool");
    fs::create_dir(&spool).unwrap();
    let conf = server_conf(
        &workshop,
        &[
            ("COMPRESSION_ALGORITHM", "none"),
            ("AUTO_TAG_TIMESPAN", "\"2 weeks ago\""),
            ("INCLUDE_XATTRS", "true"),
            ("MAX_CHUNK_SIZE", "33554432"),
            ("AUTO_GC", "true"),
            ("AUTO_GC_LAPSE", "'12 hours ago'"),
            ("FILE_MBYTE_LIMIT", "2048"),
            ("ROOT_KCATALOG_LIMIT", "0"),
            ("ENFORCE_LIMITS", "true"),
            ("IGNORE_SPECIAL_FILES", "true"),
            ("VOMS_AUTHZ", "/cms"),
            ("USER", "$(whoami)"),
        ],
    );
    assert_eq!(conf.storage().unwrap(), Upstream::Folder(workshop.root()));
    let taken = plan(&workshop, &conf).unwrap();
    assert_eq!(taken.told.warnings, [""; 0]);
    for (parameter, outcome, note) in [
        ("COMPRESSION_ALGORITHM", Outcome::Taken, "compression=none"),
        ("AUTO_TAG_TIMESPAN", Outcome::Taken, "automatic_tags_for=14"),
        ("MAX_CHUNK_SIZE", Outcome::Taken, "chunk_sizes=4M,8M,32M"),
        ("AUTOCATALOGS", Outcome::Taken, "catalog_balance=off"),
        ("HASH_ALGORITHM", Outcome::InRepository, "in the head"),
        ("UNION_FS_TYPE", Outcome::NoMeaning, "mounts or tools"),
        ("AUTO_GC", Outcome::Taken, "automatic_collect=12h"),
        ("AUTO_GC_LAPSE", Outcome::Taken, "automatic_collect=12h"),
        ("FILE_MBYTE_LIMIT", Outcome::Taken, "file_size_limit=2G"),
        ("ROOT_KCATALOG_LIMIT", Outcome::Taken, "root_catalog_limit=off"),
        ("ENFORCE_LIMITS", Outcome::Taken, "enforce_limits=on"),
        ("IGNORE_SPECIAL_FILES", Outcome::Taken, "special_files=skip"),
        ("VOMS_AUTHZ", Outcome::NotSupported, ""),
        ("USER", Outcome::NotSupported, "shell code"),
    ] {
        let row = row(&taken, parameter);
        assert!(row.outcome == outcome && row.note.contains(note), "{row:?}");
    }
    let before = values(&workshop);
    taken.run(&storage(&workshop)).unwrap();
    let after = values(&workshop);
    assert_ne!(before, after);
    for value in
        ["compression=none", "xattrs=on", "mtime_ns=off", "catalog_balance=off", "chunk_sizes=4M,8M,32M"]
    {
        assert!(after.iter().any(|known| known == value), "{value}: {after:?}");
    }
    assert_eq!(remembered_spool(&workshop.root()), Some(spool.clone()));
    let mut repository = workshop.open();
    repository.share_with_spool(&spool).unwrap();
    assert!(spool.join("in_transaction.lock").exists());
}

#[test]
fn configurations_that_do_not_fit_are_refused() {
    let workshop = Workshop::new();
    for change in [
        ("REPOSITORY_TYPE", "stratum1"),
        ("REPOSITORY_NAME", "other.test"),
        ("CREATOR_VERSION", "2.1.6"),
        ("CREATOR_VERSION", "144"),
    ] {
        let refused = plan(&workshop, &server_conf(&workshop, &[change])).unwrap_err();
        assert!(matches!(&refused, TakeoverError::ServerConf { .. }), "{change:?}: {refused}");
    }
    let lacks_bucket = workshop.folder.path().join("s3.conf");
    fs::write(&lacks_bucket, "CVMFS_S3_HOST=h\n").unwrap();
    let lacks_bucket = format!("S3,/tmp,cvmfs/a@{}", lacks_bucket.display());
    for upstream in ["S3,/tmp,cvmfs/a@/none/s3.conf", "S3,/tmp,cvmfs/a", "gw,/tmp,http://g", &lacks_bucket] {
        let conf = server_conf(&workshop, &[("UPSTREAM_STORAGE", upstream)]);
        assert!(matches!(conf.storage(), Err(TakeoverError::ServerConf { .. })), "{upstream}");
    }
    let missing = ServerConf::read(&workshop.folder.path().join("none")).unwrap_err();
    assert!(matches!(&missing, TakeoverError::ServerConf { .. }), "{missing}");
}

#[test]
fn a_missing_reflog_and_foreign_keys_are_warnings() {
    let workshop = Workshop::new();
    fs::remove_file(workshop.root().join(".cvmfsreflog")).unwrap();
    let taken = plan(&workshop, &server_conf(&workshop, &[])).unwrap();
    assert!(
        taken.told.warnings.iter().any(|warning| warning.contains("no reflog")),
        "{:?}",
        taken.told.warnings
    );
    let late = esker_format::time::UnixTime(now().0 + 40 * 86_400);
    let conf = server_conf(&workshop, &[]);
    let taken = Takeover::plan(&conf, &storage(&workshop), &name(), &workshop.keys(), late).unwrap();
    assert!(
        taken.told.warnings.iter().any(|warning| warning.contains("expired")),
        "{:?}",
        taken.told.warnings
    );
}

/// A repository is given back with its settings, and taken over again with the same.
#[test]
fn an_exported_configuration_is_read_back() {
    let workshop = Workshop::new();
    let set = |pairs: &[(&str, &str)]| {
        let values =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned()))).collect();
        SettingsChange { values }.run(&workshop.root(), || Ok(workshop.open()), now()).unwrap();
    };
    set(&[
        ("compression", "none"),
        ("chunk_sizes", "1M,2M,8M"),
        ("automatic_tags_for", "30"),
        ("virtual_snapshots", "on"),
        ("ttl", "600"),
        ("mtime_ns", "off"),
        ("catalog_balance", "50000,500"),
        ("garbage_collectable", "off"),
        ("file_size_limit", "512M"),
        ("nested_catalog_limit", "off"),
        ("enforce_limits", "on"),
        ("external_data", "on"),
        ("special_files", "skip"),
        ("automatic_collect", "12h"),
        ("automatic_collect_keep", "7d"),
    ]);
    let before = values(&workshop);
    let exported = ExportedConfig::new(&workshop.root(), &name(), "builder", None, None).unwrap();
    let folder = workshop.folder.path().join("repositories.d").join(NAME);
    let [path, client] = &exported.write(&folder).unwrap()[..] else { panic!() };
    assert!(
        matches!(exported.write(&folder), Err(TakeoverError::Repository(RepositoryError::File { .. }))),
        "files are not replaced"
    );
    // cvmfs_server sources both.
    for (path, variable, value) in [
        (path, "CVMFS_AUTO_TAG_TIMESPAN", "30 days ago"),
        (path, "CVMFS_GARBAGE_COLLECTION", "false"),
        (path, "CVMFS_SPOOL_DIR", "/var/spool/cvmfs/made.test"),
        (client, "CVMFS_SERVER_URL", "http://localhost/cvmfs/made.test"),
    ] {
        let script = format!(". {}; printf %s \"${variable}\"", path.display());
        let output = Command::new("sh").arg("-euc").arg(script).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), value.replace("made.test", NAME), "{variable}");
    }
    fs::remove_file(workshop.root().join(".esker/settings.json")).unwrap();
    let again = plan(&workshop, &ServerConf::read(path).unwrap()).unwrap();
    again.run(&storage(&workshop)).unwrap();
    assert_eq!(values(&workshop), before);
}

/// `scripts/judge-handover.sh` has `cvmfs_server` itself go on with it.
#[test]
fn the_commands_of_an_export_make_the_spool_folder() {
    let workshop = Workshop::new();
    let folder = workshop.folder.path().display().to_string();
    let spool = workshop.folder.path().join("spool");
    let exported = ExportedConfig::new(&workshop.root(), &name(), "root", None, Some(&spool)).unwrap();
    let last = exported.commands.last().unwrap();
    assert_eq!(*last, format!("cvmfs_server mount {NAME}"));
    let here = |line: &&String| !line.starts_with("chown") && *line != last;
    let script: Vec<String> = exported.commands.iter().filter(here).cloned().collect();
    let script = script.join("\n").replace(" /cvmfs/", &format!(" {folder}/cvmfs/"));
    let script = script.replace("/etc/fstab", &format!("{folder}/fstab"));
    assert!(Command::new("sh").args(["-euc", &script]).status().unwrap().success(), "{script}");
    let reflog = fs::read(workshop.root().join(".cvmfsreflog")).unwrap();
    let hash = ContentHash::of(HashAlgorithm::Sha1, &reflog).to_string();
    assert_eq!(fs::read_to_string(spool.join("reflog.chksum")).unwrap(), hash);
    assert!(spool.join("scratch/current").is_dir() && spool.join("client.local").exists());
    let fstab = fs::read_to_string(workshop.folder.path().join("fstab")).unwrap();
    assert_eq!(fstab.lines().count(), exported.fstab.len());
}

#[test]
fn values_that_a_shell_would_evaluate_are_not_exported() {
    let workshop = Workshop::new();
    for owner in ["$(id)", "a b", "x;y", "`id`", "a\nb"] {
        let refused = ExportedConfig::new(&workshop.root(), &name(), owner, None, None).unwrap_err();
        assert!(matches!(&refused, TakeoverError::ServerConf { .. }), "{owner}: {refused}");
    }
    let odd: PathBuf = "/spool/$x".into();
    assert!(ExportedConfig::new(&workshop.root(), &name(), "root", None, Some(&odd)).is_err());
}

#[test]
fn a_bucket_of_a_configuration_becomes_object_storage() {
    let workshop = Workshop::new();
    let path = workshop.folder.path().join("s3.conf");
    let s3 = "CVMFS_S3_HOST=s3.example.org\nCVMFS_S3_PORT=9000\nCVMFS_S3_BUCKET=software\nCVMFS_S3_DNS_BUCKETS=false\n\
              CVMFS_S3_ACCESS_KEY=key\nCVMFS_S3_SECRET_KEY=secret\nCVMFS_S3_REGION=eu-1\nCVMFS_S3_USE_HTTPS=on\n";
    fs::write(&path, s3).unwrap();
    let upstream = format!("S3,/var/spool/tmp,cvmfs/{NAME}@{}", path.display());
    let conf = server_conf(&workshop, &[("UPSTREAM_STORAGE", &upstream)]);
    let Upstream::Bucket(bucket) = conf.storage().unwrap() else { panic!() };
    assert_eq!(bucket.storage.url.to_string(), format!("s3://software/cvmfs/{NAME}"));
    let settings = &bucket.storage.settings;
    assert_eq!(settings.endpoint.as_deref(), Some("https://s3.example.org:9000"));
    assert_eq!((settings.region.as_deref(), settings.path_style), (Some("eu-1"), Some(true)));
    assert_eq!(bucket.credentials.get("AWS_SECRET_ACCESS_KEY"), Some("secret"));
    assert_eq!(bucket.warnings.len(), 2, "{:?}", bucket.warnings);
}

/// The file that is written for a bucket is read as the same bucket.
#[test]
fn a_bucket_is_exported_and_read_back() {
    let server = esker_testkit::s3::S3Server::start();
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join(NAME);
    let keys = [("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")];
    let settings = StorageSettings { endpoint: Some(server.endpoint()), ..StorageSettings::default() };
    let url = StorageUrl::parse(&format!("s3://{}/cvmfs/{NAME}", esker_testkit::s3::BUCKET)).unwrap();
    let remembered = RememberedStorage { url, settings };
    remembered.write(&place).unwrap();
    let storage = remembered.open_with(&Disks::default(), &place, keys.into_iter().collect()).unwrap();
    let storage = Storage::new(&place, storage);
    let keys = KeyFolder::new(shared_keys().join("keys"), &name());
    NewRepository::new(name()).create(&storage, &keys, now()).unwrap();

    let exported = ExportedConfig::new(&storage, &name(), "root", None, None).unwrap();
    assert_eq!(exported.warnings.len(), 2, "{:?}", exported.warnings);
    let [server_conf, client_conf, s3_conf] = &exported.write(&folder.path().join("conf")).unwrap()[..]
    else {
        panic!()
    };
    let text = fs::read_to_string(server_conf).unwrap();
    let usual = format!("/etc/cvmfs/repositories.d/{NAME}/s3.conf");
    assert!(
        text.contains(&format!(
            "CVMFS_UPSTREAM_STORAGE=S3,/var/spool/cvmfs/{NAME}/tmp,cvmfs/{NAME}@{usual}\n"
        ))
    );
    fs::write(server_conf, text.replace(&usual, &s3_conf.display().to_string())).unwrap();
    assert!(fs::read_to_string(client_conf).unwrap().contains(&remembered.public_url().unwrap()));
    let conf = ServerConf::read(server_conf).unwrap();
    let Upstream::Bucket(bucket) = conf.storage().unwrap() else { panic!() };
    assert_eq!(bucket.storage.url, remembered.url);
    assert_eq!(bucket.storage.settings.endpoint, remembered.settings.endpoint);
    let taken = Takeover::plan(&conf, &storage, &name(), &keys, now()).unwrap();
    assert_eq!(taken.told.storage, remembered.url.to_string());
    taken.run(&storage).unwrap();
    assert!(place.join(".esker/settings.json").exists());
}
