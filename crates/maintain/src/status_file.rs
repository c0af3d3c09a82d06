//! `.cvmfs_status.json`, which tells monitors when a repository was last collected or checked.

use esker_format::time::UnixTime;
use esker_repository::{BackOff, RepositoryError, signed::SMALL_FILE_MAX};
use esker_store::{Sink, Swap};
use serde_json::{Map, Value};

const PATH: &str = ".cvmfs_status.json";
/// Attempts to change the file in object storage beside other processes.
const ATTEMPTS: u32 = 50;

/// Sets fields of the file; the others stay, and a file that can't be read is replaced. The caller holds the lock of the
/// head, if the storage has one.
pub(crate) fn set(sink: &dyn Sink, fields: &[(&str, &str)]) -> Result<(), RepositoryError> {
    let mut back_off = BackOff::default();
    for _ in 0..ATTEMPTS {
        let stored = sink.read(PATH, SMALL_FILE_MAX)?;
        let known = stored.as_deref().unwrap_or_default();
        let mut status: Map<String, Value> = serde_json::from_slice(known).unwrap_or_default();
        for (name, value) in fields {
            status.insert((*name).to_owned(), Value::String((*value).to_owned()));
        }
        let text = serde_json::to_vec_pretty(&status);
        let mut text = text.expect("a map becomes JSON because its keys are text");
        text.push(b'\n');
        if sink.replace_root(PATH, &text, stored.as_deref())? == Swap::Replaced {
            return Ok(());
        }
        back_off.pause();
    }
    Err(RepositoryError::Moving)
}

/// Returns the time in a field; none if the file or the field is missing, or is no time that `date --utc` prints.
pub(crate) fn time(sink: &dyn Sink, field: &str) -> Result<Option<UnixTime>, RepositoryError> {
    let stored = sink.read(PATH, SMALL_FILE_MAX)?.unwrap_or_default();
    let status: Map<String, Value> = serde_json::from_slice(&stored).unwrap_or_default();
    Ok(status.get(field).and_then(Value::as_str).and_then(UnixTime::parse_date))
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Returns a time as `date --utc` prints it: `Fri Oct 18 08:01:07 UTC 2024`.
pub(crate) fn date(time: UnixTime) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let compact = time.to_compact();
    let part = |from: usize, to: usize| compact.get(from..to).unwrap_or_default();
    let month = part(4, 6).parse::<usize>().unwrap_or(1).saturating_sub(1);
    let day = part(6, 8).trim_start_matches('0');
    let weekday = usize::try_from(time.0.div_euclid(86_400).rem_euclid(7)).unwrap_or_default();
    format!(
        "{} {} {day:>2} {}:{}:{} UTC {}",
        DAYS.get(weekday).unwrap_or(&"Thu"),
        MONTHS.get(month).unwrap_or(&"Jan"),
        part(8, 10),
        part(10, 12),
        part(12, 14),
        part(0, 4)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_look_as_those_of_date() {
        assert_eq!(date(UnixTime(1_729_238_467)), "Fri Oct 18 08:01:07 UTC 2024");
        assert_eq!(date(UnixTime(0)), "Thu Jan  1 00:00:00 UTC 1970");
        for time in [0, 1_729_238_467, 1_900_000_000].map(UnixTime) {
            assert_eq!(UnixTime::parse_date(&date(time)), Some(time));
        }
    }
}
