//! Computes medians, ratios and confidence intervals.

use esker_testkit::soak::Random;
use serde::Serialize;

/// Resamples of a bootstrap. More would only change the third digit of an interval.
const RESAMPLES: usize = 5_000;

/// A value and the interval that holds it with 95 % confidence, by the percentile bootstrap.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The value of the sample.
    pub point: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Returns the median; `NaN` for an empty list.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

/// Returns the median and its confidence interval.
pub fn median_of(values: &[f64]) -> Estimate {
    bootstrap(values.len(), |picks| median(&picks.iter().map(|pick| values[*pick]).collect::<Vec<_>>()))
}

/// Returns the ratio of two medians. Values with the same index were measured one right after the other and are drawn
/// together, so a disturbance of both cancels out.
pub fn ratio_of(values: &[f64], baseline: &[f64]) -> Estimate {
    let pairs = values.len().min(baseline.len());
    bootstrap(pairs, |picks| {
        let of = |from: &[f64]| median(&picks.iter().map(|pick| from[*pick]).collect::<Vec<_>>());
        of(values) / of(baseline)
    })
}

/// Computes `statistic` for a sample and for many resamples.
fn bootstrap(len: usize, statistic: impl Fn(&[usize]) -> f64) -> Estimate {
    let mut picks: Vec<usize> = (0..len).collect();
    let point = statistic(&picks);
    if len < 2 {
        return Estimate { point, low: point, high: point };
    }
    // The same sample gives the same interval.
    let mut random = Random(0x5eed);
    let mut all: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            picks.fill_with(|| random.below(len));
            statistic(&picks)
        })
        .collect();
    all.sort_by(f64::total_cmp);
    Estimate { point, low: quantile(&all, 0.025), high: quantile(&all, 0.975) }
}

/// Returns the interpolated quantile of sorted values.
fn quantile(sorted: &[f64], at: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = at * last as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_computed() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        let one = median_of(&[7.0]);
        assert_eq!((one.point, one.low, one.high), (7.0, 7.0, 7.0));
    }

    #[test]
    fn quantiles_are_interpolated() {
        let sorted = [0.0, 10.0, 20.0, 30.0];
        assert_eq!(quantile(&sorted, 0.0), 0.0);
        assert_eq!(quantile(&sorted, 0.5), 15.0);
        assert_eq!(quantile(&sorted, 1.0), 30.0);
    }

    /// About 95 of 100 intervals contain the known median of random samples.
    #[test]
    fn intervals_contain_the_median_with_the_stated_confidence() {
        let mut random = Random(1);
        let mut held = 0;
        for _ in 0..200 {
            // Skewed, as times are: an exponential distribution, whose median is ln 2.
            let sample: Vec<f64> =
                (0..31).map(|_| -((random.below(1 << 30) + 1) as f64 / (1u64 << 30) as f64).ln()).collect();
            let estimate = median_of(&sample);
            held += usize::from((estimate.low..=estimate.high).contains(&std::f64::consts::LN_2));
        }
        assert!((178..=200).contains(&held), "{held} of 200");
    }

    /// Noise common to both sides of a pair widens the medians' intervals but not the ratio's.
    #[test]
    fn common_noise_cancels_out_of_ratios() {
        let mut random = Random(2);
        let base: Vec<f64> = (0..31).map(|_| 1.0 + random.below(1000) as f64 / 1000.0).collect();
        let slower: Vec<f64> = base.iter().map(|value| value * 1.02).collect();
        let ratio = ratio_of(&slower, &base);
        assert!((ratio.low - 1.02).abs() < 1e-9 && (ratio.high - 1.02).abs() < 1e-9, "{ratio:?}");
        let alone = median_of(&base);
        assert!(alone.high - alone.low > 0.1, "{alone:?}");
    }
}
