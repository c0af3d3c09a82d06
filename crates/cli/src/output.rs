//! Output to stdout and stderr: text for users, JSON for programs. No other module writes there, so that no text of others acts on
//! a terminal.

use std::borrow::Cow;
use std::io::{BufWriter, IsTerminal, StdoutLock, Write};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use esker_node::terminal::{acts, shown, shown_in_line};
use serde::Serialize;

use crate::error::Failure;

/// True if the command was called with `--quiet`.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Option of all commands that print a report.
///
/// `main` reads it from the matches and calls [`silence`], so that no command can print a report in spite of it.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct QuietArgs {
    /// Print neither progress nor a report; faults, warnings and JSON are printed
    #[arg(long, short)]
    quiet: bool,
}

impl QuietArgs {
    pub(crate) fn is_set(self) -> bool {
        self.quiet
    }
}

/// Makes every later [`Output`] leave reports out if a command of `matches` has `--quiet`.
pub(crate) fn silence(matches: &clap::ArgMatches) {
    let is_quiet = matches!(matches.try_get_one("quiet"), Ok(Some(true)));
    IS_QUIET.fetch_or(is_quiet, Ordering::Relaxed);
    matches.subcommand().into_iter().for_each(|(_, deeper)| silence(deeper));
}

/// Standard output, buffered; call [`Output::finish`] at the end so that a full disk is not overlooked.
pub(crate) struct Output {
    out: BufWriter<StdoutLock<'static>>,
    terminal: bool,
    color: bool,
    is_quiet: bool,
}

impl Output {
    pub(crate) fn new() -> Self {
        let stdout = std::io::stdout();
        let terminal = stdout.is_terminal();
        let color = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let is_quiet = IS_QUIET.load(Ordering::Relaxed);
        Self { out: BufWriter::with_capacity(64 * 1024, stdout.lock()), terminal, color, is_quiet }
    }

    /// Writes a line of a report. Programs get all bytes; a terminal gets text that it doesn't act on.
    pub(crate) fn line(&mut self, text: impl AsRef<[u8]>) -> Result<(), Failure> {
        if self.is_quiet { Ok(()) } else { self.fault(text) }
    }

    /// Writes text of several lines as [`Self::line`] writes one.
    pub(crate) fn text(&mut self, text: impl AsRef<[u8]>) -> Result<(), Failure> {
        if self.is_quiet { Ok(()) } else { self.always(text) }
    }

    /// Writes a line that `--quiet` doesn't leave out: a fault, a warning, or the result that a script waits for.
    pub(crate) fn fault(&mut self, text: impl AsRef<[u8]>) -> Result<(), Failure> {
        self.always(text)?;
        Ok(self.out.write_all(b"\n")?)
    }

    fn always(&mut self, text: impl AsRef<[u8]>) -> Result<(), Failure> {
        let text = match self.terminal {
            true => Cow::Owned(for_terminal(&String::from_utf8_lossy(text.as_ref())).into_bytes()),
            false => Cow::Borrowed(text.as_ref()),
        };
        Ok(self.out.write_all(&text)?)
    }

    /// Writes bytes as they are, also to a terminal: the content of a file.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.out.write_all(bytes)?)
    }

    /// Returns a name or path for display: a repository must not control the terminal. Programs get all bytes.
    pub(crate) fn name<'n>(&self, name: &'n [u8]) -> Cow<'n, [u8]> {
        if self.terminal { without_controls(name) } else { Cow::Borrowed(name) }
    }

    /// Flushes the output before the command asks the user a question.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        Ok(self.out.flush()?)
    }

    /// Prints one JSON value in a line.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        self.fault(json_text(value)?)
    }

    /// Prints a JSON array, one element in each line.
    pub(crate) fn json_array(&mut self, values: impl Iterator<Item = impl Serialize>) -> Result<(), Failure> {
        let mut array = JsonArray::begin(self)?;
        for value in values {
            array.add(self, &value)?;
        }
        array.end(self)
    }

    /// Returns `text` in bold on a terminal.
    pub(crate) fn bold(&self, text: &str) -> String {
        self.painted(BOLD, text)
    }

    /// Returns `text` as a warning on a terminal.
    pub(crate) fn warning(&self, text: &str) -> String {
        self.painted(YELLOW, text)
    }

    fn painted(&self, mark: char, text: &str) -> String {
        if self.color { format!("{mark}{}{PLAIN}", shown(text)) } else { text.to_owned() }
    }

    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        Ok(self.out.flush()?)
    }
}

