//! Families of samples, before they are written in any form.

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that only grows while its process runs.
    Counter,
    /// A value that may grow and shrink.
    Gauge,
    /// A distribution.
    Histogram,
}

/// Samples of one metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Name of the metric.
    pub name: String,
    /// One sentence about it.
    pub help: &'static str,
    /// Kind of the metric.
    pub kind: Kind,
    /// The samples.
    pub samples: Vec<Sample>,
}

/// A value with its labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Names and values of the labels.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: Value,
}

/// Value of a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Whole(u64),
    /// A fraction, or a time in seconds.
    Real(f64),
    /// A distribution.
    Histogram(Histogram),
}

/// A distribution of durations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Upper bounds in seconds and the number of durations up to each of them, all smaller ones included.
    pub buckets: Vec<(f64, u64)>,
    /// Number of all durations.
    pub count: u64,
    /// Sum of all durations in seconds.
    pub sum: f64,
}

/// Classes of durations that share a bucket: each bucket is four times as long as the one before. A node has thousands
/// of buckets, and a collector those of all nodes.
const CLASSES_PER_BUCKET: usize = 2;

impl Histogram {
    /// Makes a histogram of the counts of [`esker_fuse::OpcodeCounters::latencies`].
    pub fn of_classes(classes: &[u64], sum_us: u64) -> Self {
        let mut count = 0_u64;
        let mut buckets = Vec::new();
        for (class, number) in classes.iter().enumerate() {
            count = count.saturating_add(*number);
            let is_last = class + 1 == classes.len().max(1);
            if class > 0 && class.is_multiple_of(CLASSES_PER_BUCKET) && !is_last && class < 64 {
                buckets.push(((1_u64 << class) as f64 / 1e6, count));
            }
        }
        Self { buckets, count, sum: sum_us as f64 / 1e6 }
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

/// Collects samples by metric, in the order in which metrics first come.
#[derive(Debug, Default)]
pub(super) struct Families(Vec<Family>);

impl Families {
    /// Adds a sample.
    pub(super) fn add(
        &mut self,
        kind: Kind,
        (name, help): (&str, &'static str),
        labels: Vec<(&'static str, String)>,
        value: impl Into<Value>,
    ) {
        let sample = Sample { labels, value: value.into() };
        match self.0.iter_mut().find(|family| family.name == name) {
            Some(family) => family.samples.push(sample),
            None => self.0.push(Family { name: name.to_owned(), help, kind, samples: vec![sample] }),
        }
    }

    pub(super) fn into_inner(self) -> Vec<Family> {
        self.0
    }
}

/// Maximum length of a label's value in characters.
const LABEL_MAX: usize = 256;

/// Returns a text that any user may have chosen, as the value of a label: without control characters, and not too long.
pub(super) fn label(text: &str) -> String {
    text.chars().take(LABEL_MAX).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_four_times_as_long_as_the_one_before() {
        let mut classes = [0; esker_fuse::LATENCY_CLASSES];
        (classes[0], classes[2], classes[3], classes[24]) = (1, 2, 4, 8);
        let histogram = Histogram::of_classes(&classes, 1_500_000);
        assert_eq!(histogram.buckets[..2], [(4e-6, 3), (16e-6, 7)]);
        assert_eq!(histogram.buckets.last(), Some(&(4.194304, 7)));
        assert_eq!((histogram.count, histogram.sum), (15, 1.5));
        assert_eq!(Histogram::of_classes(&[], 0), Histogram::default());
    }
}
