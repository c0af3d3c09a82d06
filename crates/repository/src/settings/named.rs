//! Settings by name: their meanings, and how their values are read and written.

use esker_format::chunker::ChunkSizes;
use serde::Serialize;

use super::values::{
    balance, bytes, choose, days, entries, number, on_off, or_off, seconds, seconds_text, short_size, size,
    switch, unless_off, word_of,
};
use super::{Balance, Settings};

/// A setting that `esker repo set` knows by name.
#[derive(Debug)]
pub struct NamedSetting {
    /// Name of the setting.
    pub name: &'static str,
    /// Accepted values.
    pub values: &'static str,
    /// Description in one sentence.
    pub meaning: &'static str,
    pub(crate) place: Place,
}

/// Location of a setting's value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// The settings file of the publisher.
    File { get: fn(&Settings) -> String, set: fn(&mut Settings, &str) -> Result<(), String> },
    /// The settings file, and until it has one the head.
    Ttl,
    /// The signed head; a change signs it again.
    GarbageCollectable,
}

/// Value of a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SettingValue {
    /// Name of the setting.
    pub name: &'static str,
    /// Value; none if the head can't be read.
    pub value: Option<String>,
    /// True for the value of a new repository.
    pub default: bool,
}

/// Makes a setting that is on or off.
macro_rules! switch {
    ($name:literal, $meaning:literal, $($field:ident).+) => {
        NamedSetting {
            name: $name,
            values: "on|off",
            meaning: $meaning,
            place: Place::File {
                get: |settings| on_off(settings.$($field).+),
                set: |settings, text| switch(&mut settings.$($field).+, text),
            },
        }
    };
}

/// Makes a setting that is one of some words.
macro_rules! choice {
    ($name:literal, $values:literal, $meaning:literal, $field:ident) => {
        NamedSetting {
            name: $name,
            values: $values,
            meaning: $meaning,
            place: Place::File {
                get: |settings| word_of(&settings.$field),
                set: |settings, text| choose(&mut settings.$field, $values, text),
            },
        }
    };
}

/// Makes a setting that has a value or is off.
macro_rules! limit {
    ($name:literal, $values:literal, $meaning:literal, $($field:ident).+, $shown:expr, $parse:ident) => {
        NamedSetting {
            name: $name,
            values: $values,
            meaning: $meaning,
            place: Place::File {
                get: |settings| or_off(settings.$($field).+, $shown),
                set: |settings, text| {
                    settings.$($field).+ = unless_off(text, $parse)?;
                    Ok(())
                },
            },
        }
    };
}

