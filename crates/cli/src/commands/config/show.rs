use std::borrow::Cow;

use esker_config::{Origin, Setting, State, table};
use serde::Serialize;

use super::FindingJson;
use crate::error::{Failure, warn};
use crate::output::Output;
use crate::settings::Settings;
use crate::settings::configuration;

/// Prints the parameters that are set, and the lines that have no effect.
///
/// Example: esker config show sw.example.org --origin
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Repository [default: settings common to all repositories]
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// Print the file and line of each value
    #[arg(long)]
    origin: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Parameters in JSON. Field names are an interface.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    repository: Option<&'a str>,
    files: Vec<String>,
    parameters: Vec<ParameterJson<'a>>,
    findings: Vec<FindingJson<'a>>,
}

#[derive(Serialize)]
struct ParameterJson<'a> {
    name: &'a str,
    value: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    /// `honoured`, `accepted`, `not honoured`, or `unknown` for a variable of the site.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

impl<'a> ParameterJson<'a> {
    fn new(name: &'a str, setting: &'a Setting) -> Self {
        let (file, line) = match &setting.origin {
            Origin::File(place) => (Some(place.path.display().to_string()), Some(place.line)),
            Origin::Environment(_) | Origin::Option(_) => (None, None),
        };
        let (state, reason) = match table::row(name).map(|row| row.state) {
            None => ("unknown", None),
            Some(State::Honoured(_)) => ("honoured", None),
            Some(State::Meaningless(why)) => ("accepted", Some(why)),
            Some(State::Not(why)) => ("not honoured", Some(why)),
        };
        Self { name, value: table::shown(name, &setting.value), file, line, state, reason }
    }
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let name = args.name.as_deref().map(|name| configuration::full_name(settings, name)).transpose()?;
    let parameters = configuration::load(settings, name.as_ref().map(|name| name.as_str()));
    let findings = parameters.findings();
    let mut out = Output::new();
    if args.json {
        out.json(&Shown {
            repository: parameters.name(),
            files: parameters.files().iter().map(|path| path.display().to_string()).collect(),
            parameters: parameters
                .all()
                .iter()
                .map(|(name, setting)| ParameterJson::new(name, setting))
                .collect(),
            findings: findings.iter().map(FindingJson::from).collect(),
        })?;
        return out.finish();
    }
    for (name, setting) in parameters.all() {
        let value = table::shown(name, &setting.value);
        if args.origin {
            out.line(format!("{name}={value}    # from {}", setting.origin))?;
        } else {
            out.line(format!("{name}={value}"))?;
        }
    }
    out.finish()?;
    for finding in &findings {
        warn(Some(&finding.to_string()));
    }
    Ok(())
}
