//! Numbers, times and names as pages show them.

use std::fmt::Write as _;

use esker_format::time::UnixTime;
use maud::{Markup, html};

/// Returns a size with a binary unit.
pub(crate) fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if value < 1023.95 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} PiB")
}

/// Returns a number like `1 234 567` with narrow spaces.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Returns a number and a noun in its plural form.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

/// Returns a duration in the largest unit that fits.
pub(crate) fn duration(seconds: i64) -> String {
    let (count, unit) = match seconds {
        ..120 => (seconds.max(0), "second"),
        120..7200 => (seconds / 60, "minute"),
        7200..172_800 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

/// Returns the age of a time, with the time itself for machines and on hovering.
pub(crate) fn ago(time: UnixTime, now: UnixTime) -> Markup {
    let age = now.0.saturating_sub(time.0);
    let words = match age {
        1.. => format!("{} ago", duration(age)),
        -60..=0 => "just now".to_owned(),
        _ => format!("in {}", duration(-age)),
    };
    html! { time datetime=(machine(time)) title=(time) { (words) } }
}

/// Returns a date and time.
pub(crate) fn date(time: UnixTime) -> Markup {
    html! { time datetime=(machine(time)) { (time) } }
}

/// Returns a time as machines read it.
pub(crate) fn machine(time: UnixTime) -> String {
    time.to_string().replacen(' ', "T", 1).replace(" UTC", "Z")
}

/// Returns bytes as text. Bytes that are no UTF-8, control characters and marks that change the direction of text are
/// shown by their numbers.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || is_unseen(c) {
                // Writing to a string succeeds.
                let _ = write!(text, "\\u{{{:x}}}", u32::from(c));
            } else {
                text.push(c);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Returns true for characters without a glyph that change how others are shown.
fn is_unseen(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Returns the first digits of a hash, with all of them on hovering.
pub(crate) fn hash(hash: &impl ToString) -> Markup {
    let text = hash.to_string();
    let short = text.get(..12).unwrap_or(&text);
    html! { code title=(text) { (short) } }
}

/// Returns permissions as `ls` shows them.
pub(crate) fn permissions(mode: u32) -> String {
    let kind = match mode & 0o170_000 {
        0o040_000 => 'd',
        0o120_000 => 'l',
        0o010_000 => 'p',
        0o140_000 => 's',
        0o020_000 => 'c',
        0o060_000 => 'b',
        _ => '-',
    };
    let mut text = String::from(kind);
    for shift in [6, 3, 0] {
        let bits = mode >> shift;
        let special = mode & (0o1000 << (shift / 3)) != 0;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        let letter = if shift == 0 { 't' } else { 's' };
        text.push(match (bits & 1 != 0, special) {
            (true, false) => 'x',
            (false, false) => '-',
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_for_humans() {
        assert_eq!(grouped(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(grouped(12), "12");
        assert_eq!(counted(1, "tag", "tags"), "1 tag");
        assert_eq!(size(17), "17 B");
        assert_eq!(size(2_145_417_672), "2.0 GiB");
        let since = |seconds: i64| ago(UnixTime(0), UnixTime(seconds)).into_string();
        assert!(since(-5).ends_with(">just now</time>"));
        assert!(since(1).ends_with(">1 second ago</time>"));
        assert!(since(-7300).ends_with(">in 2 hours</time>"));
        let words =
            "<time datetime=\"1970-01-01T00:00:00Z\" title=\"1970-01-01 00:00:00 UTC\">3 days ago</time>";
        assert_eq!(since(3 * 86_400 + 5), words);
        assert_eq!(permissions(0o100_644), "-rw-r--r--");
        assert_eq!(permissions(0o041_777), "drwxrwxrwt");
        assert_eq!(permissions(0o104_610), "-rwS--x---");
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_by_their_numbers() {
        assert_eq!(shown("größe.txt".as_bytes()), "größe.txt");
        assert_eq!(shown(b"a\xff\xfeb\n"), "a\\xff\\xfeb\\u{a}");
        assert_eq!(shown("a\u{202e}txt.exe".as_bytes()), "a\\u{202e}txt.exe");
    }
}
