//! Writes a trace as a table.

use std::fmt::Write as _;
use std::time::Duration;

use super::blocked::{Blocked, CAUSES};
use super::collected::{FileUse, Found};
use super::report::Report;
use crate::output::{plain, size};

/// Number of missing names in the table, unless all are shown.
const MISSING: usize = 10;

/// Returns the report.
pub(super) fn write(report: &Report) -> Vec<u8> {
    let mut text = String::new();
    // Writing to a string can't fail.
    let _ = write_to(&mut text, report);
    text.into_bytes()
}

fn write_to(text: &mut String, report: &Report) -> std::fmt::Result {
    let collected = &report.collected;
    let blocked = Blocked::of(&collected.waits);
    let wall = report.watched.wall;
    writeln!(text, "{}", plain(&report.watched.name))?;
    writeln!(text, "{}", verdict(&blocked, wall))?;
    writeln!(
        text,
        "{} requests of {}; all threads together waited {}",
        collected.requests,
        count(collected.processes.len() as u64, "process", "processes"),
        time(blocked.sum)
    )?;
    if let Some(division) = report.main_thread() {
        let [ran, ready, mounts, rest] =
            [division.ran, division.ready, division.mounts, division.rest].map(time);
        writeln!(
            text,
            "main thread: ran {ran}; waited {ready} for a core, {mounts} for mounts, {rest} for anything else"
        )?;
    }
    let files = slowest(report, false);
    let shown = if report.top == 0 { files.len() } else { report.top.min(files.len()) };
    if !files.is_empty() {
        writeln!(text)?;
        let head = ["TIME", "NETWORK", "DISK", "UNPACK", "BYTES", "SOURCE"];
        let [all, network, disk, unpack, bytes, source] = head;
        writeln!(
            text,
            "{all:>9} {network:>9} {disk:>9} {unpack:>9} {bytes:>10} {:>4}  {:9}  {source:7}  PATH",
            "REQ", "USE"
        )?;
    }
    for (path, file) in files.iter().take(shown) {
        let of = |nanos: u64| if nanos == 0 { "-".to_owned() } else { time(Duration::from_nanos(nanos)) };
        let bytes = if file.bytes == 0 { "-".to_owned() } else { size(file.bytes) };
        writeln!(
            text,
            "{:>9} {:>9} {:>9} {:>9} {bytes:>10} {:>4}  {:9}  {:7}  {}{}",
            time(Duration::from_nanos(file.took_ns)),
            of(file.network_ns),
            of(file.disk_ns),
            of(file.processing_ns),
            file.requests(),
            file.found().name().replace('_', " "),
            file.farthest().name(),
            plain(path),
            failure(file),
        )?;
    }
    if shown < files.len() {
        let rest: u64 = files[shown..].iter().map(|(_, file)| file.took_ns).sum();
        let more = files.len() - shown;
        writeln!(text, "{:>9}  {more} more; --top 0 shows all", time(Duration::from_nanos(rest)))?;
    }
    write_missing(text, report)?;
    write_places(text, report)?;
    for note in report.notes() {
        writeln!(text, "note: {}", plain(&note))?;
    }
    if collected.requests == 0 {
        writeln!(
            text,
            "The command sent no request to a mount: it used none, or the kernel had everything in its cache."
        )?;
    }
    writeln!(
        text,
        "Files in the kernel's cache send no request; --every-name makes the kernel ask for each name again."
    )
}

/// Returns the files that exist, or the missing names, the slowest first.
fn slowest(report: &Report, is_missing: bool) -> Vec<(String, &FileUse)> {
    let wanted = report.collected.files.iter();
    let wanted = wanted.filter(|(_, file)| (file.found() == Found::Missing) == is_missing);
    let mut files: Vec<(String, &FileUse)> =
        wanted.map(|((mount, path), file)| (report.collected.full_path(*mount, path), file)).collect();
    files.sort_by(|(one, a), (other, b)| b.took_ns.cmp(&a.took_ns).then(one.cmp(other)));
    files
}

fn write_missing(text: &mut String, report: &Report) -> std::fmt::Result {
    let missing = slowest(report, true);
    if missing.is_empty() {
        return Ok(());
    }
    let all: u64 = missing.iter().map(|(_, file)| file.took_ns).sum();
    let names = count(missing.len() as u64, "name does", "names do");
    writeln!(text, "\n{names} not exist; to learn that took {}:", time(Duration::from_nanos(all)))?;
    let shown = if report.top == 0 { missing.len() } else { MISSING.min(missing.len()) };
    for (path, file) in missing.iter().take(shown) {
        writeln!(text, "{:>9}  {}", time(Duration::from_nanos(file.took_ns)), plain(path))?;
    }
    if shown < missing.len() {
        writeln!(text, "{:>9}  {} more; --top 0 shows all", "", missing.len() - shown)?;
    }
    Ok(())
}

