//! Formats and parses times in HTTP headers.

use std::time::{SystemTime, UNIX_EPOCH};

use esker_format::time::UnixTime;

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Returns the current time.
pub(crate) fn now() -> UnixTime {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    UnixTime(i64::try_from(seconds).unwrap_or(i64::MAX))
}

/// Returns a time like `Fri, 18 Oct 2024 08:01:07 GMT`.
pub(crate) fn http(time: UnixTime) -> String {
    let weekday = usize::try_from(time.0.div_euclid(86_400).rem_euclid(7)).unwrap_or(0);
    let compact = time.to_compact();
    // YYYYMMDDhhmmss, counted from the end because only the year may be longer.
    let part = |from_end: usize, len: usize| {
        let from = compact.len().saturating_sub(from_end);
        compact.get(from..from + len).unwrap_or("00")
    };
    let year = compact.get(..compact.len().saturating_sub(10)).unwrap_or("0000");
    let month = part(10, 2).parse::<usize>().ok().and_then(|month| MONTHS.get(month.wrapping_sub(1)));
    format!(
        "{}, {} {} {year} {}:{}:{} GMT",
        DAYS[weekday],
        part(8, 2),
        month.unwrap_or(&MONTHS[0]),
        part(6, 2),
        part(4, 2),
        part(2, 2)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates_are_formatted_and_parsed() {
        assert_eq!(http(UnixTime(0)), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(http(UnixTime(784_111_777)), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http(UnixTime(1_729_238_467)), "Fri, 18 Oct 2024 08:01:07 GMT");
        assert_eq!(http(UnixTime(951_782_400)), "Tue, 29 Feb 2000 00:00:00 GMT");
    }
}
