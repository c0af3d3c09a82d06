//! Formats times for HTTP headers.

use std::cell::RefCell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use esker_format::time::UnixTime;

/// Last second of the year 9999, the last year that an HTTP date can express.
const LAST: u64 = 253_402_300_799;

/// Returns the current time.
pub(crate) fn now() -> UnixTime {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    UnixTime(i64::try_from(seconds).unwrap_or(i64::MAX))
}

/// Returns a time like `Fri, 18 Oct 2024 08:01:07 GMT`, clamped to the years 1970 to 9999.
pub(crate) fn http(time: UnixTime) -> String {
    let seconds = u64::try_from(time.0).unwrap_or(0).min(LAST);
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Passes the current time in the form of [`http`] to `take`. Each thread keeps the text for a second.
pub(crate) fn with_now<T>(take: impl FnOnce(&str) -> T) -> T {
    thread_local! {
        static KEPT: RefCell<(UnixTime, String)> = const { RefCell::new((UnixTime(i64::MIN), String::new())) };
    }
    let time = now();
    KEPT.with_borrow_mut(|(kept, text)| {
        if *kept != time {
            (*kept, *text) = (time, http(time));
        }
        take(text)
    })
}

/// Returns a time like `18/Oct/2024:08:01:07 +0000`, as logs of web servers have it.
pub(crate) fn log(time: UnixTime) -> String {
    let http = http(time);
    let mut words = http.split([' ', ',']).filter(|word| !word.is_empty()).skip(1);
    let mut word = || words.next().unwrap_or_default();
    format!("{}/{}/{}:{} +0000", word(), word(), word(), word())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates_are_formatted() {
        assert_eq!(http(UnixTime(0)), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(http(UnixTime(784_111_777)), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http(UnixTime(1_729_238_467)), "Fri, 18 Oct 2024 08:01:07 GMT");
        assert_eq!(http(UnixTime(951_782_400)), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(http(UnixTime(i64::MIN)), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(http(UnixTime(i64::MAX)), "Fri, 31 Dec 9999 23:59:59 GMT");
    }
}
