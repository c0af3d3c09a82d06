//! Parameters of CernVM-FS 2.13 and 2.14.

use super::*;

/// Names of the parameter schema of 2.14, without `CVMFS_`; `<n>` stands for a named cache.
const NAMES: &str = "ALIEN_CACHE CACHE_ALIEN ARCH AUTHZ_HELPER AUTHZ_KEY AUTHZ_SEARCH_PATH AUTO_UPDATE BACKOFF_INIT BACKOFF_MAX \
    BASE_ENV BLACKLIST BUNDLE_POOL_SIZE CACHE_BASE CACHE_CLEANUP_NONOPENLRU CACHE_DIR CACHE_LOWER_READONLY \
    CACHE_PLUGIN_DEBUGLOG CACHE_PLUGIN_LOCATOR CACHE_PLUGIN_SIZE CACHE_PRIMARY CACHE_QUOTA_LIMIT CACHE_REFCOUNT \
    CACHE_SERVER_MODE CACHE_SHARED CACHE_SYMLINKS CACHE_WORKSPACE CACHE_<n>_ALIEN CACHE_<n>_BASE \
    CACHE_<n>_CLEANUP_NONOPENLRU CACHE_<n>_DIR CACHE_<n>_LOWER CACHE_<n>_LOWER_READONLY CACHE_<n>_MALLOC \
    CACHE_<n>_QUOTA_LIMIT CACHE_<n>_REFCOUNT CACHE_<n>_SERVER_MODE CACHE_<n>_SHARED CACHE_<n>_SIZE CACHE_<n>_SYMLINKS \
    CACHE_<n>_TYPE CACHE_<n>_UPPER CACHE_<n>_WORKSPACE CATALOG_WATERMARK CHECK_PERMISSIONS CLAIM_OWNERSHIP CLIENT_PROFILE \
    CONFIG_REPOSITORY CONFIG_REPO_DEFAULT_ENV CONFIG_REPO_REQUIRED CPU_AFFINITY CWD_CACHE DEBUGLOG DEFAULT_DOMAIN \
    DNS_MAX_TTL DNS_MIN_TTL DNS_RETRIES DNS_ROAMING DNS_SERVER DNS_TIMEOUT ENFORCE_ACLS EXTERNAL_FALLBACK_PROXY \
    EXTERNAL_HTTP_PROXY EXTERNAL_MAX_SERVERS EXTERNAL_METALINK EXTERNAL_SERVER_URL EXTERNAL_TIMEOUT \
    EXTERNAL_TIMEOUT_DIRECT EXTERNAL_URL FAILOVER_INDEFINITELY FALLBACK_PROXY FOLLOW_REDIRECTS FQRN FULL_STRATUM1_URL \
    FUSE3_IDLE_THREADS FUSE3_MAX_THREADS FUSE_NOTIFY_INVALIDATION FUSE_PASSTHROUGH GID_MAP HIDE_MAGIC_XATTRS \
    HOST_RESET_AFTER HTTP_PROXY HTTP_TRACING HTTP_TRACING_HEADERS IGNORE_SIGNATURE INFLUX_EXTRA_FIELDS INFLUX_EXTRA_TAGS \
    INFLUX_HOST INFLUX_METRIC_NAME INFLUX_PORT INFLUX_SEND_DELTA INFO_HEADER INITIAL_GENERATION INSTRUMENT_FUSE \
    IPFAMILY_PREFER IPV4_ONLY KCACHE_TIMEOUT KEYS_DIR LIBRARY_PATH LOW_SPEED_LIMIT MAGIC_XATTRS_VISIBILITY \
    MAX_IPADDR_PER_PROXY MAX_RETRIES MAX_SERVERS MAX_TTL MAX_TTL_SECS MEMCACHE_SIZE METALINK_RESET_AFTER METALINK_URL \
    MOUNT_DIR NFILES NFS_INTERLEAVED_INODES NFS_SHARED NFS_SOURCE NOTIFICATION_SERVER OOM_SCORE_ADJ PAC_URLS PARMS \
    PARTIAL_REPLICA_MODE PREFETCH_FILEBUNDLES PREMOUNT_FUSE PROXY_RESET_AFTER PROXY_SHARD PROXY_TEMPLATE PUBLIC_KEY \
    QUOTA_LIMIT RELOAD_SOCKETS REPOSITORIES REPOSITORIES_NOMOUNT REPOSITORY_DATE REPOSITORY_NAME REPOSITORY_TAG ROOT_HASH \
    SEND_INFO_HEADER SERVER_CACHE_MODE SERVER_URL SHARED_CACHE STATFS_CACHE_TIMEOUT STREAMING_CACHE \
    STREAMING_CACHE_BUFFER_SIZE STRICT_MOUNT SUID SYSLOG_FACILITY SYSLOG_LEVEL SYSLOG_PREFIX SYSTEMD_NOKILL TALK_OWNER \
    TALK_SOCKET TELEMETRY_RATE TELEMETRY_SEND TIMEOUT TIMEOUT_DIRECT TRACEBUFFER TRACEBUFFER_THRESHOLD TRACEFILE \
    TRUSTED_CERTS UID_MAP USER USE_CDN USE_GEOAPI USE_MACFUSE_KEXT USE_SSL_SYSTEM_CA USYSLOG VERSION VERSION_NUMERIC \
    WORKSPACE WORLD_READABLE XATTR_PRIVILEGED_GIDS XATTR_PROTECTED_XATTRS";
