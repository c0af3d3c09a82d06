//! Esker's own configuration files: the same parameters in TOML, in small letters and without `CVMFS_`.
//!
//! ```toml
//! http_proxy = "http://proxy-1:3128|http://proxy-2:3128"
//! server_url = ["http://s1.example.org/cvmfs/@fqrn@", "http://s2.example.org/cvmfs/@fqrn@"]
//! quota_limit = 20000
//! use_geoapi = true
//! ```

use std::path::Path;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::problem::{Problem, ProblemKind, SourceLine};
use super::table;

/// A setting of a file.
pub(super) struct TomlSetting {
    /// Name of the parameter.
    pub(super) name: String,
    pub(super) value: String,
    pub(super) line: u32,
}

pub(super) fn read(path: &Path, bytes: &[u8]) -> Result<Vec<TomlSetting>, Problem> {
    let problem = |line, what: String| {
        let place = SourceLine { path: Arc::from(path), line };
        Problem { place: Some(place), kind: ProblemKind::BadToml { what } }
    };
    let text = std::str::from_utf8(bytes).map_err(|_| problem(1, "the file is not UTF-8".into()))?;
    let line_of = |at: usize| {
        let line = text.get(..at).map_or(0, |before| before.matches('\n').count());
        u32::try_from(line).map_or(u32::MAX, |line| line + 1)
    };
    let whole = DeTable::parse(text).map_err(|error| {
        problem(error.span().map_or(1, |span| line_of(span.start)), error.message().to_owned())
    })?;
    let mut settings = Vec::new();
    for (key, value) in whole.get_ref() {
        let line = line_of(key.span().start);
        let name = parameter(key.get_ref());
        let separator = table::row(&name).map_or(';', |row| row.kind.separator());
        let value = scalar(value.get_ref(), separator).ok_or_else(|| {
            problem(line, format!("{} is neither a value nor a list of values", key.get_ref()))
        })?;
        settings.push(TomlSetting { name, value, line });
    }
    Ok(settings)
}

/// Returns the parameter of a key: `http_proxy` is CVMFS_HTTP_PROXY; names in capitals are taken as they are, for
/// variables of a site.
fn parameter(key: &str) -> String {
    if key.starts_with(|c: char| c.is_ascii_uppercase()) {
        return key.to_owned();
    }
    let name = key.to_ascii_uppercase();
    // A few have other beginnings, or are ours alone.
    let others = [name.clone(), format!("ESKER_{name}")];
    let other = others.into_iter().find(|name| table::row(name).is_some());
    other.unwrap_or_else(|| format!("CVMFS_{name}"))
}

fn scalar(value: &DeValue<'_>, separator: char) -> Option<String> {
    Some(match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(it) => if *it { "yes" } else { "no" }.to_owned(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(all) => {
            let mut parts = Vec::new();
            for one in all.iter() {
                match one.get_ref() {
                    DeValue::Array(_) | DeValue::Table(_) => return None,
                    plain => parts.push(scalar(plain, separator)?),
                }
            }
            parts.join(&separator.to_string())
        }
        DeValue::Table(_) => return None,
    })
}
