//! Table of all parameters.

use super::Kind::{
    BytesPerSecond, Count, Date, Hash, Megabytes, Minutes, Name, Names, Number, OneOf, Path, Paths, Proxies,
    Seconds, Switch, Text, Urls,
};
use super::State::{Honoured, Meaningless, Not};
use super::{Row, Setter};

/// Builds the table: one line for each row, with name, other names in brackets, kind, default, state, and `Local` if only
/// files of this machine set it.
macro_rules! rows {
    ($($name:literal [$($alias:literal)*] $kind:expr, $default:literal, $state:expr $(, $local:ident)?;)*) => {
        &[$(Row {
            name: $name,
            aliases: &[$($alias),*],
            kind: $kind,
            default: $default,
            state: $state,
            setter: rows!(@ $($local)?),
        }),*]
    };
    (@) => { Setter::Any };
    (@ Local) => { Setter::Local };
}

const AUTHORITIES: &str = "authorities_are_those_of_the_configuration_and_the_environment";
const EXTERNAL: &str = "external_data_is_fetched_from_the_configured_servers";
const METALINK: &str = "servers_that_a_metalink_server_names_are_used";
const FULL: &str = "what_a_partial_replica_lacks_comes_from_servers_with_all";
const GEO: &str = "servers_and_fallback_proxies_are_used_in_the_order_of_the_geo_api";
const PATIENCE: &str = "timeouts_of_silent_proxies_and_servers_are_those_configured";
const PAUSES: &str = "a_broken_connection_is_retried_as_configured";
const SILENT_DNS: &str = "queries_to_a_silent_name_server_are_limited";
const DNS_TTL: &str = "a_name_is_resolved_again_after_its_ttl";
const FAMILY: &str = "addresses_of_the_preferred_family_are_used";
const REQUESTS: &str = "network_parameters_act_on_the_requests_of_mounts";
const NFS: &str = "mounts for export by NFS are not made";
const MEMORY: &str = "a_cache_in_memory_leaves_no_file";
const CACHES: &str = "named_caches_are_in_their_configured_folders";
const TELEMETRY: &str = "counters_are_sent_to_the_configured_collector";
const SYSLOG: &str = "fail_overs_are_written_to_the_system_log";
const TALK: &str = "commands_of_cvmfs_talk_are_answered";
const TRACER: &str = "`esker profile record` records the files that are read";
const LOADER: &str = "there is no loader beside the file system";
const BY_NAME: &str = "a_name_is_enough_where_cernvm_fs_is_configured";
const FALLBACKS: &str = "configured_fallbacks_are_used";
const MISSING: &str = "missing_settings_of_a_name_are_reported_with_advice";
const CONFIG_FIRST: &str = "the_configuration_repository_is_mounted_first";
const ACTS: &str = "parameters_act_on_mounts";
const ACLS: &str = "access_control_lists_are_enforced_if_configured";
const AUTO: &str = "auto_means_the_proxy_of_the_environment";
const LISTED: &str = "attributes_are_listed_where_configured";
const PROTECTED: &str = "protected_attributes_are_shown_to_privileged_groups_only";
const IN_USE: &str = "objects in use are never evicted";
const SYMLINKS: &str = "the kernel always keeps targets until a notification of their change";
const FILES: &str = "files_of_a_site_have_the_values_of_the_reference";

pub(super) const PARTS: &[(&str, &[Row])] = &[
    ("Repositories and servers", SERVERS),
    ("Network", NETWORK),
    ("Cache", CACHE),
    ("Mounts", MOUNTS),
    ("Processes and logs", PROCESSES),
    ("Variables that the files themselves use", FILES_OWN),
];

