//! Counters of a mount, sent to a site's collector: InfluxDB's lines over UDP, as the reference client sends them.
//!
//! Counters of the reference have its names; those of this client alone begin with `esker.`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Weak;
use std::time::{Duration, SystemTime};

use esker_config::Telemetry;
use esker_store::{ComposeDatagram, Datagrams, StoreError};

use crate::metrics::affairs;
use crate::mounted::Served;

/// Values by name.
type Counted = BTreeMap<&'static str, u64>;

/// Starts to send a mount's counters, until the returned guard is dropped.
pub(crate) fn start(telemetry: &Telemetry, served: Weak<Served>) -> Result<Datagrams, StoreError> {
    let lines = telemetry.clone();
    let mut before = None;
    let compose: ComposeDatagram = Box::new(move || {
        let served = served.upgrade()?;
        let (name, counted) = count(&served)?;
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let text = compose(&lines, &name, &counted, before.as_ref(), time);
        before = Some(counted);
        (!text.is_empty()).then(|| text.into_bytes())
    });
    Datagrams::start(telemetry.to.clone(), compose)
}

/// Returns the lines: totals, and from the second call on also differences if they are wanted. InfluxDB counts time in
/// nanoseconds.
fn compose(to: &Telemetry, name: &str, now: &Counted, before: Option<&Counted>, time: Duration) -> String {
    let shown: Vec<_> = now.iter().filter(|(_, value)| **value != 0).collect();
    if shown.is_empty() {
        return String::new();
    }
    let extra = |text: &str| if text.is_empty() { String::new() } else { format!(",{text}") };
    let line = |kind: &str, values: Vec<String>, more: &str| {
        let (metric, tags) = (&to.metric, extra(&to.tags));
        format!("{metric}_{kind},repo={name}{tags} {}{more} {}", values.join(","), time.as_nanos())
    };
    let values = shown.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut text = line("absolute", values, &extra(&to.fields));
    if let Some(before) = before.filter(|_| to.differences) {
        // A value may have decreased: bytes in use, say.
        let since = |name: &str, value: u64| {
            i128::from(value) - i128::from(before.get(name).copied().unwrap_or_default())
        };
        let values = shown.iter().map(|(name, value)| format!("{name}={}", since(name, **value))).collect();
        // Writing to a string can't fail.
        let _ = write!(text, "\n{}", line("delta", values, ""));
    }
    text
}

/// Returns the counters now, from memory; `None` for an image.
fn count(served: &Served) -> Option<(String, Counted)> {
    let status = served.known_status()?;
    let counted = affairs(&status).into_iter().map(|affair| (affair.name, affair.value)).collect();
    Some((status.repository, counted))
}

#[cfg(test)]
mod tests {
    use esker_store::DatagramTarget;

    use super::*;

    #[test]
    fn lines_have_totals_and_differences() {
        let to = DatagramTarget { host: "h".into(), port: 1, every: Duration::from_secs(5) };
        let bare = Telemetry {
            to,
            metric: "m".into(),
            tags: String::new(),
            fields: String::new(),
            differences: false,
        };
        let more = Telemetry {
            tags: "site=x,rack=y".into(),
            fields: "cores=4".into(),
            differences: true,
            ..bare.clone()
        };
        let (first, second): (Counted, Counted) =
            ([("a", 1), ("b", 0), ("c", 9)].into(), [("a", 5), ("b", 0), ("c", 7)].into());
        let time = Duration::new(12, 34);
        assert_eq!(
            compose(&bare, "r.test", &first, None, time),
            "m_absolute,repo=r.test a=1,c=9 12000000034"
        );
        assert_eq!(
            compose(&more, "r.test", &second, Some(&first), time),
            "m_absolute,repo=r.test,site=x,rack=y a=5,c=7,cores=4 12000000034\n\
             m_delta,repo=r.test,site=x,rack=y a=4,c=-2 12000000034"
        );
        assert_eq!(compose(&more, "r.test", &[("a", 0)].into(), None, time), "");
    }
}
