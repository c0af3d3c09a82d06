//! The log of a mount's daemon.

mod follow;
mod journal;
mod line;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use esker_node::mounts;
use esker_node::registry::{self, Registered};

use crate::error::{Context, Failure, Kind};
use crate::output::{Output, parse_duration};
use crate::settings::Settings;
use follow::FileWatch;
use line::{Filter, Level, Line};

/// Prints the log of a mount's daemon, from its file or from the journal.
///
/// The file ends with the mount; what a daemon wrote to the journal stays there. Times are UTC.
///
/// Example: esker logs sw.example.org --since 1h --level warn
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Name of the mounted repository, or mount point
    #[arg(value_name = "NAME|MOUNTPOINT")]
    mount: PathBuf,

    /// Print further lines as they come, until the daemon ends
    #[arg(long, short = 'f')]
    follow: bool,

    /// Print only lines of the last seconds, minutes, hours or days, such as 90s, 30m, 1h or 2d
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    since: Option<Duration>,

    /// Print only lines of this severity or a higher one
    #[arg(long, value_name = "LEVEL", value_enum, default_value = "trace")]
    level: Level,

    /// Print a JSON object for each line
    #[arg(long)]
    json: bool,
}

/// Maximum length of a line in bytes; the rest of a longer one is a line of its own.
const LINE_MAX: u64 = 1 << 20;

/// Prints lines that pass a filter.
struct Printer {
    out: Output,
    filter: Filter,
    json: bool,
}

impl Printer {
    fn print(&mut self, line: &Line) -> Result<(), Failure> {
        match line {
            line if !self.filter.passes(line) => Ok(()),
            line if self.json => self.out.json(&line.json()),
            line => {
                let text = line.text();
                let text = self.out.name(text.as_bytes()).into_owned();
                self.out.line(text)
            }
        }
    }
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let since =
        args.since.map(|since| SystemTime::now().checked_sub(since).unwrap_or(SystemTime::UNIX_EPOCH));
    let mut printer = Printer { out: Output::new(), filter: Filter::new(args.level, since), json: args.json };
    let found = find(&args.mount, settings)?;
    let place = match &found {
        Some(mount) => journal::Place::Mount(&mount.entry.mountpoint),
        None => journal::Place::Repository(&args.mount),
    };
    let wanted = journal::Wanted { place, since, follow: args.follow };
    let file = found.as_ref().and_then(|mount| File::open(&mount.log).ok());
    // A daemon whose lines go to the journal leaves its file empty, and so does one that had nothing to say.
    let is_written = file.as_ref().is_some_and(|file| file.metadata().is_ok_and(|facts| facts.len() > 0));
    if !is_written && journal::has_lines(&wanted)? {
        journal::print(&wanted, &mut |line| printer.print(line))?;
    } else if let (Some(mount), Some(file)) = (&found, file) {
        print_file(file, args.follow.then_some(mount.log.as_path()), &mut printer)?;
    } else {
        let shown = args.mount.display();
        let failure =
            Failure::failed(format!("{shown} is not a mount of yours, and the journal has no line of it"));
        return Err(failure.hint(
            "`esker status` lists the mounts; a daemon with --log-format syslog writes to the system's log",
        ));
    }
    printer.out.finish()
}

/// Returns the mount of this user with that name or mount point.
fn find(wanted: &Path, settings: &Settings) -> Result<Option<Registered>, Failure> {
    let mut all = registry::all(&settings.runtime).context(Kind::Failed, "can't look up the mounts")?;
    let text = wanted.to_string_lossy();
    if text.contains('/') || text == "." {
        let path =
            mounts::canonical(wanted).context(Kind::Failed, format!("can't look up {}", wanted.display()))?;
        all.retain(|one| one.entry.mountpoint == path);
    } else {
        all.retain(|one| one.entry.repository == text);
    }
    if all.len() > 1 {
        let points: Vec<_> = all.iter().map(|one| one.entry.mountpoint.display().to_string()).collect();
        return Err(Failure::usage(format!("{text} is mounted {} times", all.len()))
            .hint(format!("name one of the mount points: {}", points.join(", "))));
    }
    Ok(all.pop())
}

/// Prints the lines of a file, and further ones until the file is removed, if its path is given.
fn print_file(file: File, follow: Option<&Path>, printer: &mut Printer) -> Result<(), Failure> {
    let failed = "can't read the log";
    let watch = follow.map(FileWatch::new).transpose().context(Kind::Failed, "can't watch the log")?;
    let mut reader = BufReader::new(file);
    let mut partial = Vec::new();
    let mut grows = watch.is_some();
    loop {
        let read = (&mut reader).take(LINE_MAX).read_until(b'\n', &mut partial);
        let read = read.context(Kind::Failed, failed)?;
        if read > 0 && (partial.ends_with(b"\n") || read as u64 == LINE_MAX) {
            printer.print(&Line::of(&String::from_utf8_lossy(&partial)))?;
            partial.clear();
            continue;
        }
        let Some(watch) = watch.as_ref().filter(|_| grows) else { break };
        printer.out.flush()?;
        watch.wait().context(Kind::Failed, failed)?;
        // The last lines of a daemon come before it removes its log.
        grows = reader.get_ref().metadata().context(Kind::Failed, failed)?.nlink() > 0;
    }
    if partial.is_empty() { Ok(()) } else { printer.print(&Line::of(&String::from_utf8_lossy(&partial))) }
}
