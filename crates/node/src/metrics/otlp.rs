//! Metrics as an OpenTelemetry collector takes them over HTTP: the JSON form of `ExportMetricsServiceRequest`.
//!
//! ```text
//! POST /v1/metrics, content-type application/json
//! {"resourceMetrics": [{
//!    "resource": {"attributes": [service.name = esker, host.name]},
//!    "scopeMetrics": [{"scope": {name, version}, "metrics": [
//!       {name, description, unit, "sum" | "gauge" | "histogram": {"dataPoints": […]}}]}]}]}
//! ```
//!
//! As in that form of Protocol Buffers, whole numbers of 64 bits are strings. Counts are totals since the start of a
//! daemon (temporality 2), and those of a histogram's buckets don't include smaller ones.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::family::{Family, Histogram, Kind, Sample, Value};

/// Aggregation temporality of OTLP for counters: totals since the start.
const CUMULATIVE: u8 = 2;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Export<'a> {
    resource_metrics: [Resource<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Resource<'a> {
    resource: Attributes<'a>,
    scope_metrics: [Scope<'a>; 1],
}

#[derive(Serialize)]
struct Attributes<'a> {
    attributes: Vec<Attribute<'a>>,
}

#[derive(Serialize)]
struct Attribute<'a> {
    key: &'a str,
    value: Text<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Text<'a> {
    string_value: &'a str,
}

#[derive(Serialize)]
struct Scope<'a> {
    scope: Program,
    metrics: Vec<Metric<'a>>,
}

#[derive(Serialize)]
struct Program {
    name: &'static str,
    version: &'static str,
}

#[derive(Serialize)]
struct Metric<'a> {
    name: &'a str,
    description: &'a str,
    unit: &'static str,
    #[serde(flatten)]
    points: Points<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum Points<'a> {
    #[serde(rename_all = "camelCase")]
    Sum { aggregation_temporality: u8, is_monotonic: bool, data_points: Vec<Point<'a>> },
    #[serde(rename_all = "camelCase")]
    Gauge { data_points: Vec<Point<'a>> },
    #[serde(rename_all = "camelCase")]
    Histogram { aggregation_temporality: u8, data_points: Vec<Point<'a>> },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Point<'a> {
    attributes: Vec<Attribute<'a>>,
    time_unix_nano: String,
    #[serde(flatten)]
    number: Number,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase", untagged)]
enum Number {
    #[serde(rename_all = "camelCase")]
    Whole { as_int: String },
    #[serde(rename_all = "camelCase")]
    Real { as_double: f64 },
    #[serde(rename_all = "camelCase")]
    Distribution { count: String, sum: f64, bucket_counts: Vec<String>, explicit_bounds: Vec<f64> },
}

/// Returns the body of a request with all metrics of a node.
pub fn otlp(families: &[Family], host: &str, time: SystemTime) -> Vec<u8> {
    let now = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let attributes = vec![attribute("service.name", "esker"), attribute("host.name", host)];
    let metrics = families.iter().map(|family| metric(family, now)).collect();
    let scope = Program { name: "esker", version: env!("CARGO_PKG_VERSION") };
    let scope_metrics = [Scope { scope, metrics }];
    let export =
        Export { resource_metrics: [Resource { resource: Attributes { attributes }, scope_metrics }] };
    // Names and numbers can always be written.
    serde_json::to_vec(&export).unwrap_or_default()
}

fn attribute<'a>(key: &'a str, value: &'a str) -> Attribute<'a> {
    Attribute { key, value: Text { string_value: value } }
}

fn metric(family: &Family, now: Duration) -> Metric<'_> {
    let data_points = family.samples.iter().map(|sample| point(sample, now)).collect();
    let aggregation_temporality = CUMULATIVE;
    let points = match family.kind {
        Kind::Counter => Points::Sum { aggregation_temporality, is_monotonic: true, data_points },
        Kind::Gauge => Points::Gauge { data_points },
        Kind::Histogram => Points::Histogram { aggregation_temporality, data_points },
    };
    Metric { name: &family.name, description: family.help, unit: unit(&family.name), points }
}

fn point(sample: &Sample, now: Duration) -> Point<'_> {
    let number = match &sample.value {
        Value::Whole(value) => {
            // The form has signed numbers only.
            Number::Whole { as_int: i64::try_from(*value).unwrap_or(i64::MAX).to_string() }
        }
        Value::Real(value) => Number::Real { as_double: *value },
        Value::Histogram(histogram) => distribution(histogram),
    };
    let attributes = sample.labels.iter().map(|(name, value)| attribute(name, value)).collect();
    Point { attributes, time_unix_nano: now.as_nanos().to_string(), number }
}

fn distribution(histogram: &Histogram) -> Number {
    let mut before = 0;
    let all = histogram.buckets.iter().map(|(_, count)| *count).chain([histogram.count]);
    let bucket_counts =
        all.map(|count| count.saturating_sub(std::mem::replace(&mut before, count)).to_string());
    Number::Distribution {
        count: histogram.count.to_string(),
        sum: histogram.sum,
        bucket_counts: bucket_counts.collect(),
        explicit_bounds: histogram.buckets.iter().map(|(bound, _)| *bound).collect(),
    }
}

/// Returns the unit of a metric, which its name tells.
fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    if name.ends_with("_bytes_per_second") {
        "By/s"
    } else if name.ends_with("_seconds") {
        "s"
    } else if name.ends_with("_bytes") {
        "By"
    } else {
        "1"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    #[test]
    fn each_kind_has_the_form_of_the_protocol() {
        let labels = vec![("repository", "a.test".to_owned())];
        let family = |name: &str, kind, value| Family {
            name: name.to_owned(),
            help: "Text",
            kind,
            samples: vec![Sample { labels: labels.clone(), value }],
        };
        let histogram = Histogram { buckets: vec![(0.5, 1), (1.0, 3)], count: 4, sum: 2.5 };
        let families = [
            family("a_bytes_total", Kind::Counter, Value::Whole(7)),
            family("b", Kind::Gauge, Value::Real(0.5)),
            family("c_seconds", Kind::Histogram, Value::Histogram(histogram)),
        ];
        let body = otlp(&families, "node7", SystemTime::UNIX_EPOCH + Duration::from_nanos(5));
        let body: Json = serde_json::from_slice(&body).expect("JSON");
        let resource = &body["resourceMetrics"][0];
        let text = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
        assert_eq!(
            resource["resource"]["attributes"],
            json!([text("service.name", "esker"), text("host.name", "node7")])
        );
        let attributes = json!([text("repository", "a.test")]);
        let point = |number: Json| {
            let mut point = json!({ "attributes": attributes, "timeUnixNano": "5" });
            point.as_object_mut().expect("an object").extend(number.as_object().expect("an object").clone());
            json!([point])
        };
        let expected = json!([
            { "name": "a_bytes_total", "description": "Text", "unit": "By", "sum": {
                "aggregationTemporality": 2, "isMonotonic": true, "dataPoints": point(json!({ "asInt": "7" })),
            } },
            { "name": "b", "description": "Text", "unit": "1", "gauge": {
                "dataPoints": point(json!({ "asDouble": 0.5 })),
            } },
            { "name": "c_seconds", "description": "Text", "unit": "s", "histogram": {
                "aggregationTemporality": 2,
                "dataPoints": point(json!({
                    "count": "4", "sum": 2.5, "bucketCounts": ["1", "2", "1"], "explicitBounds": [0.5, 1.0],
                })),
            } },
        ]);
        assert_eq!(resource["scopeMetrics"][0]["metrics"], expected);
    }
}