/// Defaults that 2.13 and 2.14 added.
const DEFAULTS: &[(&str, &str)] = &[
    ("CVMFS_BUNDLE_POOL_SIZE", "8"),
    ("CVMFS_CACHE_CLEANUP_NONOPENLRU", "no"),
    ("CVMFS_FUSE_PASSTHROUGH", "no"),
    ("CVMFS_INFLUX_SEND_DELTA", "no"),
    ("CVMFS_PREMOUNT_FUSE", "yes"),
];

#[test]
fn all_parameters_of_the_reference_are_known() {
    for name in NAMES.split_ascii_whitespace() {
        let name = format!("CVMFS_{}", name.replace("<n>", "hpc"));
        assert!(table::row(&name).is_some(), "{name}");
    }
    for (name, default) in DEFAULTS {
        assert_eq!(table::row(name).map(|row| row.default), Some(*default), "{name}");
    }
    let site = Site::new(&[("/etc/cvmfs/default.local", "CVMFS_OF_TOMORROW=x\nCVMFS_PAC_URLS=http://h/x\n")]);
    let said: Vec<_> =
        site.load(None).findings().iter().map(|found| format!("{found}; {}", found.mend)).collect();
    assert!(said.len() == 2 && said.iter().all(|said| !said.contains("remove")), "{said:?}");
}

#[test]
fn releases_are_distinguished_by_files() {
    let site = Site::new(&[(
        "/etc/cvmfs/default.local",
        "if [ \"$CVMFS_VERSION_NUMERIC\" -ge 21302 ]; then CVMFS_STREAMING_CACHE=yes; fi\n\
         CVMFS_SYSLOG_PREFIX=$CVMFS_VERSION\nCVMFS_VERSION=1\n",
    )]);
    let parameters = site.load(Some("sw.test"));
    assert_eq!(shown(&parameters, "CVMFS_STREAMING_CACHE"), "yes # /etc/cvmfs/default.local:1");
    assert_eq!(shown(&parameters, "CVMFS_SYSLOG_PREFIX"), "2.14.0 # /etc/cvmfs/default.local:2");
    assert!(told(&parameters)[0].contains("CVMFS_VERSION is read-only"), "{:?}", told(&parameters));
}

#[test]
fn the_smaller_limit_of_the_ttl_counts() {
    for (minutes, seconds, limit) in [
        ("3", "5", Some(5)),
        ("1", "90", Some(60)),
        ("0", "5", Some(5)),
        ("2", "", Some(120)),
        ("0", "0", None),
    ] {
        let text = format!("CVMFS_MAX_TTL={minutes}\nCVMFS_MAX_TTL_SECS={seconds}\n");
        let parameters = Site::new(&[("/etc/cvmfs/default.local", &text)]).load(None);
        assert_eq!(parameters.longest_ttl(), Ok(limit.map(Duration::from_secs)), "{text}");
    }
}

#[test]
fn repositories_are_refused_by_name() {
    let text = "CVMFS_DEFAULT_DOMAIN=test\nCVMFS_REPOSITORIES=sw\nCVMFS_REPOSITORIES_NOMOUNT=sw,other.org\n";
    let site = Site::new(&[("/etc/cvmfs/default.local", text)]);
    for (name, refused) in [("sw.test", true), ("other.org", true), ("other.test", false)] {
        let allowed = site.load(Some(name)).allowed();
        assert_eq!(allowed.is_err(), refused, "{name}");
        let why = allowed.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(!refused || why.contains(&format!("{name} is not to be mounted")), "{why}");
    }
}

