//! The text form of Prometheus, version 0.0.4: the one that the textfile collector of node_exporter reads, too.

use std::fmt::Write as _;

use super::family::{Family, Histogram, Kind, Sample, Value};

/// Type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns the text of all families.
pub fn text(families: &[Family]) -> String {
    let mut text = String::new();
    for Family { name, help, kind, samples } in families {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // Writing to a string can't fail, here and below.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for Sample { labels, value } in samples {
            match value {
                Value::Whole(value) => line(&mut text, name, labels, None, value),
                Value::Real(value) => line(&mut text, name, labels, None, value),
                Value::Histogram(histogram) => lines(&mut text, name, labels, histogram),
            }
        }
    }
    text
}

fn lines(text: &mut String, name: &str, labels: &[(&str, String)], histogram: &Histogram) {
    let bucket = format!("{name}_bucket");
    for (bound, count) in &histogram.buckets {
        line(text, &bucket, labels, Some(&bound.to_string()), count);
    }
    line(text, &bucket, labels, Some("+Inf"), histogram.count);
    line(text, &format!("{name}_sum"), labels, None, histogram.sum);
    line(text, &format!("{name}_count"), labels, None, histogram.count);
}

fn line(
    text: &mut String,
    name: &str,
    labels: &[(&str, String)],
    bound: Option<&str>,
    value: impl std::fmt::Display,
) {
    text.push_str(name);
    let all =
        labels.iter().map(|(name, value)| (*name, value.as_str())).chain(bound.map(|bound| ("le", bound)));
    let mut mark = '{';
    for (name, value) in all {
        let _ = write!(text, "{mark}{name}=\"{}\"", escaped(value));
        mark = ',';
    }
    text.push_str(if mark == ',' { "} " } else { " " });
    let _ = writeln!(text, "{value}");
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_their_labels_escaped_and_histograms_their_parts() {
        let labels = vec![("repository", "a\"b\\c\nd".to_owned())];
        let histogram = Histogram { buckets: vec![(0.000004, 1), (1.048576, 3)], count: 4, sum: 2.5 };
        let family = |name: &str, kind, sample| Family {
            name: name.to_owned(),
            help: "Text",
            kind,
            samples: vec![sample],
        };
        let families = [
            family("a_total", Kind::Counter, Sample { labels: labels.clone(), value: Value::Whole(7) }),
            family("b", Kind::Gauge, Sample { labels: Vec::new(), value: Value::Real(0.5) }),
            family("c_seconds", Kind::Histogram, Sample { labels, value: Value::Histogram(histogram) }),
        ];
        let repository = r#"repository="a\"b\\c\nd""#;
        let expected = format!(
            "# HELP a_total Text\n# TYPE a_total counter\na_total{{{repository}}} 7\n\
             # HELP b Text\n# TYPE b gauge\nb 0.5\n\
             # HELP c_seconds Text\n# TYPE c_seconds histogram\n\
             c_seconds_bucket{{{repository},le=\"0.000004\"}} 1\n\
             c_seconds_bucket{{{repository},le=\"1.048576\"}} 3\n\
             c_seconds_bucket{{{repository},le=\"+Inf\"}} 4\n\
             c_seconds_sum{{{repository}}} 2.5\n\
             c_seconds_count{{{repository}}} 4\n"
        );
        assert_eq!(text(&families), expected);
    }
}