/// Prints the result of a command: the value as JSON, or what `text` writes.
pub(crate) fn show(
    json: bool,
    value: impl Serialize,
    text: impl FnOnce(&mut Output) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut out = Output::new();
    if json {
        out.json(&value)?
    } else {
        text(&mut out)?
    }
    out.finish()
}

/// Prints a list: the values as a JSON array, or what `text` writes.
pub(crate) fn show_all(
    json: bool,
    values: impl Iterator<Item = impl Serialize>,
    text: impl FnOnce(&mut Output) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut out = Output::new();
    if json {
        out.json_array(values)?
    } else {
        text(&mut out)?
    }
    out.finish()
}

/// A JSON array whose elements are printed as soon as they are known, one in each line.
pub(crate) struct JsonArray {
    empty: bool,
}

impl JsonArray {
    pub(crate) fn begin(out: &mut Output) -> Result<Self, Failure> {
        out.always("[")?;
        Ok(Self { empty: true })
    }

    pub(crate) fn add(&mut self, out: &mut Output, value: &impl Serialize) -> Result<(), Failure> {
        out.always(if std::mem::take(&mut self.empty) { "\n" } else { ",\n" })?;
        out.always(json_text(value)?)
    }

    pub(crate) fn end(self, out: &mut Output) -> Result<(), Failure> {
        out.always(if self.empty { "]\n" } else { "\n]\n" })
    }
}

const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Returns a size like `1.2 GiB`; below 1024 like `17 B`.
pub(crate) fn size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // A value that rounds to 1024.0 belongs to the next unit.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Parses a rate of bytes a second: `50M/s`, or a size.
pub(crate) fn parse_rate(text: &str) -> Result<u64, String> {
    parse_size(text.strip_suffix("/s").unwrap_or(text))
}

/// Reads `500M`, `2GiB`, `1.5 TiB` or a number of bytes; all units are powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is not a size: write a number of bytes, 500M or 2GiB");
    let text_trimmed = text.trim();
    let digits = text_trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text_trimmed.len());
    let (number, unit) = text_trimmed.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let unit = unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(&unit);
    let shift = match unit {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => return Err(bad()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(bad);
    }
    let value = number.parse::<f64>().map_err(|_| bad())? * (1u64 << shift) as f64;
    if value.is_finite() && value < u64::MAX as f64 { Ok(value as u64) } else { Err(bad()) }
}

/// Reads `90`, `0.5s`, `10m`, `2h` or `1d`; without a unit the number is of seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is not a duration: write it like 90s, 10m or 2h");
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let seconds = match unit.trim() {
        "" | "s" if number.contains('.') => {
            let value: f64 = number.parse().map_err(|_| bad())?;
            return Duration::try_from_secs_f64(value).map_err(|_| bad());
        }
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(bad)
}

/// Returns a parser of options that have one of these values, by name.
pub(crate) fn choice<T: Clone + Send + Sync + 'static>(
    values: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(values.iter().map(|(name, _)| *name)).try_map(|named| {
        let found = values.iter().find(|(name, _)| *name == named);
        found.map(|(_, value)| value.clone()).ok_or("there is no such value")
    })
}

/// Returns a parser of durations from `least` to `most`.
pub(crate) fn duration_between(
    least: &'static str,
    most: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| {
        let time = parse_duration(text)?;
        match parse_duration(least)? <= time && time <= parse_duration(most)? {
            true => Ok(time),
            false => Err(format!("{text:?} is not from {least} to {most}")),
        }
    }
}

/// Returns a name for one line of a terminal.
fn without_controls(name: &[u8]) -> Cow<'_, [u8]> {
    match shown_in_line(&String::from_utf8_lossy(name)) {
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        Cow::Borrowed(_) => Cow::Borrowed(name),
    }
}

/// Returns a text for one line without characters that act on a terminal, which another user or a repository may have written.
pub(crate) fn plain(text: &str) -> String {
    shown_in_line(text).into_owned()
}

