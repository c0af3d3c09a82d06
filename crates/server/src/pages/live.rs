//! Numbers that the script of the pages renews.

use esker_format::time::UnixTime;
use serde_json::{Map, Value, json};

use super::numbers::{ago, grouped, machine, size};
use super::site::{percent, rate};
use crate::dashboard::{RepositoryState, SECONDS, TrafficReport};

/// Returns texts and times by the names that the pages give them, and the values of the charts.
pub(crate) fn json(states: &[RepositoryState], report: &TrafficReport, now: UnixTime) -> Value {
    let (mut texts, mut times) = (Map::new(), Map::new());
    for state in states {
        if let Ok(head) = &state.head {
            texts.insert(format!("{} revision", state.folder), grouped(head.revision).into());
            let age = ago(head.published, now).into_string();
            let words = age.split_once('>').and_then(|(_, rest)| rest.strip_suffix("</time>"));
            texts.insert(format!("{} published", state.folder), words.unwrap_or_default().into());
            times.insert(format!("{} published", state.folder), machine(head.published).into());
        }
    }
    let last = report.last();
    texts.insert("site requests".to_owned(), rate(last.requests).into());
    texts.insert("site hits".to_owned(), percent(&last).into());
    texts.insert("site bytes".to_owned(), size(last.bytes / SECONDS).into());
    texts.insert("site failures".to_owned(), grouped(last.failures).into());
    let requests: Vec<u64> = report.samples.iter().map(|sample| sample.requests).collect();
    let bytes: Vec<u64> = report.samples.iter().map(|sample| sample.bytes / SECONDS).collect();
    let most = |values: &[u64]| values.iter().copied().max().unwrap_or_default();
    texts.insert("top requests".to_owned(), rate(most(&requests)).into());
    texts.insert("top bytes".to_owned(), size(most(&bytes)).into());
    json!({ "texts": texts, "times": times, "charts": { "requests": requests, "bytes": bytes } })
}