const SERVERS: &[Row] = rows! {
    "CVMFS_SERVER_URL" [] Urls, "", Honoured(BY_NAME);
    "CVMFS_METALINK_URL" [] Urls, "", Honoured(METALINK);
    "CVMFS_METALINK_RESET_AFTER" [] Seconds, "", Honoured(METALINK);
    "CVMFS_FULL_STRATUM1_URL" [] Urls, "", Honoured(FULL);
    "CVMFS_PARTIAL_REPLICA_MODE" [] OneOf(&["off", "fail", "failover"]), "off", Honoured(FULL);
    "CVMFS_HTTP_PROXY" [] Proxies, "", Honoured(BY_NAME);
    "CVMFS_FALLBACK_PROXY" [] Proxies, "", Honoured(FALLBACKS);
    "http_proxy" [] Text, "", Honoured(AUTO);
    "CVMFS_PAC_URLS" [] Urls, "", Not("proxy configuration files are programs, and not run: name in CVMFS_HTTP_PROXY the proxies that the file names");
    "CVMFS_PUBLIC_KEY" [] Paths, "", Honoured(ACTS);
    "CVMFS_KEYS_DIR" [] Path, "/etc/cvmfs/keys", Honoured(BY_NAME);
    "CVMFS_TRUSTED_CERTS" [] Path, "", Meaningless("no client of CernVM-FS 2.14 reads it");
    "CVMFS_IGNORE_SIGNATURE" [] Text, "", Meaningless("no client of CernVM-FS 2.14 reads it");
    "_CVMFS_DEVEL_IGNORE_SIGNATURE_FAILURES" [] Switch, "no", Not("signatures and hashes are always checked");
    "CVMFS_BLACKLIST" [] Path, "/etc/cvmfs/blacklist", Honoured(ACTS), Local;
    "CVMFS_CONFIG_REPOSITORY" [] Name, "", Honoured(CONFIG_FIRST);
    "CVMFS_CONFIG_REPO_REQUIRED" [] Switch, "no", Honoured(MISSING);
    "CVMFS_DEFAULT_DOMAIN" [] Name, "", Honoured(FALLBACKS);
    "CVMFS_REPOSITORIES" [] Names, "", Honoured(MISSING);
    "CVMFS_REPOSITORIES_NOMOUNT" [] Names, "", Honoured("repositories_are_refused_by_name");
    "CVMFS_STRICT_MOUNT" [] Switch, "no", Honoured(MISSING);
    "CVMFS_ROOT_HASH" [] Hash, "", Honoured("a_configured_revision_is_shown");
    "CVMFS_REPOSITORY_TAG" [] Text, "", Honoured("a_configured_revision_is_shown");
    "CVMFS_REPOSITORY_DATE" [] Date, "", Honoured("a_configured_revision_is_shown");
    "CVMFS_ALT_ROOT_PATH" [] Switch, "no", Not("a head says itself whether its catalogs are at their other path; with CVMFS_ROOT_HASH the usual one is used");
    "CVMFS_AUTO_UPDATE" [] Switch, "yes", Honoured("a_configured_revision_is_shown");
    "CVMFS_MAX_TTL" [] Minutes, "0", Honoured("the_maximum_ttl_of_the_options_is_kept");
    "CVMFS_MAX_TTL_SECS" [] Seconds, "0", Honoured("the_smaller_limit_of_the_ttl_counts");
    "CVMFS_USE_GEOAPI" [] Switch, "no", Honoured(GEO);
    "CVMFS_MAX_SERVERS" [] Count, "0", Honoured(GEO);
    "ESKER_SERVER_ORDER" [] OneOf(&["given", "round-trip", "geo"]), "given", Honoured("the_fastest_server_is_used");
    "CVMFS_EXTERNAL_URL" [] Urls, "", Honoured(EXTERNAL);
    "CVMFS_EXTERNAL_METALINK" [] Urls, "", Honoured(METALINK);
    "CVMFS_EXTERNAL_HTTP_PROXY" [] Proxies, "DIRECT", Honoured(EXTERNAL);
    "CVMFS_EXTERNAL_FALLBACK_PROXY" [] Proxies, "", Honoured(EXTERNAL);
    "CVMFS_EXTERNAL_TIMEOUT" [] Seconds, "", Honoured(EXTERNAL);
    "CVMFS_EXTERNAL_TIMEOUT_DIRECT" [] Seconds, "", Honoured(EXTERNAL);
    "CVMFS_EXTERNAL_MAX_SERVERS" [] Count, "0", Honoured(EXTERNAL);
    "CVMFS_EXTERNAL_SERVER_URL" [] Urls, "", Meaningless("no client of CernVM-FS 2.14 reads it");
};

