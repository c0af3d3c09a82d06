//! Findings about a configuration that need no request to a server.

use super::load::EMULATED_VERSION;
use super::{Parameters, ProblemKind, State, table};

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The setting works, but not as written.
    Warning,
    /// The setting does not work.
    Error,
}

/// A problem in the configuration, with advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Severity.
    pub severity: Severity,
    /// Location as `file:line`, if there is one.
    pub place: Option<String>,
    /// Description of the problem.
    pub what: String,
    /// Advice for the user.
    pub mend: String,
}

impl Finding {
    /// Creates a finding without a location.
    pub fn new(severity: Severity, what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { severity, place: None, what: what.into(), mend: mend.into() }
    }

    /// Adds the location.
    pub fn at(mut self, place: impl ToString) -> Self {
        self.place = Some(place.to_string());
        self
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.what)
    }
}

impl Parameters {
    /// Returns lines without effect, invalid values, unknown names, and parameters that Esker does not honour.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings: Vec<Finding> = self.problems().iter().map(of_problem).collect();
        for (name, setting) in self.all() {
            let place = setting.origin.to_string();
            let row = table::row(name);
            let unknown = row.is_none() && name.starts_with("CVMFS_");
            if unknown {
                findings.push(of_unknown(name).at(&place));
            }
            let Some(row) = row.filter(|_| !setting.value.is_empty()) else { continue };
            if let Err(why) = row.kind.check(&setting.value) {
                let what = format!("{name}={} can't be: {why}", table::shown(name, &setting.value));
                findings.push(
                    Finding::new(
                        Severity::Error,
                        what,
                        format!("correct the line; {name} takes {}", row.kind.words()),
                    )
                    .at(&place),
                );
            }
            let is_default = setting.value == row.default
                || table::switch(&setting.value).is_some_and(|it| table::switch(row.default) == Some(it));
            if let (State::Not(why), false) = (row.state, is_default) {
                let what = format!("{name}={} is not honoured: {why}", table::shown(name, &setting.value));
                let mend = format!("Esker works without it; docs/parameters.md describes {name}");
                findings.push(Finding::new(Severity::Warning, what, mend).at(&place));
            }
        }
        findings.extend(self.contradictions());
        findings
    }
}

fn of_unknown(name: &str) -> Finding {
    let what =
        format!("{name} is unknown to Esker, which knows the parameters of CernVM-FS {EMULATED_VERSION}");
    // The line may be for a newer client, or for a tool of the site.
    let mend = match table::nearest(name) {
        Some(near) => {
            format!("write {near} if you mean that; otherwise leave the line to the client that reads it")
        }
        None => "leave the line to the client that reads it, or correct the name".into(),
    };
    Finding::new(Severity::Warning, what, mend)
}

fn of_problem(problem: &super::Problem) -> Finding {
    let severity = match &problem.kind {
        ProblemKind::ReadOnly { .. }
        | ProblemKind::Protected { .. }
        | ProblemKind::NotForOthers { .. }
        | ProblemKind::NotText
        | ProblemKind::OnlySourced { .. } => Severity::Warning,
        ProblemKind::NotEvaluated { names, .. } if names.is_empty() => Severity::Warning,
        ProblemKind::ConfigRepository { required: false, .. } => Severity::Warning,
        _ => Severity::Error,
    };
    let place = problem.place.as_ref().map(ToString::to_string);
    Finding { place, ..Finding::new(severity, problem.kind.to_string(), problem.mend()) }
}
