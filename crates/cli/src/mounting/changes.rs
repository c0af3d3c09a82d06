//! Compares the options of a mount with those that its configuration has now.

use esker_cache_share::memory::is_memory;
use esker_node::mount_spec::{ContentSpec, ImagePlace, MountSpec, RepositorySpec};
use esker_store::Servers;
use serde::Serialize;

/// Names of the settings that differ.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) applied: Vec<String>,
    pub(crate) needs_new_mount: Vec<String>,
}

/// Settings of servers by the word that begins their lines in the text form.
const SERVERS: [(&str, &str); 27] = [
    ("server", "CVMFS_SERVER_URL"),
    ("proxies", "CVMFS_HTTP_PROXY"),
    ("fallback", "CVMFS_FALLBACK_PROXY"),
    ("sharding", "CVMFS_PROXY_SHARD"),
    ("redirects", "CVMFS_FOLLOW_REDIRECTS"),
    ("order", "ESKER_SERVER_ORDER"),
    ("geo-name", "CVMFS_PROXY_TEMPLATE"),
    ("most", "CVMFS_MAX_SERVERS"),
    ("full", "CVMFS_FULL_STRATUM1_URL"),
    ("metalink", "CVMFS_METALINK_URL"),
    ("tell-what", "CVMFS_SEND_INFO_HEADER"),
    ("tell-template", "CVMFS_INFO_HEADER"),
    ("tell", "CVMFS_HTTP_TRACING_HEADERS"),
    ("time-proxy", "CVMFS_TIMEOUT"),
    ("time-direct", "CVMFS_TIMEOUT_DIRECT"),
    ("low-speed", "CVMFS_LOW_SPEED_LIMIT"),
    ("retries", "CVMFS_MAX_RETRIES"),
    ("first-pause", "CVMFS_BACKOFF_INIT"),
    ("longest-pause", "CVMFS_BACKOFF_MAX"),
    ("proxy-reset", "CVMFS_PROXY_RESET_AFTER"),
    ("server-reset", "CVMFS_HOST_RESET_AFTER"),
    ("dns-time", "CVMFS_DNS_TIMEOUT"),
    ("dns-retries", "CVMFS_DNS_RETRIES"),
    ("dns-server", "CVMFS_DNS_SERVER"),
    ("family", "CVMFS_IPFAMILY_PREFER"),
    ("addresses", "CVMFS_MAX_IPADDR_PER_PROXY"),
    ("external", "CVMFS_EXTERNAL_URL"),
];

/// Puts what can change under a mount from `new` into the options of a mount; returns them with the differences. `None` if the
/// content is another one.
pub(crate) fn merge(old: &MountSpec, new: MountSpec) -> Option<(MountSpec, Changes)> {
    let (mut merged, mut changes) = (old.clone(), Changes::default());
    match (&mut merged.content, new.content) {
        (ContentSpec::Repository(old), ContentSpec::Repository(new)) => {
            repository(old, *new, &mut changes)?;
        }
        (ContentSpec::Image(old), ContentSpec::Image(new)) => match (&mut old.place, new.place) {
            (ImagePlace::File { path, .. }, ImagePlace::File { path: now, .. }) if *path == now => {}
            (
                ImagePlace::Url { url, servers, quota, deadline, kept, .. },
                ImagePlace::Url { url: now, servers: to, quota: size, deadline: until, kept: texts, .. },
            ) if *url == now => {
                of_servers(servers, &to, &mut changes);
                changes.note("--quota", quota, &size);
                (*servers, *quota, *deadline, *kept) = (to, size, until, texts);
            }
            (ImagePlace::Object { repository: old, .. }, ImagePlace::Object { repository: new, .. }) => {
                repository(old, *new, &mut changes)?;
            }
            _ => return None,
        },
        _ => return None,
    }
    changes.note("--deadline", &old.deadline, &new.deadline);
    merged.deadline = new.deadline;
    changes.note("ESKER_LOG", &old.log_levels, &new.log_levels);
    merged.log_levels = new.log_levels;
    for (name, differs) in [
        ("--source", old.options.source != new.options.source),
        ("--allow-other", old.options.allow_other != new.options.allow_other),
        ("--noexec", old.options.noexec != new.options.noexec),
        ("--show-with", old.shown_with != new.shown_with),
    ] {
        changes.needs(name, differs);
    }
    Some((merged, changes))
}