/// Writes the bytes by source and place.
fn write_places(text: &mut String, report: &Report) -> std::fmt::Result {
    let mut sums = std::collections::BTreeMap::new();
    for file in report.collected.files.values() {
        for (source, bytes) in &file.sources {
            let sum: &mut (u64, std::collections::BTreeSet<&str>) = sums.entry(*source).or_default();
            sum.0 = sum.0.saturating_add(*bytes);
            if *source == file.farthest() {
                sum.1.extend(file.places.iter().map(String::as_str));
            }
        }
    }
    sums.retain(|_, (bytes, _)| *bytes > 0);
    if !sums.is_empty() {
        writeln!(text)?;
    }
    for (source, (bytes, places)) in sums {
        let places: Vec<String> = places.into_iter().map(plain).collect();
        let from = if places.is_empty() { String::new() } else { format!(": {}", places.join(", ")) };
        writeln!(text, "{:>10} from {}{from}", size(bytes), source.name())?;
    }
    writeln!(text)
}

fn failure(file: &FileUse) -> String {
    if file.errors == 0 {
        return String::new();
    }
    format!("  ({} failed: {})", file.errors, std::io::Error::from_raw_os_error(file.errno))
}

/// Answers in one line whether the file system is the cause.
pub(super) fn verdict(blocked: &Blocked, wall: Duration) -> String {
    let share = blocked.share(wall);
    let answer = match share {
        _ if share >= 0.5 => "It is the file system",
        _ if share >= 0.1 => "The file system is a part of it",
        _ => "It is not the file system",
    };
    let parts: Vec<String> = CAUSES
        .iter()
        .zip(blocked.by_cause)
        .filter(|(_, time)| !time.is_zero())
        .map(|(cause, time)| {
            format!("{cause} {}", percent(time.as_secs_f64() / wall.as_secs_f64().max(1e-9)))
        })
        .collect();
    let causes = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
    let (waited, of) = (time(blocked.wall), time(wall));
    format!("{answer}: it waited {waited} of {of} for mounts ({}){causes}", percent(share))
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 1.0 { "under 1 %".to_owned() } else { format!("{percent:.0} %") }
}

fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Returns a duration with three digits.
pub(crate) fn time(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    match micros {
        _ if micros < 999.5 => format!("{micros:.0} µs"),
        _ if micros < 99_950.0 => format!("{:.1} ms", micros / 1e3),
        _ if micros < 999_500.0 => format!("{:.0} ms", micros / 1e3),
        _ => format!("{:.2} s", micros / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use esker_node::trace::{Operation, Source, TraceStart, TracedCall, WaitsNs};

    use super::super::collected::Collected;
    use super::super::main_thread::Scheduled;
    use super::super::program::Watched;
    use super::super::tests::call;
    use super::*;

    #[test]
    fn times_have_units() {
        let of = |nanos| time(Duration::from_nanos(nanos));
        assert_eq!([of(0), of(1_499), of(1_500_000)], ["0 µs", "1 µs", "1.5 ms"]);
        assert_eq!([of(999_600), of(120_000_000), of(2_000_000_000)], ["1.0 ms", "120 ms", "2.00 s"]);
    }

    #[test]
    fn a_table_names_files_missing_names_and_the_cause() {
        let start = TraceStart { mountpoint: "/cvmfs/a.test".into(), ..TraceStart::default() };
        let mut collected = Collected::new(vec![start], vec!["/b is not traced: no answer".to_owned()]);
        let waits = WaitsNs { network: 600_000_000, ..WaitsNs::default() };
        let read = TracedCall {
            took_ns: 600_000_000,
            bytes: 4096,
            source: Source::Network,
            place: Some("http://server/cvmfs/a.test".into()),
            waits,
            ..call("/lib/\u{1b}[2Jx", Operation::Read)
        };
        collected.add(0, &read);
        let missing = call("/gone", Operation::Lookup);
        collected.add(0, &TracedCall { errno: libc::ENOENT, took_ns: 1_000, ..missing });
        let mut watched = Watched::of_test("python3 -c pass", Duration::from_secs(1));
        watched.scheduled = Scheduled::parse("300000000 20000000 1");
        let report = Report { watched, collected, top: 40 };
        let text = String::from_utf8(write(&report)).expect("text");
        for part in [
            "It is the file system: it waited 600 ms of 1.00 s for mounts (60 %): network 60 %",
            "2 requests of 1 process;",
            "main thread: ran 300 ms; waited 20.0 ms for a core, 600 ms for mounts, 80.0 ms for anything else",
            "/cvmfs/a.test/lib/?[2Jx",
            "1 name does not exist",
            "/cvmfs/a.test/gone",
            "4.0 KiB from network: http://server/cvmfs/a.test",
            "note: /b is not traced: no answer",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn a_program_that_waits_for_nothing_is_not_slowed_by_the_file_system() {
        let line = verdict(&Blocked::default(), Duration::from_secs(2));
        assert_eq!(line, "It is not the file system: it waited 0 µs of 2.00 s for mounts (0 %)");
    }
}
