//! The page of what was promised and what was measured: claims, which a file lists, beside committed results.
//!
//! No number in its tables is written by hand, and a claim that fails, or a root that is slower than what it
//! is compared with, is listed without anybody having to think of it.

mod page;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::conditions::Conditions;
use crate::startup::Series;
use crate::startup::report::Results;
use crate::statistics::{Estimate, median_of, ratio_apart, ratio_of};

/// What the page is about.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outline {
    /// What stands above everything.
    intro: String,
    /// The sections.
    #[serde(default)]
    point: Vec<Point>,
}

/// A promise with its claims.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Point {
    title: String,
    goal: String,
    /// What else is to be said.
    #[serde(default)]
    text: String,
    /// The command that measures it.
    repeat: Option<String>,
    #[serde(default)]
    claim: Vec<Claim>,
}

/// One number that was promised, or is told for comparison.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    what: String,
    /// The file of results, from the outline's folder; without one it was not measured.
    data: Option<PathBuf>,
    /// Which series of it.
    root: Option<String>,
    setting: Option<String>,
    /// What it is divided by: another root, perhaps in another setting.
    against: Option<String>,
    against_setting: Option<String>,
    #[serde(default)]
    quantity: Quantity,
    /// The file that tells which bytes are needed, if `data` doesn't.
    needed: Option<PathBuf>,
    /// Instead of a series: where in the file an estimate is.
    pointer: Option<String>,
    at_most: Option<f64>,
    /// What the upper end of the interval may be.
    upper_at_most: Option<f64>,
    /// Why it is missed, or was not measured.
    why: Option<String>,
}

impl Claim {
    fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.data.iter().chain(&self.needed)
    }
}

/// What of a run is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Quantity {
    /// Seconds on the clock.
    #[default]
    Real,
    /// Processor seconds of command and client.
    Cpu,
    /// Bytes that came over the link, to those that are needed.
    Bytes,
}

/// A claim and what became of it.
#[derive(Clone, Debug)]
struct Judged<'a> {
    claim: &'a Claim,
    measured: Option<Measured>,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    value: Estimate,
    runs: Option<usize>,
    /// Whether it is a ratio; seconds otherwise.
    ratio: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Met,
    Missed,
    /// Promised but not measured.
    Open,
    /// For comparison only.
    Told,
}

impl Judged<'_> {
    fn verdict(&self) -> Verdict {
        let Some(measured) = self.measured else { return Verdict::Open };
        let within = |value: f64, limit: Option<f64>| limit.is_none_or(|limit| value <= limit);
        match (self.claim.at_most, self.claim.upper_at_most) {
            (None, None) => Verdict::Told,
            (point, upper) if within(measured.value.point, point) && within(measured.value.high, upper) => {
                Verdict::Met
            }
            _ => Verdict::Missed,
        }
    }

    /// Whether the interval reaches beyond what is promised of the median alone.
    fn in_doubt(&self) -> bool {
        let high = self.measured.map(|measured| measured.value.high);
        self.claim.upper_at_most.is_none()
            && high.zip(self.claim.at_most).is_some_and(|(high, limit)| high > limit)
    }

    /// Whether it is slower than what it is compared with, beyond doubt.
    fn loses(&self) -> bool {
        self.measured.is_some_and(|measured| measured.ratio && measured.value.low > 1.0)
    }
}

/// A file of results.
#[derive(Clone, Debug)]
struct Data {
    conditions: Conditions,
    /// If it is one of a comparison of starts.
    results: Option<Results>,
    all: Value,
}