/// All settings, in the order of their display.
pub const NAMED: &[NamedSetting] = &[
    choice!(
        "compression",
        "zlib|none|zstd",
        "Compression of files; no released CernVM-FS reads zstd",
        compression
    ),
    choice!(
        "deflate",
        "stock|fast",
        "Encoder for zlib: stock writes the bytes that CernVM-FS writes, fast takes less time",
        deflate
    ),
    NamedSetting {
        name: "chunk_sizes",
        values: "MIN,AVERAGE,MAX",
        meaning: "Smallest, average and largest size of the chunks of large files, like 4M,8M,16M",
        place: Place::File {
            get: |settings| {
                let sizes = [settings.chunks.min(), settings.chunks.average(), settings.chunks.max()];
                sizes.map(|size| short_size(u64::from(size))).join(",")
            },
            set: |settings, text| {
                let sizes: Vec<u32> = text.split(',').map(size).collect::<Result<_, _>>()?;
                let [min, average, max] = sizes[..] else {
                    return Err("it is not three sizes, like 4M,8M,16M".to_owned());
                };
                settings.chunks = ChunkSizes::new(min, average, max).map_err(|error| error.to_string())?;
                Ok(())
            },
        },
    },
    switch!(
        "automatic_tags",
        "Whether each publish gives its revision a tag named after the time",
        automatic_tags
    ),
    limit!(
        "automatic_tags_for",
        "DAYS|off",
        "Days after which a publish removes automatic tags; off keeps them",
        automatic_tags_for,
        |days| days.to_string(),
        days
    ),
    switch!("virtual_snapshots", "Whether /.cvmfs/snapshots shows the tagged revisions", virtual_snapshots),
    switch!("xattrs", "Whether extended attributes are recorded", xattrs),
    choice!(
        "long_xattrs",
        "publish|skip|refuse",
        "Whether extended attributes of 256 to 65,535 bytes are published, left out with a warning, or refused; \
         CernVM-FS before 2.14 shows no attribute of a file that has one",
        long_xattrs
    ),
    switch!("mtime_ns", "Whether nanoseconds of modification times are recorded", nanoseconds),
    limit!(
        "catalog_balance",
        "MAX,MIN|off",
        "Entries from which a catalog is split, and below which it is joined again; off leaves that to markers",
        balance,
        |Balance { max, min }| format!("{max},{min}"),
        balance
    ),
    limit!(
        "file_size_limit",
        "SIZE|off",
        "Size of a file above which a publish warns, like 1G",
        limits.file,
        short_size,
        bytes
    ),
    limit!(
        "root_catalog_limit",
        "ENTRIES|off",
        "Entries of the root catalog above which a publish warns",
        limits.root_entries,
        |entries| entries.to_string(),
        entries
    ),
    limit!(
        "nested_catalog_limit",
        "ENTRIES|off",
        "Entries of a nested catalog above which a publish warns",
        limits.nested_entries,
        |entries| entries.to_string(),
        entries
    ),
    switch!(
        "enforce_limits",
        "Whether a publish that exceeds one of the three limits fails",
        limits.enforced
    ),
    switch!(
        "external_data",
        "Whether contents of files are left to servers for external data, and only their hashes are published",
        external_data
    ),
    choice!(
        "special_files",
        "publish|skip",
        "Whether devices, sockets and pipes are published, or left out with a warning",
        special_files
    ),
    limit!(
        "automatic_collect",
        "DURATION|off",
        "Time after a collect from which the next publish collects again, like 1d",
        automatic_collect.every,
        seconds_text,
        seconds
    ),
    NamedSetting {
        name: "automatic_collect_keep",
        values: "DURATION",
        meaning: "Age up to which such a collect keeps revisions, like 3d",
        place: Place::File {
            get: |settings| seconds_text(settings.automatic_collect.keep),
            set: |settings, text| {
                settings.automatic_collect.keep = seconds(text)?;
                Ok(())
            },
        },
    },
    NamedSetting {
        name: "ttl",
        values: "SECONDS",
        meaning: "Seconds after which clients check for a newer revision",
        place: Place::Ttl,
    },
    NamedSetting {
        name: "garbage_collectable",
        values: "on|off",
        meaning: "Whether content that no kept revision has may be collected",
        place: Place::GarbageCollectable,
    },
];

/// Returns the values of all settings; `head` has the TTL and whether the repository is collectable, if it can be read.
pub fn current(settings: &Settings, head: Option<(u32, bool)>) -> Vec<SettingValue> {
    let usual = Settings::of_new_repository();
    let of = |named: &NamedSetting| {
        let (value, default) = match named.place {
            Place::File { get, .. } => (Some(get(settings)), Some(get(&usual))),
            Place::Ttl => {
                let ttl = settings.ttl.or(head.map(|(ttl, _)| ttl));
                (ttl.map(|ttl| ttl.to_string()), Some(super::TTL.to_string()))
            }
            Place::GarbageCollectable => (head.map(|(_, yes)| on_off(yes)), Some(on_off(true))),
        };
        SettingValue { name: named.name, default: value == default, value }
    };
    NAMED.iter().map(of).collect()
}

/// Sets a setting of the settings file, and returns its value as it is displayed.
pub fn set_by_name(settings: &mut Settings, name: &str, text: &str) -> Result<String, String> {
    let named = NAMED.iter().find(|named| named.name == name).ok_or("there is no such setting")?;
    match named.place {
        Place::File { get, set } => set(settings, text.trim()).map(|()| get(settings)),
        Place::Ttl => {
            settings.ttl = Some(number(text.trim(), 1..=u32::MAX)?);
            Ok(text.trim().to_owned())
        }
        Place::GarbageCollectable => Err("the head has it".to_owned()),
    }
}

