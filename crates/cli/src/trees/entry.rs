//! Output of one entry by `ls`, `stat` and `find`.

use esker_vfs::{Attr, Kind, Time};
use serde::Serialize;

use crate::output::lossy;

/// An entry as JSON. Field names are an interface.
#[derive(Debug, Serialize)]
pub(crate) struct EntryJson {
    /// The name or path; bytes that are not UTF-8 are replaced, see `path_hex`.
    pub(crate) path: String,
    /// Path in hexadecimal, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path_hex: Option<String>,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// Permissions in octal.
    pub(crate) mode: String,
    pub(crate) size: u64,
    pub(crate) mtime: i64,
    pub(crate) mtime_ns: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u32,
    pub(crate) inode: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) xattrs: Option<std::collections::BTreeMap<String, String>>,
}

impl EntryJson {
    pub(crate) fn new(path: &[u8], attr: &Attr, target: Option<&[u8]>) -> Self {
        let is_device = matches!(attr.kind, Kind::CharDevice | Kind::BlockDevice);
        Self {
            path: lossy(path),
            path_hex: std::str::from_utf8(path).is_err().then(|| hex(path)),
            kind: kind_name(attr.kind),
            mode: format!("{:04o}", attr.permissions),
            size: attr.size,
            mtime: attr.mtime.secs,
            mtime_ns: attr.mtime.nanos,
            uid: attr.uid,
            gid: attr.gid,
            nlink: attr.nlink,
            inode: attr.ino.0,
            target: target.map(lossy),
            device: is_device.then(|| format!("{}:{}", attr.rdev.major, attr.rdev.minor)),
            xattrs: None,
        }
    }
}

pub(crate) fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Directory => "directory",
        Kind::File => "file",
        Kind::Symlink => "symlink",
        Kind::Fifo => "fifo",
        Kind::Socket => "socket",
        Kind::CharDevice => "char device",
        Kind::BlockDevice => "block device",
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a mode like `drwxr-xr-x`.
pub(crate) fn mode_text(attr: &Attr) -> String {
    let kind = match attr.kind {
        Kind::Directory => 'd',
        Kind::File => '-',
        Kind::Symlink => 'l',
        Kind::Fifo => 'p',
        Kind::Socket => 's',
        Kind::CharDevice => 'c',
        Kind::BlockDevice => 'b',
    };
    let mut text = String::from(kind);
    for (shift, special, lower, upper) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = attr.permissions >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (attr.permissions & special != 0, bits & 1 != 0) {
            (true, true) => lower,
            (true, false) => upper,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Returns a time like `2026-11-21 08:09:10` in UTC.
pub(crate) fn time_text(time: Time) -> String {
    const DAY: i64 = 86_400;
    let (days, seconds) = (time.secs.div_euclid(DAY), time.secs.rem_euclid(DAY));
    // Days are counted from 1 March of year 0 in 400-year eras, so that leap days come last.
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use esker_vfs::{Device, Ino};

    use super::*;

    #[test]
    fn times_are_formatted_as_dates() {
        let text = |secs| time_text(Time { secs, nanos: 0 });
        assert_eq!(text(0), "1970-01-01 00:00:00");
        assert_eq!(text(-1), "1969-12-31 23:59:59");
        assert_eq!(text(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(text(1_795_248_550), "2026-11-21 08:09:10");
        assert_eq!(text(4_107_542_400), "2100-03-01 00:00:00");
    }

    #[test]
    fn modes_are_formatted_as_by_ls() {
        let mut attr = Attr {
            ino: Ino(1),
            size: 0,
            mtime: Time::default(),
            permissions: 0o4751,
            kind: Kind::File,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: Device::default(),
        };
        assert_eq!(mode_text(&attr), "-rwsr-x--x");
        attr.permissions = 0o1777;
        attr.kind = Kind::Directory;
        assert_eq!(mode_text(&attr), "drwxrwxrwt");
        attr.permissions = 0o2604;
        assert_eq!(mode_text(&attr), "drw---Sr--");
    }
}
