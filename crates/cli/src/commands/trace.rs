mod blocked;
mod collected;
mod flame;
mod follow;
mod hand_over;
mod json;
mod main_thread;
mod profile;
mod program;
mod report;
mod svg;
mod table;
mod targets;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use esker_node::trace::{TraceRequest, TraceScope};

use self::follow::Following;
use self::program::Program;
use self::report::Report;
use crate::error::{Context, Failure, Kind, warn};
use crate::output::{Output, parse_duration, tell};
use crate::process::limits::OpenFiles;
use crate::settings::Settings;

pub(crate) use self::collected::full_path;
pub(crate) use self::table::time;

/// Shows which files of mounts a command used, where they came from, and how long it waited for them.
///
/// The trace has the requests that the command and its children send to mounts of this user, or for root to all mounts.
/// It needs neither ptrace nor root. Files in the kernel's cache send no request; see `--every-name`. The report goes to
/// standard error, so that it stays apart from the command's output; with `--pid` it goes to standard output.
///
/// Example: esker trace -- python3 -c 'import json'
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// File to write the report to; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Form of the report: a table, JSON, folded stacks for flame graph viewers, or a flame graph
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,

    /// Trace a process that runs already, and its children, until it ends or Ctrl-C
    #[arg(long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,

    /// End the trace of --pid after this time, like 10s or 2m
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, requires = "pid")]
    duration: Option<Duration>,

    /// Trace names in the kernel's cache, too: it looks every name up again
    #[arg(long)]
    every_name: bool,

    /// Profile to write, too: the files of the repository in the order of their first reads, for `esker profile add`
    #[arg(long = "save-profile", alias = "profile", value_name = "FILE")]
    profile: Option<PathBuf>,

    /// Number of files in the table; 0 for all
    #[arg(long, value_name = "N", default_value_t = 40)]
    top: usize,

    /// Command and its arguments
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "pid")]
    command: Vec<OsString>,
}

/// Form of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Text for people.
    Table,
    /// One JSON object.
    Json,
    /// A line for each file: frames joined by `;`, and microseconds.
    Folded,
    /// A picture that needs nothing from outside.
    Svg,
}

pub(crate) fn run(args: Args, settings: &Settings, files: OpenFiles) -> Result<ExitCode, Failure> {
    let program = Program::prepare(args.pid)?;
    let request = TraceRequest {
        whose: args.pid.map_or(TraceScope::Children, TraceScope::Process),
        over_us: 0,
        every_name: args.every_name,
    };
    let output = match args.output.as_deref() {
        Some(path) if path != Path::new("-") => {
            // The command may change the directory of a relative path; a bad path should cost no run.
            let path = std::path::absolute(path).context(Kind::Usage, "can't write the report")?;
            let what = format!("can't write {}", path.display());
            Some(std::fs::File::create(&path).context(Kind::Usage, what)?)
        }
        _ => None,
    };
    let profile = args.profile.map(std::path::absolute).transpose();
    let profile = profile.context(Kind::Usage, "can't write the profile")?;
    let following = Following::begin(settings, &request)?;
    let watched = program.watch(&args.command, files, args.duration);
    let collected = following.end();
    let watched = watched?;
    let report = Report { watched, collected, top: args.top };
    let text = text(&report, args.format)?;
    match output {
        Some(mut file) => file.write_all(&text).context(Kind::Failed, "can't write the report")?,
        None if args.output.is_some() || args.pid.is_some() => {
            let mut out = Output::new();
            out.text(&text)?;
            out.finish()?;
        }
        None => tell(&String::from_utf8_lossy(&text)),
    }
    if let Some(path) = &profile {
        profile::write(path, &report)?;
    }
    if args.format != Format::Table {
        report.notes().iter().for_each(|note| warn(Some(note)));
    }
    Ok(report.watched.exit_code())
}

/// Returns the report in its form.
fn text(report: &Report, format: Format) -> Result<Vec<u8>, Failure> {
    match format {
        Format::Table => Ok(table::write(report)),
        Format::Json => json::write(report),
        Format::Folded => Ok(flame::folded(&flame::stacks(&report.collected))),
        Format::Svg => Ok(svg::write(&report.watched.name, &flame::stacks(&report.collected))),
    }
}