#[test]
fn metalink_servers_and_full_servers_are_configured() {
    let text = "CVMFS_HTTP_PROXY=DIRECT\nCVMFS_METALINK_URL='http://m/@fqrn@/;http://n'\nCVMFS_PROXY_RESET_AFTER=7\n\
        CVMFS_EXTERNAL_METALINK=http://e\nCVMFS_EXTERNAL_URL=http://f\nCVMFS_PARTIAL_REPLICA_MODE=FailOver\n";
    let site = Site::new(&[("/etc/cvmfs/default.local", text)]);
    let error = site.load(Some("sw.test")).servers(None).expect_err("no servers with all");
    assert!(error.to_string().contains("CVMFS_FULL_STRATUM1_URL is not set"), "{error}");
    site.write("/etc/cvmfs/default.local", &format!("{text}CVMFS_FULL_STRATUM1_URL=http://all/@fqrn@\n"));
    let parameters = site.load(Some("sw.test"));
    let mut servers = parameters.servers(None).expect("servers");
    parameters.add_external(&mut servers, None).expect("servers");
    assert_eq!(servers.urls, ["http://m/sw.test", "http://n"]);
    assert_eq!(
        (servers.metalink, &servers.full[..]),
        (Some(Duration::from_secs(7)), &["http://all/sw.test".to_owned()][..])
    );
    let external = servers.external.expect("servers");
    assert_eq!((&external.urls[..], external.metalink.is_some()), (&["http://e".to_owned()][..], true));
}

#[test]
fn templates_of_the_info_field_are_filled_in() {
    let value = |template: &str| {
        let text =
            format!("CVMFS_HTTP_PROXY=DIRECT\nCVMFS_SERVER_URL=http://a\nCVMFS_INFO_HEADER='{template}'\n");
        let site = Site::new(&[("/etc/cvmfs/default.local", &text)]);
        let servers = site.load(Some("sw.test")).servers(None);
        servers
            .map(|servers| servers.info_headers.template.unwrap_or_default())
            .map_err(|error| error.to_string())
    };
    let uid = rustix::process::getuid().as_raw();
    assert_eq!(value("%{path} of %{uid} %{pid}%{x}%x%{"), Ok(format!("%{{path}} of {uid} -%x%{{")));
    // A variable that each test process has.
    let home = std::env::var("PATH").expect("a path").replace(';', "%3B");
    assert_eq!(value("job%{env:PATH}%{env:NOT_THERE}"), Ok(format!("job {home}")));
    assert!(value("caf\u{e9}").expect_err("no field").contains("a field of a request can't have it"));
}

#[test]
fn contradictions_are_reported() {
    for (text, said) in [
        (
            "CVMFS_REPOSITORY_TAG=t\nCVMFS_REPOSITORY_DATE=2026-01-31T12:00:00Z\n",
            "CVMFS_REPOSITORY_TAG alone",
        ),
        ("CVMFS_BACKOFF_INIT=9\nCVMFS_BACKOFF_MAX=8\n", "CVMFS_BACKOFF_INIT is longer"),
        ("CVMFS_TELEMETRY_RATE=4\n", "every 5 s"),
        ("CVMFS_HTTP_TRACING_HEADERS=a:b\n", "no effect without CVMFS_HTTP_TRACING=yes"),
        ("CVMFS_INFO_HEADER=a\n", "no effect without CVMFS_SEND_INFO_HEADER=yes"),
        ("CVMFS_ALIEN_CACHE=/a\nCVMFS_SHARED_CACHE=yes\n", "CVMFS_ALIEN_CACHE and CVMFS_SHARED_CACHE"),
        ("CVMFS_ALIEN_CACHE=/a\nCVMFS_QUOTA_LIMIT=5\n", "CVMFS_ALIEN_CACHE and CVMFS_QUOTA_LIMIT"),
    ] {
        let findings = Site::new(&[("/etc/cvmfs/default.local", text)]).load(None).findings();
        assert!(matches!(&findings[..], [found] if found.what.contains(said)), "{text}: {findings:?}");
    }
    let fine = "CVMFS_BACKOFF_INIT=2\nCVMFS_ALIEN_CACHE=/a\nCVMFS_SHARED_CACHE=no\nCVMFS_QUOTA_LIMIT=-1\n";
    assert_eq!(Site::new(&[("/etc/cvmfs/default.local", fine)]).load(None).findings(), []);
}