/// Marks of painted text, which [`for_terminal`] replaces: characters that no text of others keeps.
const BOLD: char = '\u{fdd0}';
const YELLOW: char = '\u{fdd1}';
const PLAIN: char = '\u{fdd2}';

/// Returns text with the sequences of its marks, and a question mark for each other character that acts on a terminal.
fn for_terminal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_painted = false;
    for c in text.chars() {
        match c {
            BOLD => out.push_str("\x1b[1m"),
            YELLOW => out.push_str("\x1b[33m"),
            PLAIN => out.push_str("\x1b[0m"),
            '\n' | '\t' => out.push(c),
            c if acts(c) => out.push('?'),
            c => out.push(c),
        }
        is_painted = (is_painted && c != PLAIN) || matches!(c, BOLD | YELLOW);
    }
    if is_painted {
        out.push_str("\x1b[0m");
    }
    out
}

/// Returns JSON in which characters that act on a terminal are escaped, so that a log of it can be looked at.
pub(crate) fn json_text(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::failed(format!("can't write JSON: {error}")))?;
    if !text.contains(acts) {
        return Ok(text);
    }
    // They only stand in strings, and none needs two units of UTF-16.
    let escaped = |c: char| if acts(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    Ok(text.chars().map(escaped).collect())
}

/// Writes text for the user to stderr. A failure is ignored: if stderr is gone, nothing can be told.
pub(crate) fn tell(text: &str) {
    let mut stderr = std::io::stderr();
    let _ = stderr.write_all(shown(text).as_bytes()).and_then(|()| stderr.flush());
}

/// Returns standard error, for a program whose standard output must not mix with that of this process.
pub(crate) fn for_messages() -> Stdio {
    std::io::stderr().into()
}

/// Converts bytes that may not be UTF-8 (file names) to text for JSON and messages.
pub(crate) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        let of = |text| parse_duration(text).ok().map(|duration| duration.as_secs());
        assert_eq!(
            [of("90"), of("90s"), of("10m"), of("2h"), of("1 d")],
            [90, 90, 600, 7200, 86_400].map(Some)
        );
        assert_eq!(parse_duration("0.05"), Ok(Duration::from_millis(50)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        let between = duration_between("1s", "1d");
        assert_eq!(
            ["0.9", "1s", "1d", "86401"].map(|text| between(text).is_ok()),
            [false, true, true, false]
        );
        for bad in ["", "s", ".", "1.2.3", "-1s", "1.5m", "10 x", "99999999999999999999", "9999999999999999d"]
        {
            assert_eq!(of(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_terminal_acts_on_nothing_but_own_marks() {
        let painted = format!("{BOLD}{}{PLAIN} b\u{1b}[31m", shown("a\u{9b}1m\u{fdd1}"));
        assert_eq!(for_terminal(&painted), "\u{1b}[1ma?1m?\u{1b}[0m b?[31m");
        assert_eq!(for_terminal("x\r\u{202e}y\n\tz"), "x??y\n\tz");
        assert_eq!(for_terminal(&format!("{YELLOW}open")), "\u{1b}[33mopen\u{1b}[0m");
    }

    #[test]
    fn json_has_characters_that_act_as_escapes() {
        let value = serde_json::json!({"na\u{9b}me": ["\u{7f}\u{1b}[0m", "ü\u{202e}"]});
        let text = json_text(&value).expect("JSON");
        assert_eq!(text, r#"{"na\u009bme":["\u007f\u001b[0m","ü\u202e"]}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).expect("JSON"), value);
    }

    #[test]
    fn sizes_are_parsed_and_formatted() {
        assert_eq!(size(17), "17 B");
        assert_eq!(size(1024), "1.0 KiB");
        assert_eq!(size(1024 * 1024 - 1), "1.0 MiB");
        assert_eq!(size(1_288_490_189), "1.2 GiB");
        assert_eq!(size(u64::MAX), "16.0 EiB");
        assert_eq!(parse_size("500M"), Ok(500 << 20));
        assert_eq!(parse_size("2GiB"), Ok(2 << 30));
        assert_eq!(parse_size("1.5 kb"), Ok(1536));
        assert_eq!(parse_size("0"), Ok(0));
        for bad in ["", "G", "1X", "-1", "1.2.3", "99999999999P", "nan"] {
            assert!(parse_size(bad).is_err(), "{bad:?} was taken for a size");
        }
    }
}