const NETWORK: &[Row] = rows! {
    "CVMFS_TIMEOUT" [] Seconds, "5", Honoured(PATIENCE);
    "CVMFS_TIMEOUT_DIRECT" [] Seconds, "10", Honoured(PATIENCE);
    "CVMFS_LOW_SPEED_LIMIT" [] BytesPerSecond, "1024", Honoured("the_next_server_replaces_a_failed_one");
    "CVMFS_MAX_RETRIES" [] Count, "1", Honoured(PAUSES);
    "CVMFS_BACKOFF_INIT" [] Seconds, "2", Honoured(PAUSES);
    "CVMFS_BACKOFF_MAX" [] Seconds, "10", Honoured(PAUSES);
    "CVMFS_PROXY_RESET_AFTER" [] Seconds, "300", Honoured("a_route_marked_down_is_used_again_after_a_while");
    "CVMFS_HOST_RESET_AFTER" [] Seconds, "1800", Honoured("a_route_marked_down_is_used_again_after_a_while");
    "CVMFS_PROXY_SHARD" [] Switch, "no", Honoured(REQUESTS);
    "CVMFS_PROXY_SHARDING_POLICY" [] Text, "", Not("it names a plugin; there is none, here or there");
    "CVMFS_FAILOVER_INDEFINITELY" [] Switch, "no", Honoured("failover_indefinitely_repeats_until_the_deadline");
    "CVMFS_DNS_TIMEOUT" [] Seconds, "3", Honoured(SILENT_DNS);
    "CVMFS_DNS_RETRIES" [] Count, "1", Honoured(SILENT_DNS);
    "CVMFS_DNS_MIN_TTL" [] Seconds, "60", Honoured(DNS_TTL);
    "CVMFS_DNS_MAX_TTL" [] Seconds, "86400", Honoured(DNS_TTL);
    "CVMFS_DNS_SERVER" [] Text, "", Honoured("each_address_of_a_name_is_a_proxy");
    "HOSTALIASES" [] Path, "", Not("names are looked up in /etc/hosts and by name servers: put the alias into /etc/hosts");
    "CVMFS_DNS_ROAMING" [] Switch, "no", Meaningless("names are looked up again when their time is over, with the servers of that time");
    "CVMFS_IPFAMILY_PREFER" [] OneOf(&["4", "6"]), "4", Honoured(FAMILY);
    "CVMFS_MAX_IPADDR_PER_PROXY" [] Count, "0", Honoured("no_more_addresses_are_used_than_allowed");
    "CVMFS_IPV4_ONLY" [] Text, "", Honoured(FAMILY);
    "CVMFS_FOLLOW_REDIRECTS" [] Switch, "no", Honoured(REQUESTS);
    "CVMFS_SEND_INFO_HEADER" [] Switch, "no", Honoured(REQUESTS);
    "CVMFS_INFO_HEADER" [] Text, "", Honoured("templates_of_the_info_field_are_filled_in");
    "CVMFS_HTTP_TRACING" [] Switch, "no", Honoured(REQUESTS);
    "CVMFS_HTTP_TRACING_HEADERS" [] Text, "", Honoured(REQUESTS);
    "CVMFS_USE_SSL_SYSTEM_CA" [] Switch, "yes", Honoured(AUTHORITIES);
    "X509_CERT_DIR" [] Path, "/etc/grid-security/certificates", Honoured(AUTHORITIES);
    "X509_CERT_BUNDLE" [] Path, "", Honoured(AUTHORITIES);
    "ESKER_HTTP2" [] Switch, "yes", Honoured("http2_is_used_if_enabled_and_offered");
    "ESKER_CA" [] Paths, "", Honoured(AUTHORITIES);
    "CVMFS_PROXY_TEMPLATE" [] Text, "", Honoured(GEO);
};

