//! Distances between a client and its server, as sites report them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Minimum queue of the bottleneck in bytes, even if rate times round trip is less.
const QUEUE_MIN: u64 = 256 << 10;

/// Properties of an emulated network path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Name of the profile.
    pub name: &'static str,
    /// Round-trip time of a small packet.
    pub round_trip: Duration,
    /// Rate of the bottleneck in each direction, in bits a second.
    pub rate: u64,
    /// Share of segments that are lost, in addition to losses from a full queue.
    pub loss: f64,
}

impl Profile {
    /// Profiles of the distances for which sites report start-up times. Sites don't report losses; these are typical
    /// of long links without a fault.
    pub const ALL: [Self; 4] = [
        Self::new("proxy", Duration::from_micros(200), 10_000_000_000, 0.0),
        Self::new("local", Duration::from_micros(700), 940_000_000, 0.0),
        Self::new("continent", Duration::from_millis(14), 930_000_000, 1e-5),
        Self::new("ocean", Duration::from_millis(84), 280_000_000, 1e-5),
    ];

    const fn new(name: &'static str, round_trip: Duration, rate: u64, loss: f64) -> Self {
        Self { name, round_trip, rate, loss }
    }

    /// Returns the one-way delay of a small packet.
    pub fn one_way(&self) -> Duration {
        self.round_trip / 2
    }

    /// Returns the seconds that this many bytes take at the full rate.
    pub fn seconds(&self, bytes: u64) -> f64 {
        bytes as f64 * 8.0 / self.rate as f64
    }

    /// Returns the queue of the bottleneck in bytes: rate times round trip.
    pub(crate) fn queue(&self) -> u64 {
        let product = self.round_trip.as_secs_f64() * self.rate as f64 / 8.0;
        (product as u64).max(QUEUE_MIN)
    }
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|profile| profile.name == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|profile| profile.name).collect();
            format!("no such distance; there are {}", names.join(", "))
        })
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.rate as f64 / 1e6;
        write!(f, "{} ({} ms, {rate} Mb/s", self.name, self.round_trip.as_secs_f64() * 1e3)?;
        if self.loss > 0.0 {
            write!(f, ", 1 of {:.0} segments lost", 1.0 / self.loss)?;
        }
        write!(f, ")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        let ocean: Profile = "ocean".parse().expect("a profile");
        assert_eq!(ocean.one_way(), Duration::from_millis(42));
        assert_eq!(ocean.queue(), 2_940_000);
        assert_eq!(ocean.to_string(), "ocean (84 ms, 280 Mb/s, 1 of 100000 segments lost)");
        assert!("moon".parse::<Profile>().is_err_and(|error| error.contains("continent")));
    }
}
