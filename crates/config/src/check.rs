//! Checks whether a configuration works on this machine: its files, keys, cache, mount points, servers and proxies,
//! each within a bounded time.

mod files;
mod reach;

use std::path::Path;
use std::time::Duration;

use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;

use crate::{Files, Finding, ParameterError, Parameters, Root, Severity};

/// Options of a check.
#[derive(Clone, Debug)]
pub struct Checking {
    /// Root of configuration, keys and lists.
    pub root: Root,
    /// Meaning of `auto` among proxies.
    pub auto: Option<String>,
    /// Time limit for all servers and proxies together.
    pub patience: Duration,
    /// True if the check contacts servers and proxies.
    pub ask: bool,
}

/// Longest public key file.
const KEY_MAX: u64 = 64 * 1024;

/// Checks the configuration of a repository, or the common one.
pub fn check(parameters: &Parameters, how: &Checking) -> Vec<Finding> {
    let mut findings = parameters.findings();
    files::configuration(parameters, how, &mut findings);
    files::cache(parameters, &mut findings);
    files::mounts(parameters, &mut findings);
    let name = parameters.name().and_then(|name| RepositoryName::parse(name).ok());
    if let Some(name) = name {
        of_repository(parameters, &name, how, &mut findings);
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

fn of_repository(
    parameters: &Parameters,
    name: &RepositoryName,
    how: &Checking,
    findings: &mut Vec<Finding>,
) {
    if let Err(error) = parameters.allowed() {
        add(findings, &error);
    }
    for error in refused(parameters, how) {
        add(findings, &error);
    }
    findings.extend(parameters.unknown_auto(how.auto.as_deref()));
    let keys = keys(parameters, how, findings);
    match parameters.servers(how.auto.as_deref()) {
        Ok(servers) if how.ask => reach::check(parameters, servers, name, keys, how, findings),
        Ok(_) => {}
        Err(error) => add(findings, &error),
    }
}

/// Returns findings for parameters that a mount would refuse or ignore.
fn refused(parameters: &Parameters, how: &Checking) -> impl Iterator<Item = ParameterError> {
    [
        parameters.pin().err(),
        parameters.tuning().err(),
        parameters.id_maps(&how.root).err(),
        parameters.visibility().err(),
        parameters.protected().err(),
        parameters.longest_ttl().err(),
        parameters.syslog().err(),
        parameters.telemetry().err(),
        parameters.talk(&how.root).err(),
    ]
    .into_iter()
    .flatten()
}

/// Adds an error, unless the same line was reported already.
fn add(findings: &mut Vec<Finding>, error: &ParameterError) {
    let finding = match error {
        ParameterError::Missing { .. } => Finding::new(Severity::Error, error.to_string(), error.mend()),
        ParameterError::Bad { parameter, value, origin, why, .. } => {
            let what = format!("{parameter}={value} can't be: {why}");
            Finding::new(Severity::Error, what, error.mend()).at(origin)
        }
    };
    if !findings.iter().any(|known| known.what == finding.what && known.place == finding.place) {
        findings.push(finding);
    }
}

/// Reads the existing keys of the repository.
fn keys(parameters: &Parameters, how: &Checking, findings: &mut Vec<Finding>) -> Option<MasterKeys> {
    let keys = match parameters.keys() {
        Ok(keys) => keys,
        Err(error) => {
            add(findings, &error);
            return None;
        }
    };
    let place = keys.from.as_ref().map(|(_, origin)| origin.to_string());
    let parameter = keys.from.as_ref().map_or("CVMFS_KEYS_DIR", |(parameter, _)| parameter.as_str());
    let mut problem = |what: String, mend: String| {
        findings.push(Finding { place: place.clone(), ..Finding::new(Severity::Error, what, mend) });
    };
    let bring = "put the repository's master key there; its publisher, or a machine that mounts it, has it"
        .to_owned();
    let mut all: Option<MasterKeys> = None;
    let mut files = Vec::new();
    for path in &keys.paths {
        match how.root.names(path) {
            Ok(names) => {
                let keys = names.iter().filter(|name| name.ends_with(".pub"));
                let before = files.len();
                files.extend(keys.map(|name| path.join(name)));
                if files.len() == before {
                    problem(
                        format!("{parameter}: {} has no public key (*.pub) in it", path.display()),
                        bring.clone(),
                    );
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => files.push(path.clone()),
            Err(error) => problem(format!("{parameter}: {}: {error}", path.display()), bring.clone()),
        }
    }
    for path in files {
        let shown = path.display();
        let text = match how.root.read(&path, KEY_MAX) {
            Ok(text) => text,
            Err(error) => {
                problem(
                    format!("can't read the public key {shown}: {error}"),
                    format!("`chmod a+r {shown}`"),
                );
                continue;
            }
        };
        let added = match &mut all {
            Some(keys) => keys.add(&text),
            None => MasterKeys::parse(&text).map(|first| all = Some(first)),
        };
        if let Err(error) = added {
            problem(
                format!("{shown} is not a public key: {error}"),
                "get the file again from its publisher".into(),
            );
        }
        if files::others_may_write(&how.root.place(&path)) {
            problem(
                format!("other users may change the public key {shown}, and with it the trusted signer"),
                format!("`chmod go-w {shown}`"),
            );
        }
    }
    all
}

/// Returns a path as the configuration has it.
fn shown(path: &Path) -> std::path::Display<'_> {
    path.display()
}
