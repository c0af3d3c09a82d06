//! Assigns objects to proxies, so that the proxies of a site share the objects among them.
//!
//! The assignment is that of the reference client, because both use the same proxies: each proxy has 16 places on a
//! ring of 32-bit numbers, and an object belongs to the first place at or after the first 32 bits of its hash. If a
//! proxy fails only its own objects move.

use std::collections::BTreeMap;

use esker_format::hash::{ContentHash, HashAlgorithm};

/// Number of places of each proxy on the ring.
const PLACES: usize = 16;
/// Upper bound of places on the ring, which is never drawn.
const END: u32 = u32::MAX;

/// Returns the place of an object; an object without a hash has the first.
pub(super) fn place(hash: Option<&ContentHash>) -> u32 {
    hash.map_or(0, |hash| first_bits(hash.digest()))
}

fn first_bits(digest: &[u8]) -> u32 {
    digest.first_chunk().map_or(0, |first| u32::from_be_bytes(*first))
}

/// Places on the ring, with their proxies.
#[derive(Clone, Debug, Default)]
pub(super) struct HashRing(BTreeMap<u32, u32>);

impl HashRing {
    /// Creates a ring of proxies from their ids and URLs (with the address, not the name), in order.
    pub(super) fn of<'a>(proxies: impl Iterator<Item = (u32, &'a str)>) -> Self {
        let mut places = BTreeMap::new();
        for (id, url) in proxies {
            let seed = first_bits(ContentHash::of(HashAlgorithm::Sha1, url.as_bytes()).digest());
            let mut numbers = Numbers(u64::from(seed));
            for _ in 0..PLACES {
                places.entry(numbers.next_below(END)).or_insert(id);
            }
        }
        Self(places)
    }

    /// Returns all proxies, starting with the one responsible for a place.
    pub(super) fn order(&self, place: u32) -> Vec<u32> {
        // No proxy has the last place.
        let place = if place == END { 0 } else { place };
        let mut order = Vec::new();
        for (_, id) in self.0.range(place..).chain(self.0.range(..place)) {
            if !order.contains(id) {
                order.push(*id);
            }
        }
        order
    }
}

/// Knuth's linear congruential generator for MMIX.
struct Numbers(u64);

impl Numbers {
    /// Returns the next number below a limit.
    fn next_below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let scaled = self.0 as f64 * f64::from(limit) / 18_446_744_073_709_551_616.0;
        // In doubles the quotient can come out as the limit itself.
        (scaled as u64 % u64::from(limit)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second implementation of the ring: 128-bit integers, a sorted list, and a search from its end.
    fn responsible(urls: &[&str], place: u32) -> usize {
        let mut places: Vec<(u32, usize)> = Vec::new();
        for (number, url) in urls.iter().enumerate() {
            let digest = ContentHash::of(HashAlgorithm::Sha1, url.as_bytes()).to_string();
            let mut state = u128::from_str_radix(&digest[..8], 16).unwrap();
            for _ in 0..16 {
                state = (state * 0x5851_f42d_4c95_7f2d + 0x1405_7b7e_f767_814f) % (1 << 64);
                // Doubles have 53 bits: the conversion rounds to the nearest, halves to even.
                let rounded = state as f64 as u128;
                let key = ((rounded * 0xffff_ffff) as f64 / 2f64.powi(64)) as u128 % 0xffff_ffff;
                if !places.iter().any(|(taken, _)| u128::from(*taken) == key) {
                    places.push((key as u32, number));
                }
            }
        }
        places.sort_by_key(|(key, _)| std::cmp::Reverse(*key));
        let smallest = places[places.len() - 1].1;
        if place == u32::MAX {
            return smallest;
        }
        places.iter().take_while(|(key, _)| *key >= place).last().map_or(smallest, |(_, number)| *number)
    }

    #[test]
    fn an_object_is_hashed_to_the_same_proxy_as_the_reference() {
        let urls = [
            "http://10.1.2.3:3128",
            "http://10.1.2.4:3128",
            "http://[2001:db8::7]:8080",
            "http://10.9.9.9:80",
        ];
        for count in 1..=urls.len() {
            let urls = &urls[..count];
            let ring = HashRing::of(urls.iter().enumerate().map(|(id, url)| (id as u32, *url)));
            assert_eq!(ring.0.len(), PLACES * count);
            for step in 0..2000_u32 {
                let place = step.wrapping_mul(0x9e37_79b9);
                assert_eq!(ring.order(place)[0] as usize, responsible(urls, place), "{place:08x} of {count}");
            }
            for place in [0, 1, u32::MAX - 1, u32::MAX] {
                assert_eq!(ring.order(place)[0] as usize, responsible(urls, place), "{place:08x} of {count}");
            }
            assert_eq!(ring.order(7).len(), count, "each proxy comes once");
        }
    }

    #[test]
    fn a_failed_proxy_does_not_move_objects_of_other_proxies() {
        let all = [(1, "http://10.0.0.1:3128"), (2, "http://10.0.0.2:3128"), (3, "http://10.0.0.3:3128")];
        let (ring, rest) =
            (HashRing::of(all.into_iter()), HashRing::of(all.into_iter().filter(|(id, _)| *id != 2)));
        let mut moved = 0;
        for step in 0..1000_u32 {
            let place = step.wrapping_mul(0x9e37_79b9);
            let (before, after) = (ring.order(place), rest.order(place));
            assert_eq!(before.iter().find(|id| **id != 2), after.first());
            moved += usize::from(before[0] == 2);
        }
        assert!((100..700).contains(&moved), "{moved} of 1000 objects were its own");
        assert_eq!(place(None), 0);
    }
}