const CACHE: &[Row] = rows! {
    "CVMFS_CACHE_BASE" [] Path, "/var/lib/cvmfs", Honoured(BY_NAME), Local;
    "CVMFS_CACHE_DIR" [] Path, "", Honoured(CACHES), Local;
    "CVMFS_SHARED_CACHE" ["CVMFS_CACHE_SHARED"] Switch, "yes", Honoured(BY_NAME);
    "CVMFS_QUOTA_LIMIT" ["CVMFS_CACHE_QUOTA_LIMIT"] Megabytes, "4000", Honoured(BY_NAME);
    "CVMFS_ALIEN_CACHE" ["CVMFS_CACHE_ALIEN"] Path, "", Honoured(CACHES), Local;
    "CVMFS_CACHE_PRIMARY" [] Text, "", Honoured(CACHES);
    "CVMFS_CACHE_<name>_TYPE" [] OneOf(&["posix", "ram", "tiered", "external"]), "posix", Honoured(MEMORY);
    "CVMFS_CACHE_<name>_BASE" [] Path, "", Honoured(CACHES), Local;
    "CVMFS_CACHE_<name>_DIR" [] Path, "", Honoured(CACHES), Local;
    "CVMFS_CACHE_<name>_SHARED" [] Switch, "no", Honoured(CACHES);
    "CVMFS_CACHE_<name>_QUOTA_LIMIT" [] Megabytes, "1024", Honoured(CACHES);
    "CVMFS_CACHE_<name>_ALIEN" [] Path, "", Honoured(CACHES), Local;
    "CVMFS_CACHE_<name>_SERVER_MODE" [] Switch, "no", Meaningless("publishing needs no mount");
    "CVMFS_CACHE_<name>_WORKSPACE" [] Path, "", Meaningless("sockets and logs are in the runtime folder, /run/esker for root");
    "CVMFS_CACHE_<name>_REFCOUNT" [] Switch, "no", Meaningless("an object never has more than one descriptor");
    "CVMFS_CACHE_<name>_CLEANUP_NONOPENLRU" [] Switch, "no", Meaningless(IN_USE);
    "CVMFS_CACHE_<name>_SYMLINKS" [] Switch, "no", Meaningless(SYMLINKS);
    "CVMFS_CACHE_<name>_SIZE" [] Text, "", Honoured(MEMORY);
    "CVMFS_CACHE_<name>_MALLOC" [] OneOf(&["heap", "libc"]), "heap", Meaningless("a cache in memory consists of files of a tmpfs");
    "CVMFS_CACHE_<name>_UPPER" [] Text, "", Honoured(CACHES);
    "CVMFS_CACHE_<name>_LOWER" [] Text, "", Honoured(CACHES);
    "CVMFS_CACHE_<name>_LOWER_READONLY" [] Switch, "no", Honoured(CACHES);
    "CVMFS_CACHE_<name>_LOCATOR" [] Text, "", Not("there are no cache plugins");
    "CVMFS_CACHE_<name>_CMDLINE" [] Text, "", Not("there are no cache plugins");
    "CVMFS_CACHE_PLUGIN_LOCATOR" [] Text, "", Not("there are no cache plugins");
    "CVMFS_CACHE_PLUGIN_SIZE" [] Text, "", Not("there are no cache plugins");
    "CVMFS_CACHE_PLUGIN_DEBUGLOG" [] Path, "", Not("there are no cache plugins");
    "CVMFS_SERVER_CACHE_MODE" ["CVMFS_CACHE_SERVER_MODE"] Switch, "no", Meaningless("publishing needs no mount");
    "CVMFS_CACHE_REFCOUNT" [] Switch, "no", Meaningless("an object never has more than one descriptor");
    "CVMFS_CACHE_LOWER_READONLY" [] Switch, "no", Honoured(CACHES);
    "CVMFS_CACHE_CLEANUP_NONOPENLRU" [] Switch, "no", Meaningless(IN_USE);
    "CVMFS_STREAMING_CACHE" [] Switch, "no", Honoured("streamed_files_are_not_cached");
    "CVMFS_STREAMING_CACHE_BUFFER_SIZE" [] Count, "", Meaningless("parts of a streamed file are of the size that its reader asks for");
    "CVMFS_PREFETCH_FILEBUNDLES" [] Switch, "yes", Honoured("bundles_can_be_switched_off");
    "CVMFS_BUNDLE_POOL_SIZE" [] Count, "8", Meaningless("the number of requests in flight follows the network");
    "CVMFS_WORKSPACE" ["CVMFS_CACHE_WORKSPACE"] Path, "", Meaningless("sockets and logs are in the runtime folder, /run/esker for root");
    "CVMFS_NFILES" [] Count, "131072", Meaningless("the limit of the process is raised as far as it may be");
    "CVMFS_CATALOG_WATERMARK" [] Count, "", Meaningless("catalogs hold neither descriptors nor memory of their own");
    "CVMFS_MEMCACHE_SIZE" [] Count, "16", Meaningless("catalogs are read where they lie, without caches of rows");
};

