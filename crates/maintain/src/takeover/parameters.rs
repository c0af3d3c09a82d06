//! Maps parameters of `cvmfs_server` to settings.

use esker_format::manifest::Manifest;
use esker_repository::{Settings, settings::set_by_name};
use serde::Serialize;

use super::server_conf::ServerConf;

/// Effect of a takeover on a parameter of `server.conf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A setting has its value from now on.
    Taken,
    /// The repository itself has it: head, storage or spool.
    InRepository,
    /// It has no meaning here.
    NoMeaning,
    /// It has a meaning that is not supported.
    NotSupported,
}

/// Parameter of `server.conf`, and the effect of a takeover on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParameterRow {
    /// Name of the parameter.
    pub parameter: String,
    /// Value; none if a shell would have to evaluate it, or if it is not set.
    pub value: Option<String>,
    /// Effect of the takeover on the parameter.
    pub outcome: Outcome,
    /// The setting with its value, or the reason.
    pub note: String,
}

/// Parameters with the names of settings that take their values as they are.
const DIRECT: [(&str, &str); 8] = [
    ("CVMFS_ENFORCE_LIMITS", "enforce_limits"),
    ("CVMFS_EXTERNAL_DATA", "external_data"),
    ("CVMFS_COMPRESSION_ALGORITHM", "compression"),
    ("CVMFS_AUTO_TAG", "automatic_tags"),
    ("CVMFS_VIRTUAL_DIR", "virtual_snapshots"),
    ("CVMFS_INCLUDE_XATTRS", "xattrs"),
    ("CVMFS_ENABLE_MTIME_NS", "mtime_ns"),
    ("CVMFS_REPOSITORY_TTL", "ttl"),
];

/// Settings of a repository whose `server.conf` does not mention them, as `cvmfs_server` treats it.
const UNSET: [(&str, &str, &str); 5] = [
    ("CVMFS_INCLUDE_XATTRS", "xattrs", "off"),
    ("CVMFS_ENABLE_MTIME_NS", "mtime_ns", "off"),
    ("CVMFS_VIRTUAL_DIR", "virtual_snapshots", "off"),
    ("CVMFS_AUTOCATALOGS", "catalog_balance", "off"),
    ("CVMFS_AUTO_TAG", "automatic_tags", "on"),
];

/// Parameters that the repository itself answers.
const IN_REPOSITORY: [(&str, &str); 8] = [
    ("CVMFS_REPOSITORY_NAME", "in the head"),
    ("CVMFS_UPSTREAM_STORAGE", "the storage"),
    ("CVMFS_SPOOL_DIR", "each publish honours its locks"),
    ("CVMFS_HASH_ALGORITHM", "in the head"),
    ("CVMFS_GARBAGE_COLLECTION", "in the head; `esker repo set NAME garbage_collectable=` changes it"),
    ("CVMFS_CATALOG_ALT_PATHS", "in the head"),
    ("CVMFS_PUBLIC_KEY", "NAME.pub in the keys folder"),
    ("CVMFS_GC_DELETION_LOG", "`esker collect NAME --log FILE`"),
];

/// Parameters that are supported only with this value.
const ONLY: [(&str, &str); 1] = [("CVMFS_USE_FILE_CHUNKING", "true")];

/// Parameters that do something in `cvmfs_server` that Esker does not do.
const NOT_SUPPORTED: [&str; 7] = [
    "CVMFS_GENERATE_LEGACY_BULK_CHUNKS",
    "CVMFS_SERVER_PROXY",
    "CVMFS_VOMS_AUTHZ",
    "CVMFS_UID_MAP",
    "CVMFS_GID_MAP",
    "CVMFS_UPLOAD_STATS_DB",
    "CVMFS_UPLOAD_STATS_PLOTS",
];

/// Takes the parameters into settings, and returns what became of each.
pub(super) fn take(conf: &ServerConf, head: &Manifest, settings: &mut Settings) -> Vec<ParameterRow> {
    settings.ttl = Some(head.ttl);
    for (parameter, setting, value) in UNSET {
        if conf.get(parameter).is_none() {
            let set = set_by_name(settings, setting, value);
            debug_assert!(set.is_ok(), "{setting}={value}");
        }
    }
    let mut rows = Vec::new();
    for (at, (parameter, value)) in conf.parameters.iter().enumerate() {
        let is_last = !conf.parameters[at + 1..].iter().any(|(later, _)| later == parameter);
        if !is_last || !parameter.starts_with("CVMFS_") {
            continue;
        }
        let (outcome, note) = match value {
            None => (Outcome::NotSupported, "it is shell code, which is not evaluated".to_owned()),
            Some(value) => one(conf, parameter, value, settings),
        };
        rows.push(ParameterRow { parameter: parameter.clone(), value: value.clone(), outcome, note });
    }
    rows
}

