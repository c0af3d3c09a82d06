//! Represents points in time in the formats of CernVM-FS.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Seconds since the UNIX epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UnixTime(pub i64);

const DAY: i64 = 86_400;
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl UnixTime {
    /// Parses `YYYYMMDDhhmmss` (UTC).
    pub fn parse_compact(text: &[u8]) -> Option<Self> {
        let number = |from: usize, to: usize| -> Option<i64> {
            text.get(from..to)?.iter().try_fold(0, |value, digit| {
                digit.is_ascii_digit().then(|| value * 10 + i64::from(digit - b'0'))
            })
        };
        if text.len() != 14 {
            return None;
        }
        let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
        let (hour, minute, second) = (number(8, 10)?, number(10, 12)?, number(12, 14)?);
        let valid = (1..=12).contains(&month)
            && (1..=days_in_month(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second <= 60;
        valid.then(|| Self(days_from_civil(year, month, day) * DAY + hour * 3600 + minute * 60 + second))
    }

    /// Parses an ISO date: `YYYY-MM-DD`, `YYYY-MM-DDThh:mm` or `YYYY-MM-DDThh:mm:ss`, with or without a final
    /// `Z`. All are in UTC; a date alone is its first second.
    pub fn parse_iso(text: &str) -> Option<Self> {
        let text = text.strip_suffix('Z').unwrap_or(text).as_bytes();
        let mut compact = *b"00000000000000";
        let mut digits = 0;
        for (at, byte) in text.iter().enumerate() {
            let fits = match at {
                4 | 7 => *byte == b'-',
                10 => matches!(byte, b'T' | b' '),
                13 | 16 => *byte == b':',
                _ => {
                    *compact.get_mut(digits)? = *byte;
                    digits += 1;
                    true
                }
            };
            if !fits {
                return None;
            }
        }
        // Other lengths would end within a number.
        matches!(text.len(), 10 | 16 | 19).then(|| Self::parse_compact(&compact)).flatten()
    }

    /// Parses the output of `date --utc`, such as `Fri Oct 18 08:01:07 UTC 2024` or `Fri 18 Oct 2024 08:01:07 AM UTC`.
    pub fn parse_date(text: &str) -> Option<Self> {
        let (mut day, mut month, mut year, mut clock) = (None, None, None, None);
        let (mut is_afternoon, mut is_utc) = (None, false);
        for word in text.split_ascii_whitespace() {
            let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
            match word {
                "UTC" => is_utc = true,
                "AM" | "PM" => is_afternoon = Some(word == "PM"),
                _ if is_number && word.len() == 4 => year = Some(word),
                _ if is_number && word.len() <= 2 => day = word.parse::<u32>().ok(),
                _ if word.contains(':') => clock = Some(word),
                _ => month = month.or(MONTHS.iter().position(|known| *known == word)),
            }
        }
        let mut parts = clock.filter(|_| is_utc)?.split(':').map(|part| part.parse::<u32>().ok());
        let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
        let hour = match is_afternoon {
            None => hour,
            Some(is_afternoon) => hour % 12 + if is_afternoon { 12 } else { 0 },
        };
        let (year, month, day) = (year?, month? + 1, day?);
        Self::parse_compact(format!("{year}{month:02}{day:02}{hour:02}{minute:02}{second:02}").as_bytes())
    }

    /// Writes `YYYYMMDDhhmmss` (UTC).
    pub fn to_compact(self) -> String {
        let (year, month, day) = civil_from_days(self.0.div_euclid(DAY));
        let second = self.0.rem_euclid(DAY);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        format!("{year:04}{month:02}{day:02}{hour:02}{minute:02}{second:02}")
    }

    /// Returns the time with minutes and seconds set to zero.
    pub const fn hour(self) -> Self {
        Self(self.0.saturating_sub(self.0.rem_euclid(3600)))
    }
}

impl fmt::Display for UnixTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil_from_days(self.0.div_euclid(DAY));
        let second = self.0.rem_euclid(DAY);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
    }
}

const fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

const fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns days since 1970-01-01 in the proleptic Gregorian calendar; years start in March so that the leap
/// day is last.
const fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

const fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days.saturating_add(719_468);
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_equal_known_values() {
        for (text, seconds) in [
            ("19700101000000", 0),
            ("20000229235959", 951_868_799),
            ("20241018080107", 1_729_238_467),
            ("21241118000000", 4_887_561_600),
        ] {
            assert_eq!(UnixTime::parse_compact(text.as_bytes()), Some(UnixTime(seconds)), "{text}");
            assert_eq!(UnixTime(seconds).to_compact(), text);
        }
        assert_eq!(UnixTime(-1).to_string(), "1969-12-31 23:59:59 UTC");
        assert_eq!(UnixTime(1_729_238_467).hour(), UnixTime(1_729_238_400));
    }

    #[test]
    fn dates_as_programs_print_them_are_parsed() {
        assert_eq!(UnixTime::parse_date("Fri Oct 18 08:01:07 UTC 2024\n"), Some(UnixTime(1_729_238_467)));
        assert_eq!(UnixTime::parse_date("Thu Jan  1 00:00:00 UTC 1970"), Some(UnixTime(0)));
        for text in ["Fri 18 Oct 2024 08:01:07 AM UTC", "Fri Oct 18 08:01:07 AM UTC 2024"] {
            assert_eq!(UnixTime::parse_date(text), Some(UnixTime(1_729_238_467)), "{text}");
        }
        let afternoon = UnixTime::parse_date("Fri Oct 18 08:01:07 PM UTC 2024");
        assert_eq!(afternoon, Some(UnixTime(1_729_238_467 + 12 * 3600)));
        let midnight = UnixTime::parse_date("Fri Oct 18 12:01:07 AM UTC 2024");
        assert_eq!(midnight, Some(UnixTime(1_729_238_467 - 8 * 3600)));
        for text in
            ["today", "Fri Oct 18 UTC 2024", "Fri Oct 18 8:1 UTC 2024", "Fri Oct 99 08:01:07 UTC 2024"]
        {
            assert_eq!(UnixTime::parse_date(text), None, "{text}");
        }
        for text in ["", "yesterday", "Fri Oct 18 08:01:07 CEST 2024", "Fri Okt 18 08:01:07 UTC 2024"] {
            assert_eq!(UnixTime::parse_date(text), None, "{text}");
        }
    }

    #[test]
    fn iso_dates_are_parsed() {
        for text in ["2024-10-18T08:01:07Z", "2024-10-18T08:01:07", "2024-10-18 08:01:07Z"] {
            assert_eq!(UnixTime::parse_iso(text), Some(UnixTime(1_729_238_467)), "{text}");
        }
        assert_eq!(UnixTime::parse_iso("2024-10-18T08:01Z"), Some(UnixTime(1_729_238_460)));
        assert_eq!(UnixTime::parse_iso("2024-10-18"), Some(UnixTime(1_729_209_600)));
        for text in
            ["", "Z", "2024", "2024-10", "2024-10-1", "2024-10-18T08", "2024-10-18T08:01:7Z", "2024-13-01"]
        {
            assert_eq!(UnixTime::parse_iso(text), None, "{text}");
        }
        for text in ["2024/10/18", "2024-10-18T08:01:07ZZ", "2024-10-18T08:01:07+01:00", "20241018T080107Z"] {
            assert_eq!(UnixTime::parse_iso(text), None, "{text}");
        }
    }

    #[test]
    fn every_day_of_four_centuries_survives_encoding() {
        for day in -10..146_100 {
            let time = UnixTime(day * DAY + 12_345);
            assert_eq!(UnixTime::parse_compact(time.to_compact().as_bytes()), Some(time));
        }
    }

    #[test]
    fn extreme_times_are_handled_and_invalid_ones_rejected() {
        let _ = UnixTime(i64::MAX).to_string();
        let _ = UnixTime(i64::MIN).to_string();
        for text in ["", "2024", "20240230000000", "20241301000000", "2024010124000", "2024-1-1 00:00:"] {
            assert_eq!(UnixTime::parse_compact(text.as_bytes()), None, "{text}");
        }
    }
}