const MOUNTS: &[Row] = rows! {
    "CVMFS_MOUNT_DIR" [] Path, "/cvmfs", Honoured(CONFIG_FIRST), Local;
    "CVMFS_KCACHE_TIMEOUT" [] Seconds, "60", Meaningless("the kernel keeps entries until a notification of their change");
    "CVMFS_STATFS_CACHE_TIMEOUT" [] Seconds, "0", Meaningless("df is answered from memory");
    "CVMFS_CACHE_SYMLINKS" [] Switch, "no", Meaningless(SYMLINKS);
    "CVMFS_FUSE_NOTIFY_INVALIDATION" [] Switch, "on", Meaningless("the kernel always gets notifications");
    "CVMFS_CHECK_PERMISSIONS" [] Switch, "yes", Meaningless("the kernel always checks them");
    "CVMFS_CLAIM_OWNERSHIP" [] Switch, "yes", Honoured(BY_NAME);
    "CVMFS_UID_MAP" [] Path, "", Honoured(ACTS), Local;
    "CVMFS_GID_MAP" [] Path, "", Honoured(ACTS), Local;
    "CVMFS_WORLD_READABLE" [] Switch, "no", Honoured(ACTS);
    "CVMFS_ENFORCE_ACLS" [] Switch, "no", Honoured(ACLS);
    "CVMFS_FUSE_PASSTHROUGH" [] Switch, "no", Meaningless("it needs root, and reads of pages in memory pass no daemon anyway");
    "CVMFS_PREMOUNT_FUSE" [] Switch, "yes", Meaningless("mounts are made without fusermount where the kernel allows it");
    "CVMFS_USE_MACFUSE_KEXT" [] Switch, "no", Meaningless("it is for macOS");
    "CVMFS_MOUNT_RW" [] Switch, "no", Not("mounts are always read-only");
    "CVMFS_SUID" [] Switch, "no", Not("nothing in a mount gains rights, even if root mounts: a repository is trusted with its content, not with root");
    "CVMFS_HIDE_MAGIC_XATTRS" [] Switch, "", Honoured(LISTED);
    "CVMFS_MAGIC_XATTRS_VISIBILITY" [] OneOf(&["never", "rootonly", "always"]), "rootonly", Honoured(LISTED);
    "CVMFS_XATTR_PRIVILEGED_GIDS" [] Text, "", Honoured(PROTECTED), Local;
    "CVMFS_XATTR_PROTECTED_XATTRS" [] Text, "", Honoured(PROTECTED), Local;
    "CVMFS_NFS_SOURCE" [] Switch, "no", Not(NFS);
    "CVMFS_NFS_SHARED" [] Path, "", Not(NFS);
    "CVMFS_NFS_INTERLEAVED_INODES" [] Text, "", Not(NFS);
    "CVMFS_AUTHZ_HELPER" [] Path, "", Not("repositories with members only are not shown");
    "CVMFS_AUTHZ_<name>" [] Text, "", Not("repositories with members only are not shown");
    "CVMFS_AUTHZ_SEARCH_PATH" [] Path, "/usr/libexec/cvmfs/authz", Meaningless("repositories with members only are not shown");
    "CVMFS_NOTIFICATION_SERVER" [] Text, "", Honoured("a_configured_notification_server_announces_revisions");
    "CVMFS_INITIAL_GENERATION" [] Count, "0", Not("it is for tests of the reference");
};

