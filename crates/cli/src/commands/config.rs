mod check;
mod show;

use std::path::PathBuf;

use esker_config::{Finding, Severity};
use serde::Serialize;

use crate::error::Failure;
use crate::settings::Settings;

/// Shows and checks the configuration in /etc/cvmfs and /etc/esker.
///
/// Example: esker config show sw.example.org --origin
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,

    /// Read configuration, keys and lists below this folder in place of /
    #[arg(long, value_name = "DIR", global = true)]
    config_root: Option<PathBuf>,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Show(show::Args),
    Check(check::Args),
}

pub(crate) fn run(args: Args, settings: &Settings) -> Result<(), Failure> {
    let mut settings = settings.clone();
    if let Some(root) = &args.config_root {
        settings.config_root = std::path::absolute(root)
            .map_err(|error| Failure::usage(format!("--config-root {}: {error}", root.display())))?;
        settings.own_config = None;
    }
    match args.command {
        Command::Show(args) => show::run(&args, &settings),
        Command::Check(args) => check::run(&args, &settings),
    }
}

/// A finding as JSON. Field names are an interface.
#[derive(Serialize)]
struct FindingJson<'a> {
    severity: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<&'a str>,
    what: &'a str,
    mend: &'a str,
}

impl<'a> From<&'a Finding> for FindingJson<'a> {
    fn from(finding: &'a Finding) -> Self {
        let severity = severity_text(finding.severity);
        Self { severity, place: finding.place.as_deref(), what: &finding.what, mend: &finding.mend }
    }
}

fn severity_text(severity: Severity) -> &'static str {
    match severity {
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}
