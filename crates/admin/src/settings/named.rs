//! Settings by name: their meanings, and how their values are read and written.

use esker_format::chunker::ChunkSizes;
use esker_format::compress::Compression;
use serde::Serialize;

use super::{Balance, Settings};
use crate::encode::Deflate;

/// A setting that `esker repo set` knows by name.
#[derive(Debug)]
pub struct NamedSetting {
    /// Name of the setting.
    pub name: &'static str,
    /// Accepted values.
    pub values: &'static str,
    /// Description in one sentence.
    pub meaning: &'static str,
    pub(super) place: Place,
}

/// Location of a setting's value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
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
    /// Whether this is the value of a new repository.
    pub default: bool,
}

/// All settings, in the order of their display.
pub const NAMED: &[NamedSetting] = &[
    NamedSetting {
        name: "compression",
        values: "zlib|none|zstd",
        meaning: "Compression of files; CernVM-FS 2.12 and older read only zlib and none",
        place: Place::File {
            get: |settings| compression_name(settings.compression).to_owned(),
            set: |settings, text| {
                settings.compression = match text {
                    "zlib" | "default" => Compression::Zlib,
                    "none" => Compression::Stored,
                    "zstd" => Compression::Zstd,
                    _ => return Err("it is not zlib, none or zstd".to_owned()),
                };
                Ok(())
            },
        },
    },
    NamedSetting {
        name: "deflate",
        values: "stock|fast",
        meaning: "Encoder for zlib: stock writes the bytes that CernVM-FS writes, fast takes less time",
        place: Place::File {
            get: |settings| {
                match settings.deflate {
                    Deflate::Fast => "fast",
                    Deflate::Stock => "stock",
                    Deflate::Zlib => "zlib",
                }
                .to_owned()
            },
            set: |settings, text| {
                settings.deflate = match text {
                    "stock" => Deflate::Stock,
                    "fast" => Deflate::Fast,
                    _ => return Err("it is not stock or fast".to_owned()),
                };
                Ok(())
            },
        },
    },
    NamedSetting {
        name: "chunk_sizes",
        values: "MIN,AVERAGE,MAX",
        meaning: "Smallest, average and largest size of the chunks of large files, like 4M,8M,16M",
        place: Place::File {
            get: |settings| {
                let sizes = [settings.chunks.min(), settings.chunks.average(), settings.chunks.max()];
                sizes.map(short_size).join(",")
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
    NamedSetting {
        name: "automatic_tags",
        values: "on|off",
        meaning: "Whether each publish gives its revision a tag named after the time",
        place: Place::File {
            get: |settings| on_off(settings.automatic_tags),
            set: |settings, text| switch(&mut settings.automatic_tags, text),
        },
    },
    NamedSetting {
        name: "automatic_tags_for",
        values: "DAYS|off",
        meaning: "Days after which a publish removes automatic tags; off keeps them",
        place: Place::File {
            get: |settings| number_or_off(settings.automatic_tags_for),
            set: |settings, text| {
                settings.automatic_tags_for = match text {
                    "off" => None,
                    _ => Some(number(text.strip_suffix('d').unwrap_or(text), 1..=36_500)?),
                };
                Ok(())
            },
        },
    },
    NamedSetting {
        name: "virtual_snapshots",
        values: "on|off",
        meaning: "Whether /.cvmfs/snapshots shows the tagged revisions",
        place: Place::File {
            get: |settings| on_off(settings.virtual_snapshots),
            set: |settings, text| switch(&mut settings.virtual_snapshots, text),
        },
    },
    NamedSetting {
        name: "xattrs",
        values: "on|off",
        meaning: "Whether extended attributes are recorded",
        place: Place::File {
            get: |settings| on_off(settings.xattrs),
            set: |settings, text| switch(&mut settings.xattrs, text),
        },
    },
    NamedSetting {
        name: "mtime_ns",
        values: "on|off",
        meaning: "Whether nanoseconds of modification times are recorded",
        place: Place::File {
            get: |settings| on_off(settings.nanoseconds),
            set: |settings, text| switch(&mut settings.nanoseconds, text),
        },
    },
    NamedSetting {
        name: "catalog_balance",
        values: "MAX,MIN|off",
        meaning: "Entries from which a catalog is split, and below which it is joined again; off leaves that to markers",
        place: Place::File {
            get: |settings| {
                let text = |balance: Balance| format!("{},{}", balance.max, balance.min);
                settings.balance.map_or_else(|| "off".to_owned(), text)
            },
            set: |settings, text| {
                settings.balance = match text {
                    "off" => None,
                    _ => Some(balance(text)?),
                };
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

fn compression_name(compression: Compression) -> &'static str {
    match compression {
        Compression::Zlib => "zlib",
        Compression::Stored => "none",
        Compression::Zstd => "zstd",
    }
}

pub(super) fn on_off(value: bool) -> String {
    if value { "on" } else { "off" }.to_owned()
}

fn number_or_off(value: Option<u32>) -> String {
    value.map_or_else(|| "off".to_owned(), |value| value.to_string())
}

/// Reads a switch, in the words of CernVM-FS's configuration too.
pub(super) fn parse_switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "on" | "yes" | "true" | "1" => Ok(true),
        "off" | "no" | "false" | "0" => Ok(false),
        _ => Err("it is not on or off".to_owned()),
    }
}

fn switch(value: &mut bool, text: &str) -> Result<(), String> {
    *value = parse_switch(text)?;
    Ok(())
}

pub(super) fn number(text: &str, range: std::ops::RangeInclusive<u32>) -> Result<u32, String> {
    let (first, last) = (*range.start(), *range.end());
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("it is not a number from {first} to {last}"))
}

fn balance(text: &str) -> Result<Balance, String> {
    let wrong = || "it is not two numbers, like 100000,1000, the first at least twice the second".to_owned();
    let (max, min) = text.split_once(',').ok_or_else(wrong)?;
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
    let (max, min) = (number(max)?, number(min)?);
    if max < 2 || max / 2 < min { Err(wrong()) } else { Ok(Balance { max, min }) }
}

/// Reads a size like `4M` or `4194304`.
fn size(text: &str) -> Result<u32, String> {
    let wrong = || format!("{text:?} is not a size below 4 GiB, like 4M");
    let text = text.trim();
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).and_then(|bytes| u32::try_from(bytes).ok()).ok_or_else(wrong)
}

fn short_size(bytes: u32) -> String {
    match bytes {
        0 => "0".to_owned(),
        _ if bytes.trailing_zeros() >= 20 => format!("{}M", bytes >> 20),
        _ if bytes.trailing_zeros() >= 10 => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

/// Returns the values of all settings; `head` has the TTL and whether the repository is collectable, if it can be read.
pub(crate) fn current(settings: &Settings, head: Option<(u32, bool)>) -> Vec<SettingValue> {
    let usual = Settings::of_new_repository();
    let of = |named: &NamedSetting| {
        let (value, default) = match named.place {
            Place::File { get, .. } => (Some(get(settings)), Some(get(&usual))),
            Place::Ttl => {
                let ttl = settings.ttl.or(head.map(|(ttl, _)| ttl));
                (ttl.map(|ttl| ttl.to_string()), Some(crate::create::TTL.to_string()))
            }
            Place::GarbageCollectable => (head.map(|(_, yes)| on_off(yes)), Some(on_off(true))),
        };
        SettingValue { name: named.name, default: value == default, value }
    };
    NAMED.iter().map(of).collect()
}

/// Sets a setting of the settings file, and returns its value as it is displayed.
pub(crate) fn set_by_name(settings: &mut Settings, name: &str, text: &str) -> Result<String, String> {
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
pub(super) fn closest(name: &str) -> Option<&'static str> {
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
            automatic_tags: false,
            balance: None,
            automatic_tags_for: Some(30),
            virtual_snapshots: true,
            ttl: None,
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