const PROCESSES: &[Row] = rows! {
    "CVMFS_USER" [] Name, "cvmfs", Meaningless("mounts by root are served by root, without set-user-ID programs");
    "CVMFS_RELOAD_SOCKETS" [] Path, "/var/run/cvmfs", Meaningless(LOADER);
    "CVMFS_LIBRARY_PATH" [] Path, "", Meaningless(LOADER);
    "CVMFS_TALK_SOCKET" [] Path, "", Honoured(TALK), Local;
    "CVMFS_TALK_OWNER" [] Name, "", Honoured(TALK), Local;
    "CVMFS_SYSLOG_LEVEL" [] OneOf(&["1", "2", "3"]), "3", Honoured(SYSLOG);
    "CVMFS_SYSLOG_FACILITY" [] OneOf(&["0", "1", "2", "3", "4", "5", "6", "7"]), "", Honoured(SYSLOG);
    "CVMFS_SYSLOG_PREFIX" [] Text, "", Honoured(SYSLOG);
    "ESKER_SYSLOG" [] Path, "/dev/log", Honoured(SYSLOG), Local;
    "CVMFS_USYSLOG" [] Path, "", Honoured(SYSLOG), Local;
    "CVMFS_DEBUGLOG" [] Path, "", Not("there is one program, not another one for debugging: `esker mount --foreground --verbose` and `esker status --json` show what it does");
    "CVMFS_TRACEFILE" [] Path, "", Not(TRACER);
    "CVMFS_TRACEBUFFER" [] Count, "8192", Meaningless(TRACER);
    "CVMFS_TRACEBUFFER_THRESHOLD" [] Count, "7000", Meaningless(TRACER);
    "CVMFS_INSTRUMENT_FUSE" [] Switch, "no", Meaningless("requests are always counted; see `esker status --json`");
    "CVMFS_OOM_SCORE_ADJ" [] Number, "", Honoured(ACTS), Local;
    "CVMFS_CPU_AFFINITY" [] Text, "", Honoured(ACTS), Local;
    "CVMFS_SYSTEMD_NOKILL" [] Switch, "no", Honoured(ACTS), Local;
    "CVMFS_FUSE3_MAX_THREADS" [] Count, "", Meaningless("workers come and go as requests do");
    "CVMFS_FUSE3_IDLE_THREADS" [] Count, "", Meaningless("workers come and go as requests do");
    "CVMFS_TELEMETRY_SEND" [] Switch, "no", Honoured(TELEMETRY), Local;
    "CVMFS_TELEMETRY_RATE" [] Seconds, "300", Honoured(TELEMETRY);
    "CVMFS_INFLUX_HOST" [] Text, "", Honoured(TELEMETRY), Local;
    "CVMFS_INFLUX_PORT" [] Count, "", Honoured(TELEMETRY), Local;
    "CVMFS_INFLUX_METRIC_NAME" [] Text, "", Honoured(TELEMETRY);
    "CVMFS_INFLUX_EXTRA_TAGS" [] Text, "", Honoured(TELEMETRY);
    "CVMFS_INFLUX_EXTRA_FIELDS" [] Text, "", Honoured(TELEMETRY);
    "CVMFS_INFLUX_SEND_DELTA" [] Switch, "no", Honoured("lines_have_totals_and_differences");
    "CVMFS_CWD_CACHE" [] Text, "", Meaningless("CernVM-FS has ignored it since 2.4");
    "CERNVM_UUID" [] Text, "", Not("servers do not distinguish machines");
    "CERNVM_GRID_UI_VERSION" [] Text, "", Meaningless("no client of CernVM-FS 2.14 reads it");
};

const FILES_OWN: &[Row] = rows! {
    "CVMFS_CLIENT_PROFILE" [] Text, "", Honoured(FILES);
    "CVMFS_USE_CDN" [] Switch, "no", Honoured(FILES);
    "CVMFS_FQRN" [] Name, "", Honoured(FILES);
    "CVMFS_ARCH" [] Text, "", Honoured(FILES);
    "CVMFS_VERSION" [] Text, "2.14.0", Honoured(FILES);
    "CVMFS_VERSION_NUMERIC" [] Count, "21400", Honoured(FILES);
    "CVMFS_BASE_ENV" [] Text, "", Honoured(FILES);
    "CVMFS_CONFIG_REPO_DEFAULT_ENV" [] Text, "", Honoured(FILES);
    "CVMFS_REPOSITORY_NAME" [] Name, "", Meaningless("tools of CernVM-FS set it for their own use");
    "CVMFS_PARMS" [] Text, "", Meaningless("tools of CernVM-FS set it for their own use");
};
