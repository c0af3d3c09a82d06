//! Shows the progress of long operations on stderr: in place on a terminal, at intervals in a log.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use esker_publish::{Phase, Progress};

use crate::output::{plain, size};

/// Progress display, which is removed on drop.
pub(crate) struct ProgressMeter {
    terminal: bool,
    quiet: bool,
    last: Instant,
    drawn: bool,
}

/// Interval of lines in a log.
const LOG_EVERY: Duration = Duration::from_secs(10);
const CLEAR: &str = "\r\x1b[K";

impl ProgressMeter {
    pub(crate) fn new(quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { terminal, quiet, last: Instant::now(), drawn: false }
    }

    pub(crate) fn show(&mut self, progress: Progress) {
        self.say(|| describe(&progress));
    }

    /// Shows a line, unless the last one is too recent.
    pub(crate) fn say(&mut self, text: impl FnOnce() -> String) {
        if self.quiet || !self.terminal && self.last.elapsed() < LOG_EVERY {
            return;
        }
        self.last = Instant::now();
        self.drawn = true;
        let text = plain(&text());
        let line = match self.terminal {
            true => format!("{CLEAR}{}", cut(&text, columns())),
            false => format!("{text}\n"),
        };
        // Progress that can't be shown is no reason to stop.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

impl ProgressMeter {
    /// Clears the line on the terminal before other output.
    pub(crate) fn clear(&mut self) {
        if self.terminal && std::mem::take(&mut self.drawn) {
            let _ = std::io::stderr().write_all(CLEAR.as_bytes());
        }
    }
}

impl Drop for ProgressMeter {
    fn drop(&mut self) {
        self.clear();
    }
}

fn columns() -> usize {
    let width = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    if width == 0 { 80 } else { width }
}

/// Cuts a line to the terminal's width: one that wraps could not be cleared again.
fn cut(text: &str, columns: usize) -> &str {
    match text.char_indices().nth(columns.saturating_sub(1)) {
        Some((at, _)) => &text[..at],
        None => text,
    }
}

fn describe(progress: &Progress) -> String {
    match progress.phase {
        Phase::Scan => format!("comparing: {} entries", progress.scanned),
        Phase::Catalogs => "writing catalogs".to_owned(),
        Phase::Commit => "making the revision durable".to_owned(),
        Phase::Store => storing(progress),
    }
}

fn storing(progress: &Progress) -> String {
    let seconds = progress.elapsed.as_secs_f64().max(0.001);
    let Progress { files, files_total, bytes, bytes_total, .. } = *progress;
    let speed = bytes as f64 / seconds;
    let speeds = format!("{:.0} files/s, {}/s", files as f64 / seconds, size(speed as u64));
    if files_total == 0 {
        return format!("storing: {files} files, {}, {speeds}", size(bytes));
    }
    let done = format!("storing: {files} of {files_total} files, {} of {}", size(bytes), size(bytes_total));
    match bytes {
        // The rate is not known yet.
        0 => done,
        _ => {
            let left = bytes_total.saturating_sub(bytes) as f64 / speed;
            format!("{done}, {speeds}, {} left", duration(Duration::from_secs_f64(left.min(1e9))))
        }
    }
}

/// Returns a duration like `12 s`, `3m 20s` or `2h 5m`.
pub(crate) fn duration(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..100 => format!("{seconds} s"),
        seconds @ 100..6000 => format!("{}m {}s", seconds / 60, seconds % 60),
        seconds => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(files: u64, files_total: u64, bytes: u64, bytes_total: u64) -> Progress {
        let elapsed = Duration::from_secs(10);
        Progress { phase: Phase::Store, scanned: 7, files, files_total, bytes, bytes_total, elapsed }
    }

    #[test]
    fn progress_tells_speeds_and_the_time_left() {
        assert_eq!(
            describe(&stored(500, 2000, 100 << 20, 1 << 30)),
            "storing: 500 of 2000 files, 100.0 MiB of 1.0 GiB, 50 files/s, 10.0 MiB/s, 92 s left"
        );
        assert_eq!(describe(&stored(0, 9, 0, 1 << 30)), "storing: 0 of 9 files, 0 B of 1.0 GiB");
        assert_eq!(describe(&stored(3, 0, 1 << 20, 0)), "storing: 3 files, 1.0 MiB, 0 files/s, 102.4 KiB/s");
        let scan = Progress { phase: Phase::Scan, ..stored(0, 0, 0, 0) };
        assert_eq!(describe(&scan), "comparing: 7 entries");
    }

    #[test]
    fn durations_are_short() {
        let text = |seconds| duration(Duration::from_secs(seconds));
        assert_eq!((text(0), text(99), text(100)), ("0 s".into(), "99 s".into(), "1m 40s".into()));
        assert_eq!((text(5999), text(6000)), ("99m 59s".into(), "1h 40m".into()));
    }

    #[test]
    fn lines_fit_the_terminal() {
        assert_eq!(cut("12345", 80), "12345");
        assert_eq!(cut("12345", 4), "123");
        assert_eq!(cut("ééé", 3), "éé");
        assert_eq!(cut("", 1), "");
    }
}