fn one(conf: &ServerConf, parameter: &str, value: &str, settings: &mut Settings) -> (Outcome, String) {
    if let Some((_, setting)) = DIRECT.iter().find(|(known, _)| *known == parameter) {
        return set(settings, setting, value);
    }
    if let Some((_, note)) = IN_REPOSITORY.iter().find(|(known, _)| *known == parameter) {
        return (Outcome::InRepository, (*note).to_owned());
    }
    if let Some((_, only)) = ONLY.iter().find(|(known, _)| *known == parameter) {
        return match value == *only {
            true => (Outcome::NoMeaning, "as always here".to_owned()),
            false => (Outcome::NotSupported, format!("here it always is {only}")),
        };
    }
    match parameter {
        "CVMFS_MIN_CHUNK_SIZE" | "CVMFS_AVG_CHUNK_SIZE" | "CVMFS_MAX_CHUNK_SIZE" => {
            let size = |which: &str, usual: &str| {
                conf.get(&format!("CVMFS_{which}_CHUNK_SIZE")).unwrap_or(usual).to_owned()
            };
            let sizes = [size("MIN", "4194304"), size("AVG", "8388608"), size("MAX", "16777216")].join(",");
            set(settings, "chunk_sizes", &sizes)
        }
        "CVMFS_FILE_MBYTE_LIMIT" => set(settings, "file_size_limit", &limit(value, "M")),
        "CVMFS_ROOT_KCATALOG_LIMIT" => set(settings, "root_catalog_limit", &limit(value, "000")),
        "CVMFS_NESTED_KCATALOG_LIMIT" => set(settings, "nested_catalog_limit", &limit(value, "000")),
        "CVMFS_IGNORE_SPECIAL_FILES" => {
            set(settings, "special_files", if value == "true" { "skip" } else { "publish" })
        }
        "CVMFS_AUTO_GC" | "CVMFS_AUTO_GC_LAPSE" => {
            let lapse =
                conf.get("CVMFS_AUTO_GC_LAPSE").filter(|text| !text.is_empty()).unwrap_or("1 day ago");
            match (conf.get("CVMFS_AUTO_GC"), seconds_ago(lapse)) {
                (Some("true"), Some(seconds)) => set(settings, "automatic_collect", &seconds.to_string()),
                (Some("true"), None) => {
                    (Outcome::NotSupported, "only times like `1 day ago` are; no publish collects".to_owned())
                }
                _ => set(settings, "automatic_collect", "off"),
            }
        }
        "CVMFS_AUTO_GC_TIMESPAN" if value.is_empty() => (Outcome::NoMeaning, "the usual 3 days".to_owned()),
        "CVMFS_AUTO_GC_TIMESPAN" => match seconds_ago(value) {
            Some(seconds) => set(settings, "automatic_collect_keep", &seconds.to_string()),
            None => (Outcome::NotSupported, "only times like `3 days ago` are".to_owned()),
        },
        "CVMFS_AUTO_TAG_TIMESPAN" if value.is_empty() => set(settings, "automatic_tags_for", "off"),
        "CVMFS_AUTO_TAG_TIMESPAN" => match days_ago(value) {
            Some(days) => set(settings, "automatic_tags_for", &days.to_string()),
            None => (Outcome::NotSupported, "only times like `30 days ago` are; tags are kept".to_owned()),
        },
        "CVMFS_AUTOCATALOGS" | "CVMFS_AUTOCATALOGS_MAX_WEIGHT" | "CVMFS_AUTOCATALOGS_MIN_WEIGHT" => {
            match conf.get("CVMFS_AUTOCATALOGS") {
                Some("true") => {
                    let weight = |which: &str, usual: &str| {
                        conf.get(&format!("CVMFS_AUTOCATALOGS_{which}_WEIGHT")).unwrap_or(usual).to_owned()
                    };
                    let balance = [weight("MAX", "100000"), weight("MIN", "1000")].join(",");
                    set(settings, "catalog_balance", &balance)
                }
                _ => set(settings, "catalog_balance", "off"),
            }
        }
        _ if NOT_SUPPORTED.contains(&parameter) => match ["", "false"].contains(&value) {
            true => (Outcome::NoMeaning, "switched off".to_owned()),
            false => (Outcome::NotSupported, "Esker ignores it".to_owned()),
        },
        _ => (Outcome::NoMeaning, "of cvmfs_server's mounts or tools".to_owned()),
    }
}

fn set(settings: &mut Settings, name: &str, value: &str) -> (Outcome, String) {
    match set_by_name(settings, name, value) {
        Ok(value) => (Outcome::Taken, format!("{name}={value}")),
        Err(reason) => (Outcome::NotSupported, format!("{name}: {reason}")),
    }
}

/// Returns a limit in units of `cvmfs_server`, which means no limit by zero.
fn limit(value: &str, unit: &str) -> String {
    if value == "0" { "off".to_owned() } else { format!("{value}{unit}") }
}

/// Reads `30 days ago` and the like, as days.
fn days_ago(text: &str) -> Option<u32> {
    seconds_ago(text).map(|seconds| seconds / DAY).filter(|days| *days > 0)
}

const DAY: u32 = 86_400;

/// Reads `12 hours ago` and the like, as seconds.
fn seconds_ago(text: &str) -> Option<u32> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (number, unit) = match words[..] {
        [number, unit, "ago"] => (number.parse::<u32>().ok()?, unit),
        _ => return None,
    };
    let seconds = match unit.strip_suffix('s').unwrap_or(unit) {
        "second" | "sec" => 1,
        "minute" | "min" => 60,
        "hour" => 3600,
        "day" => DAY,
        "week" => 7 * DAY,
        "month" => 30 * DAY,
        "year" => 365 * DAY,
        _ => return None,
    };
    number.checked_mul(seconds).filter(|seconds| *seconds > 0)
}

#[cfg(test)]
mod tests {
    use super::{days_ago, seconds_ago};

    #[test]
    fn time_spans_become_days() {
        for (text, days) in [
            ("30 days ago", Some(30)),
            ("1 day ago", Some(1)),
            ("2 weeks ago", Some(14)),
            ("1 year ago", Some(365)),
            ("yesterday", None),
            ("0 days ago", None),
            ("5000000000 days ago", None),
            ("3 fortnights ago", None),
            ("12 hours ago", None),
            ("48 hours ago", Some(2)),
        ] {
            assert_eq!(days_ago(text), days, "{text}");
        }
        assert_eq!(["90 seconds ago", "12 hours ago"].map(seconds_ago), [Some(90), Some(43_200)]);
    }
}