/// Changes the options of a repository. Its view, of which the kernel has parts, and its cache stay.
fn repository(old: &mut RepositorySpec, new: RepositorySpec, changes: &mut Changes) -> Option<()> {
    if old.options.name != new.options.name {
        return None;
    }
    of_servers(&old.options.servers, &new.options.servers, changes);
    let (o, n) = (&old.options, &new.options);
    changes.note("CVMFS_PUBLIC_KEY", &o.keys, &n.keys);
    changes.note("CVMFS_BLACKLIST", &o.blacklist.to_string(), &n.blacklist.to_string());
    changes.note("CVMFS_QUOTA_LIMIT", &o.quota, &n.quota);
    changes.note("CVMFS_ALIEN_CACHE", &o.lower, &n.lower);
    changes.note("CVMFS_STREAMING_CACHE", &o.streaming, &n.streaming);
    changes.note("--broker", &o.broker, &n.broker);
    changes.note("CVMFS_MAX_TTL", &old.view.ttl_max, &new.view.ttl_max);
    changes.note("CVMFS_NOTIFICATION_SERVER", &old.push, &new.push);
    changes.note("CVMFS_SYSLOG_LEVEL", &old.syslog, &new.syslog);
    changes.note("CVMFS_TELEMETRY_SEND", &old.telemetry, &new.telemetry);
    changes.note("CVMFS_TALK_SOCKET", &old.talk, &new.talk);
    changes.note("CVMFS_CPU_AFFINITY", &old.tuning, &new.tuning);
    let (v, w) = (&old.view, &new.view);
    for (name, differs) in [
        ("CVMFS_CACHE_BASE", o.cache != n.cache && !(is_memory(&o.cache) && is_memory(&n.cache))),
        ("CVMFS_CLAIM_OWNERSHIP", v.ownership != w.ownership),
        ("CVMFS_UID_MAP", v.uids != w.uids),
        ("CVMFS_GID_MAP", v.gids != w.gids),
        ("CVMFS_PREFETCH_FILEBUNDLES", v.without_bundles != w.without_bundles),
        ("CVMFS_WORLD_READABLE", v.world_readable != w.world_readable),
        ("CVMFS_MAGIC_XATTRS_VISIBILITY", v.magic != w.magic),
        ("CVMFS_XATTR_PROTECTED_XATTRS", old.protected != new.protected),
        ("CVMFS_ENFORCE_ACLS", old.enforce_acls != new.enforce_acls),
    ] {
        changes.needs(name, differs);
    }
    let (cache, view) = (old.options.cache.clone(), old.view.clone());
    *old = RepositorySpec {
        view: esker_view::ViewOptions { ttl_max: new.view.ttl_max, ..view },
        protected: old.protected.clone(),
        enforce_acls: old.enforce_acls,
        ..new
    };
    // The head that was accepted last holds.
    (old.options.cache, old.options.forget_history) = (cache, false);
    Some(())
}

/// Notes the lines of the text form that differ.
fn of_servers(old: &Servers, new: &Servers, changes: &mut Changes) {
    let lines = |servers: &Servers| {
        let text = servers.to_string();
        let text = if text.contains('\n') { text } else { format!("server {text}\n") };
        let split =
            |line: &str| line.split_once(' ').map(|(name, value)| (name.to_owned(), value.to_owned()));
        text.lines().filter_map(split).collect::<Vec<_>>()
    };
    let (old, new) = (lines(old), lines(new));
    for (word, name) in SERVERS {
        let of = |lines: &[(String, String)]| -> Vec<String> {
            lines.iter().filter(|(line, _)| line == word).map(|(_, value)| value.clone()).collect()
        };
        changes.note(name, &of(&old), &of(&new));
    }
    let others = |lines: &[(String, String)]| -> Vec<(String, String)> {
        let is_other = |line: &&(String, String)| !SERVERS.iter().any(|(word, _)| *word == line.0);
        lines.iter().filter(is_other).cloned().collect()
    };
    changes.note("CVMFS_DNS_MIN_TTL, X509_CERT_BUNDLE or ESKER_HTTP2", &others(&old), &others(&new));
}

impl Changes {
    /// Notes a setting that is applied, if it differs.
    fn note<T: Serialize>(&mut self, name: &str, old: &T, new: &T) {
        // A value that can't be written differs from any other.
        let text = |value: &T| serde_json::to_string(value).ok();
        if text(old) != text(new) || text(old).is_none() {
            self.applied.push(name.to_owned());
        }
    }

    fn needs(&mut self, name: &str, differs: bool) {
        if differs {
            self.needs_new_mount.push(name.to_owned());
        }
    }
}