/// Returns the name of a setting that resembles this one.
pub(crate) fn closest(name: &str) -> Option<&'static str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace(['-', ' '], "_");
    let wanted = plain(name);
    let distances = NAMED.iter().map(|named| (distance(&wanted, named.name), named.name));
    let starts = |name: &str, part: &str| {
        part.len() > 2 && name.split('_').any(|word| word.starts_with(part.trim_end_matches('s')))
    };
    let contained = NAMED.iter().find(|named| wanted.split('_').all(|part| starts(named.name, part)));
    let (distance, nearest) = distances.min()?;
    let near = (distance <= nearest.len() / 3).then_some(nearest);
    near.or(contained.map(|named| named.name))
}

/// Returns the number of letters to insert, remove or replace between two texts; texts are cut at 64 letters.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) =
        (one.chars().take(64).collect(), other.chars().take(64).collect());
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, against) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != against);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::Deflate;
    use crate::settings::{AutomaticCollect, Limits, LongXattrs, SpecialFiles};
    use esker_format::compress::Compression;

    fn set(settings: &mut Settings, name: &str, text: &str) -> Result<(), String> {
        let named = NAMED.iter().find(|named| named.name == name).expect("a setting");
        let Place::File { set, .. } = named.place else { panic!("{name} is not in the file") };
        set(settings, text)
    }

    /// A displayed value is accepted, and gives the same settings.
    #[test]
    fn displayed_values_are_read_back() {
        let changed = Settings {
            compression: Compression::Stored,
            deflate: Deflate::Fast,
            chunks: ChunkSizes::new(1 << 20, (1 << 20) + 1024, 5 << 20).expect("sizes"),
            nanoseconds: false,
            xattrs: false,
            long_xattrs: LongXattrs::Skip,
            automatic_tags: false,
            balance: None,
            automatic_tags_for: Some(30),
            virtual_snapshots: true,
            ttl: None,
            limits: Limits { file: None, root_entries: Some(7), nested_entries: None, enforced: true },
            external_data: true,
            special_files: SpecialFiles::Skip,
            automatic_collect: AutomaticCollect { every: Some(90), keep: 7200 },
        };
        for settings in [Settings::default(), changed] {
            let mut read = if settings == changed { Settings::default() } else { changed };
            read.ttl = settings.ttl;
            for value in current(&settings, Some((240, true))) {
                let text = value.value.expect("a value");
                if !["ttl", "garbage_collectable"].contains(&value.name) {
                    set(&mut read, value.name, &text).expect("a displayed value");
                }
            }
            assert_eq!(read, settings);
        }
    }

    #[test]
    fn wrong_values_are_refused() {
        let mut settings = Settings::default();
        for (name, text) in [
            ("compression", "gzip"),
            ("deflate", ""),
            ("chunk_sizes", "4M"),
            ("chunk_sizes", "4M,8M"),
            ("chunk_sizes", "8M,4M,16M"),
            ("chunk_sizes", "4M,8M,99999999999G"),
            ("chunk_sizes", "€,8M,16M"),
            ("automatic_tags", "maybe"),
            ("automatic_tags_for", "0"),
            ("automatic_tags_for", "-1"),
            ("automatic_tags_for", "3650000"),
            ("file_size_limit", "0"),
            ("file_size_limit", "99999999999G"),
            ("root_catalog_limit", "many"),
            ("nested_catalog_limit", "-1"),
            ("special_files", "on"),
            ("automatic_collect", "0"),
            ("automatic_collect", "5000000000"),
            ("automatic_collect_keep", "off"),
            ("catalog_balance", "10"),
            ("catalog_balance", "10,9"),
        ] {
            assert!(set(&mut settings, name, text).is_err(), "{name}={text}");
            assert_eq!(settings, Settings::default(), "{name}={text}");
        }
    }

    #[test]
    fn similar_names_are_suggested() {
        for (wrong, right) in [
            ("compresion", Some("compression")),
            ("auto_tags", Some("automatic_tags")),
            ("Garbage-Collectable", Some("garbage_collectable")),
            ("chunks", Some("chunk_sizes")),
            ("snapshots", Some("virtual_snapshots")),
            ("weather", None),
        ] {
            assert_eq!(closest(wrong), right, "{wrong}");
        }
    }
}
