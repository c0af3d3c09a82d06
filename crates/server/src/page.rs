//! Writes the page for humans: one table, nothing to load, nothing to run.

use std::fmt::Write as _;

use esker_format::time::UnixTime;

use hyper::header::CONTENT_SECURITY_POLICY;

use crate::answer::Answer;
use crate::date;
use crate::listing::{Entry, State, Totals};

/// Seconds the page may be cached.
const LIFETIME: u32 = 5;

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:16px/1.5 system-ui,sans-serif;max-width:72rem;margin:2.5rem auto;padding:0 1.25rem}\
h1{font-size:1.5rem;margin:0}p{margin:.3rem 0 1.5rem;opacity:.75}\
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}\
th,td{text-align:left;padding:.5rem 1.25rem .5rem 0;border-bottom:1px solid #8884;vertical-align:top;white-space:nowrap}\
th{font-weight:600;font-size:.85rem;opacity:.75}.n{text-align:right;font-variant-numeric:tabular-nums}\
td small{display:block;opacity:.7;font-size:.8rem}code{font-size:.85em}.bad{white-space:normal;color:#c33}";

/// Returns the page.
pub(crate) fn index(entries: &[Entry]) -> Answer {
    let now = date::now();
    let mut rows = String::new();
    for entry in entries {
        row(&mut rows, entry, now);
    }
    let count = match entries.len() {
        0 => "No repository is in the served folders.".to_owned(),
        1 => "1 repository".to_owned(),
        many => format!("{many} repositories"),
    };
    let table = if entries.is_empty() {
        String::new()
    } else {
        format!(
            "<div class=wide><table><thead><tr><th>Repository<th class=n>Revision<th>Last publish\
             <th class=n>Size<th class=n>Entries<th>Root catalog</thead><tbody>{rows}</tbody></table></div>"
        )
    };
    let text = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Repositories</title>\
         <meta name=viewport content=\"width=device-width,initial-scale=1\"><style>{STYLE}</style>\
         <h1>Software repositories</h1><p>{count}. Served by Esker, mountable with Esker and CernVM-FS. \
         <a href=/cvmfs/info/v1/repositories.json>JSON</a></p>{table}\n"
    );
    Answer::made("text/html; charset=utf-8", LIFETIME, text)
        .with(CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'")
}

fn row(rows: &mut String, entry: &Entry, now: UnixTime) {
    let folder = escaped(&entry.folder);
    let replica = if entry.replica { "<small>replica</small>" } else { "" };
    let cells = match &entry.state {
        Err(reason) => format!("<td colspan=5 class=bad>{}", escaped(reason)),
        Ok(state) => cells(state, now),
    };
    // Writing to a string succeeds.
    let _ = write!(rows, "<tr><td><b>{folder}</b><small>/cvmfs/{folder}</small>{replica}{cells}");
}

fn cells(state: &State, now: UnixTime) -> String {
    let totals = match &state.totals {
        Some(Ok(Totals { entries, bytes })) => {
            format!("<td class=n>{}<td class=n>{}", size(*bytes), grouped(*entries))
        }
        Some(Err(reason)) => format!("<td colspan=2 class=bad>{}", escaped(reason)),
        None => "<td colspan=2>".to_owned(),
    };
    let root = state.root.to_string();
    format!(
        "<td class=n>{}<td>{}<small>{}</small>{totals}<td><code title=\"{root}\">{}…</code>",
        grouped(state.revision),
        ago(now.0.saturating_sub(state.published.0)),
        state.published,
        root.get(..12).unwrap_or(&root),
    )
}

/// Returns an age in the largest unit that fits.
fn ago(seconds: i64) -> String {
    let (count, unit) = match seconds {
        ..=0 => return "just now".to_owned(),
        1..120 => (seconds, "second"),
        120..7200 => (seconds / 60, "minute"),
        7200..172_800 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{count} {unit}{} ago", if count == 1 { "" } else { "s" })
}

fn size(bytes: u64) -> String {
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
fn grouped(number: u64) -> String {
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

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_for_humans() {
        assert_eq!(grouped(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(grouped(12), "12");
        assert_eq!(size(17), "17 B");
        assert_eq!(size(2_145_417_672), "2.0 GiB");
        assert_eq!(ago(-5), "just now");
        assert_eq!(ago(1), "1 second ago");
        assert_eq!(ago(3 * 86_400 + 5), "3 days ago");
        assert_eq!(escaped("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
    }
}
