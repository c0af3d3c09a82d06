//! Reads and formats values of settings.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Balance;

/// Returns the word that stands for a value in the settings file.
pub(super) fn word_of<T: Serialize>(value: &T) -> String {
    let word = serde_json::to_value(value).expect("a value without fields becomes JSON");
    word.as_str().unwrap_or_default().to_owned()
}

/// Sets a value to the one that a word of the list `values` stands for.
pub(super) fn choose<T: DeserializeOwned>(value: &mut T, values: &str, text: &str) -> Result<(), String> {
    let words: Vec<&str> = values.split('|').collect();
    // The word of CernVM-FS's configuration for its only compression.
    let word = if text == "default" { "zlib" } else { text };
    let known = words.contains(&word).then(|| serde_json::from_value(word.into()).ok()).flatten();
    *value = known.ok_or_else(|| match &words[..] {
        [first @ .., last] => format!("it is not {} or {last}", first.join(", ")),
        [] => "there are no values".to_owned(),
    })?;
    Ok(())
}

pub(super) fn on_off(value: bool) -> String {
    if value { "on" } else { "off" }.to_owned()
}

/// Formats a value, or `off` if there is none.
pub(super) fn or_off<T>(value: Option<T>, format: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "off".to_owned(), format)
}

/// Reads a value; `off` is none.
pub(super) fn unless_off<T>(
    text: &str,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    if text == "off" { Ok(None) } else { read(text).map(Some) }
}

/// Reads a switch, in the words of CernVM-FS's configuration too.
pub(crate) fn parse_switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "on" | "yes" | "true" | "1" => Ok(true),
        "off" | "no" | "false" | "0" => Ok(false),
        _ => Err("it is not on or off".to_owned()),
    }
}

pub(super) fn switch(value: &mut bool, text: &str) -> Result<(), String> {
    *value = parse_switch(text)?;
    Ok(())
}

pub(crate) fn number(text: &str, range: std::ops::RangeInclusive<u32>) -> Result<u32, String> {
    let (first, last) = (*range.start(), *range.end());
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("it is not a number from {first} to {last}"))
}

/// Reads a number of days like `30` or `30d`.
pub(super) fn days(text: &str) -> Result<u32, String> {
    number(text.strip_suffix('d').unwrap_or(text), 1..=36_500)
}

pub(super) fn balance(text: &str) -> Result<Balance, String> {
    let wrong = || "it is not two numbers, like 100000,1000, the first at least twice the second".to_owned();
    let (max, min) = text.split_once(',').ok_or_else(wrong)?;
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
    let (max, min) = (number(max)?, number(min)?);
    if max < 2 || max / 2 < min { Err(wrong()) } else { Ok(Balance { max, min }) }
}

/// Reads a size like `4M` or `4194304`.
pub(super) fn size(text: &str) -> Result<u32, String> {
    let wrong = || format!("{text:?} is not a size below 4 GiB, like 4M");
    bytes(text).ok().and_then(|bytes| u32::try_from(bytes).ok()).ok_or_else(wrong)
}

/// Reads a size of any number of bytes but zero.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size, like 4M");
    let text = text.trim();
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        Some(b'T' | b't') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0).ok_or_else(wrong)
}

/// Reads a number of entries.
pub(super) fn entries(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is neither a number of entries nor off");
    text.parse().ok().filter(|number| *number > 0).ok_or_else(wrong)
}

/// Units of time with their seconds, the longest first.
const UNITS: [(char, u32); 4] = [('d', 86_400), ('h', 3600), ('m', 60), ('s', 1)];

/// Reads a time like `1d`, `12h` or `90s`.
pub(super) fn seconds(text: &str) -> Result<u32, String> {
    let wrong =
        || format!("{text:?} is not a time of at most {} days, like 1d, 12h or 90s", u32::MAX / 86_400);
    let unit = UNITS.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(*unit)?, *seconds)));
    let (digits, unit) = unit.unwrap_or((text, 1));
    let number = digits.parse::<u32>().ok().and_then(|number| number.checked_mul(unit));
    number.filter(|seconds| *seconds > 0).ok_or_else(wrong)
}

/// Formats a time in its longest unit without a rest.
pub(super) fn seconds_text(seconds: u32) -> String {
    let fits = UNITS.iter().find(|(_, unit)| seconds.is_multiple_of(*unit)).unwrap_or(&('s', 1));
    format!("{}{}", seconds / fits.1, fits.0)
}

pub(super) fn short_size(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        _ if bytes.trailing_zeros() >= 30 => format!("{}G", bytes >> 30),
        _ if bytes.trailing_zeros() >= 20 => format!("{}M", bytes >> 20),
        _ if bytes.trailing_zeros() >= 10 => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}