impl Data {
    fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
        let all: Value =
            serde_json::from_str(&text).with_context(|| format!("{} isn't JSON", path.display()))?;
        let conditions = all.get("conditions").cloned().unwrap_or_default();
        let conditions = serde_json::from_value(conditions)
            .with_context(|| format!("{} doesn't tell its conditions", path.display()))?;
        let results = all
            .get("series")
            .map(|_| serde_json::from_value(all.clone()))
            .transpose()
            .with_context(|| format!("{} has series that can't be read", path.display()))?;
        Ok(Self { conditions, results, all })
    }

    fn series(&self, root: &str, setting: &str) -> Result<&Series> {
        let results = self.results.as_ref().context("the file has no series")?;
        let found = results.series.iter().find(|one| one.root == root && one.setting.to_string() == setting);
        let found = found.with_context(|| format!("there is no series of {root:?}, {setting}"))?;
        ensure!(!found.runs.is_empty(), "the series of {root:?}, {setting}, has no runs");
        Ok(found)
    }

    /// Bytes that go over a link when nothing is fetched ahead.
    fn needed(&self) -> Result<f64> {
        let needed = self.results.as_ref().and_then(|results| results.needed);
        Ok(needed.context("the file doesn't tell what is needed")?.down as f64)
    }

    /// `needed` is the file that tells what is needed.
    fn measured(&self, claim: &Claim, needed: &Self) -> Result<Measured> {
        if let Some(pointer) = &claim.pointer {
            let found =
                self.all.pointer(pointer).with_context(|| format!("there is nothing at {pointer}"))?;
            let value = match found.as_f64() {
                Some(point) => Estimate { point, low: point, high: point },
                None => serde_json::from_value(found.clone())
                    .with_context(|| format!("what is at {pointer} is no estimate"))?,
            };
            return Ok(Measured { value, runs: None, ratio: true });
        }
        let (Some(root), Some(setting)) = (&claim.root, &claim.setting) else {
            bail!("neither a pointer nor a root and its setting");
        };
        let series = self.series(root, setting)?;
        let values = needed.values(series, claim.quantity)?;
        let (value, ratio) = match &claim.against {
            Some(_) if claim.quantity == Quantity::Bytes => bail!("bytes are compared with those needed"),
            Some(against) => {
                let other = claim.against_setting.as_ref().unwrap_or(setting);
                let baseline = self.values(self.series(against, other)?, claim.quantity)?;
                // Only runs in the same setting took turns.
                let ratio = if other == setting { ratio_of } else { ratio_apart };
                (ratio(&values, &baseline), true)
            }
            None => (median_of(&values), claim.quantity == Quantity::Bytes),
        };
        Ok(Measured { value, runs: Some(values.len()), ratio })
    }

    /// The values of a series, bytes in relation to what this file says is needed.
    fn values(&self, series: &Series, quantity: Quantity) -> Result<Vec<f64>> {
        Ok(match quantity {
            Quantity::Real => series.reals(),
            Quantity::Cpu => series.cpus(),
            Quantity::Bytes => {
                let needed = self.needed()?;
                let came = |run: &crate::startup::Run| Some(run.traffic?.down as f64 / needed);
                let values: Option<Vec<f64>> = series.runs.iter().map(came).collect();
                values.context("nothing went over a link")?
            }
        })
    }
}

/// The page, in Markdown, of the outline at `path`; links and results are relative to its folder.
pub fn page(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
    let outline: Outline =
        toml::from_str(&text).with_context(|| format!("{} is no outline", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut files = BTreeMap::new();
    for name in outline.point.iter().flat_map(|point| &point.claim).flat_map(Claim::files) {
        if !files.contains_key(name) {
            files.insert(name.clone(), Data::read(&folder.join(name))?);
        }
    }
    let judge = |claim| judge(claim, &files).with_context(|| format!("{}: {:?}", path.display(), claim.what));
    let points: Vec<(&Point, Vec<Judged<'_>>)> = outline
        .point
        .iter()
        .map(|point| Ok((point, point.claim.iter().map(judge).collect::<Result<_>>()?)))
        .collect::<Result<_>>()?;
    Ok(page::render(&outline.intro, &points, &files))
}

fn judge<'a>(claim: &'a Claim, files: &BTreeMap<PathBuf, Data>) -> Result<Judged<'a>> {
    let data = claim.data.as_ref().and_then(|name| files.get(name));
    let needed = claim.needed.as_ref().and_then(|name| files.get(name));
    let measured = data.map(|data| data.measured(claim, needed.unwrap_or(data))).transpose()?;
    let judged = Judged { claim, measured };
    let verdict = judged.verdict();
    if matches!(verdict, Verdict::Missed | Verdict::Open) {
        ensure!(claim.why.is_some(), "it is {verdict:?}, and nothing tells why");
    }
    Ok(judged)
}

#[cfg(test)]
mod tests;
