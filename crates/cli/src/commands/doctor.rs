use std::path::PathBuf;

use serde::Serialize;

use crate::error::Failure;
use crate::machine::doctor::{Finding, ProbeTarget, Severity, examine};
use crate::output::Output;
use crate::settings::Settings;

/// Finds faults of this node and suggests corrections, within ten seconds.
///
/// Exit code 0 reports that mounts work, 1 that they don't, for use as a health check of nodes.
///
/// Example: esker doctor
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Show passed checks too
    #[arg(long, short)]
    verbose: bool,

    /// Probe a path that may hang; the doctor starts itself with this option
    #[arg(long, hide = true, value_name = "WHAT", requires = "path")]
    touch: Option<ProbeTarget>,

    #[arg(hide = true)]
    path: Option<PathBuf>,
}

/// Findings in JSON. Field names are an interface.
#[derive(Serialize)]
struct Report<'a> {
    healthy: bool,
    findings: &'a [Finding],
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let mut out = Output::new();
    if let (Some(touch), Some(path)) = (args.touch, &args.path) {
        out.line(touch.perform(path, settings))?;
        return out.finish();
    }
    let findings = examine(settings);
    let broken = findings.iter().filter(|finding| finding.grade == Severity::Broken).count();
    if args.json {
        out.json(&Report { healthy: broken == 0, findings: &findings })?;
    } else {
        print(&mut out, &findings, args.verbose)?;
    }
    out.finish()?;
    match broken {
        0 => Ok(()),
        1 => Err(Failure::failed("one thing on this node is broken")),
        many => Err(Failure::failed(format!("{many} things on this node are broken"))),
    }
}

fn print(out: &mut Output, findings: &[Finding], verbose: bool) -> Result<(), Failure> {
    for finding in findings {
        let Finding { check, object, grade, found, mend } = finding;
        let word = match grade {
            Severity::Good if !verbose => continue,
            Severity::Good => "good   ".to_owned(),
            Severity::Warning => out.warning("warning"),
            Severity::Broken => out.bold("BROKEN "),
        };
        out.line(format!("{word} {check} {object}: {found}"))?;
        if let Some(mend) = mend {
            out.line(format!("        fix: {mend}"))?;
        }
    }
    if findings.iter().all(|finding| finding.grade == Severity::Good) {
        out.line(format!("no problems found: {} checks", findings.len()))?;
    }
    Ok(())
}
