use std::time::Duration;

use esker_config::check::{Checking, check};
use esker_config::{Finding, Root, Severity};
use serde::Serialize;

use super::{FindingJson, severity_text};
use crate::error::Failure;
use crate::output::Output;
use crate::settings::Settings;
use crate::settings::configuration;

/// Time limit for all servers and proxies of a repository together.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Checks configuration, keys, cache, mount points, servers and proxies.
///
/// Suggests a correction for each finding.
///
/// Example: esker config check sw.example.org
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Repositories [default: those in CVMFS_REPOSITORIES, or the settings common to all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Do not contact servers and proxies
    #[arg(long)]
    offline: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Findings in JSON. Field names are an interface.
#[derive(Serialize)]
struct CheckedJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    repository: Option<&'a str>,
    findings: Vec<FindingJson<'a>>,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let checked = all(args, settings)?;
    let mut out = Output::new();
    if args.json {
        let json = checked.iter().map(|(name, findings)| CheckedJson {
            repository: name.as_deref(),
            findings: findings.iter().map(FindingJson::from).collect(),
        });
        out.json_array(json)?;
    } else {
        for (name, findings) in &checked {
            print(&mut out, name.as_deref(), findings)?;
        }
    }
    out.finish()?;
    let errors = checked
        .iter()
        .flat_map(|(_, findings)| findings)
        .filter(|finding| finding.severity == Severity::Error);
    match errors.count() {
        0 => Ok(()),
        1 => Err(Failure::usage("the configuration has an error")),
        errors => Err(Failure::usage(format!("the configuration has {errors} errors"))),
    }
}

/// Findings for a repository, or for the configuration of all.
type Checked = (Option<String>, Vec<Finding>);

fn all(args: &Args, settings: &Settings) -> Result<Vec<Checked>, Failure> {
    let auto = settings.environment.proxy().map(str::to_owned);
    let how =
        Checking { root: Root::new(&settings.config_root), auto, patience: TIMEOUT, ask: !args.offline };
    let mut names = Vec::new();
    for name in &args.names {
        names.push(configuration::full_name(settings, name)?.to_string());
    }
    if names.is_empty() {
        let general = configuration::load(settings, None);
        // A list that makes no sense is among the findings.
        names = general.repositories().unwrap_or_default();
        if names.is_empty() {
            return Ok(vec![(None, check(&general, &how))]);
        }
    }
    let found = names.into_iter().map(|name| {
        let parameters = configuration::load(settings, Some(&name));
        (Some(name), check(&parameters, &how))
    });
    Ok(found.collect())
}

fn print(out: &mut Output, name: Option<&str>, findings: &[Finding]) -> Result<(), Failure> {
    let name = name.unwrap_or("all repositories");
    if findings.is_empty() {
        return out.line(format!("{name}: OK"));
    }
    out.line(out.bold(name))?;
    for finding in findings {
        out.line(format!("  {}: {finding}", out.warning(severity_text(finding.severity))))?;
        out.line(format!("    fix: {}", finding.mend))?;
    }
    Ok(())
}
