//! The Geo-API: orders servers by their distance from a client, with a database of places in MaxMind's format.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use maxminddb::{Reader, path};
use parking_lot::Mutex;

/// Name that separates servers from the proxies after it.
const SEPARATOR: &str = "+PXYSEP+";
/// Maximum length of a name.
const NAME_MAX: usize = 256;
/// Maximum number of names in a request.
const NAMES_MAX: usize = 128;
/// Time limit for resolving the names of a request.
const RESOLVING_MAX: Duration = Duration::from_secs(5);
/// Time for which a name's place is remembered.
const REMEMBERED: Duration = Duration::from_secs(300);
/// Maximum number of remembered names.
const REMEMBERED_MAX: usize = 4096;

/// Failure to open a database.
#[derive(Debug, thiserror::Error)]
#[error("can't read the database of places {path}: {reason}")]
pub struct GeoError {
    /// Path of the database.
    pub path: PathBuf,
    /// Reason of the reader.
    pub reason: String,
}

/// A place on the globe, in radians.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    latitude: f64,
    longitude: f64,
}

impl Place {
    /// Returns the angle between two places.
    fn angle(self, other: Self) -> f64 {
        let turn = (self.longitude - other.longitude).cos();
        let cosine =
            self.latitude.sin() * other.latitude.sin() + self.latitude.cos() * other.latitude.cos() * turn;
        cosine.clamp(-1.0, 1.0).acos()
    }
}

/// A database of places by address.
#[derive(Debug)]
pub struct GeoDatabase {
    reader: Reader<Vec<u8>>,
    /// Places of names, with the time of resolving them.
    names: Mutex<HashMap<String, (Instant, Option<Place>)>>,
}

/// Addresses of a client, from the request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requester {
    /// The part of the path that names the proxy of the client, or its cache.
    pub(crate) named: String,
    /// Address in `CF-Connecting-IP`.
    pub(crate) cloudflare: Option<IpAddr>,
    /// Last address in `X-Forwarded-For`.
    pub(crate) forwarded: Option<IpAddr>,
    pub(crate) peer: Option<IpAddr>,
}

impl GeoDatabase {
    /// Reads a database such as GeoLite2-City.mmdb.
    pub fn open(path: &Path) -> Result<Self, GeoError> {
        let failed = |reason: String| GeoError { path: path.to_owned(), reason };
        let reader = Reader::open_readfile(path).map_err(|error| failed(error.to_string()))?;
        Ok(Self { reader, names: Mutex::default() })
    }

    fn place(&self, address: IpAddr) -> Option<Place> {
        let found = self.reader.lookup(address.to_canonical()).ok()?;
        let degrees = |name: &'static str| {
            let value = found.decode_path::<f64>(&path!["location", name]).ok()??;
            value.is_finite().then(|| value.to_radians())
        };
        Some(Place { latitude: degrees("latitude")?, longitude: degrees("longitude")? })
    }

    /// Returns the places of names. Names that aren't remembered are resolved, which blocks.
    fn places(&self, names: &[&str], resolve: &dyn Fn(&[&str]) -> Vec<Vec<IpAddr>>) -> Vec<Option<Place>> {
        let mut known: HashMap<&str, Option<Place>> = HashMap::new();
        {
            let remembered = self.names.lock();
            for name in names {
                if let Some((_, place)) =
                    remembered.get(*name).filter(|(when, _)| when.elapsed() < REMEMBERED)
                {
                    known.insert(name, *place);
                }
            }
        }
        let unknown: Vec<&str> = names.iter().copied().filter(|name| !known.contains_key(name)).collect();
        if !unknown.is_empty() {
            let resolved = resolve(&unknown);
            let mut remembered = self.names.lock();
            if remembered.len() + unknown.len() > REMEMBERED_MAX {
                remembered.clear();
            }
            for (name, addresses) in unknown.iter().zip(resolved) {
                let place = addresses.into_iter().find_map(|address| self.place(address));
                remembered.insert((*name).to_owned(), (Instant::now(), place));
                known.insert(name, place);
            }
        }
        names.iter().map(|name| known.get(name).copied().flatten()).collect()
    }

    /// Returns the positions of servers from the nearest to the farthest. Resolves names, which blocks.
    pub(crate) fn order(&self, requester: &Requester, servers: &str) -> Result<Vec<usize>, String> {
        self.order_by(requester, servers, &|names| esker_store::addresses_of(names, RESOLVING_MAX))
    }

    fn order_by(
        &self,
        requester: &Requester,
        servers: &str,
        resolve: &dyn Fn(&[&str]) -> Vec<Vec<IpAddr>>,
    ) -> Result<Vec<usize>, String> {
        let names = names(servers)?;
        let by_name = is_name(&requester.named).then(|| self.places(&[&requester.named], resolve));
        let addresses = [requester.cloudflare, requester.forwarded, requester.peer];
        let from = by_name
            .and_then(|places| places.first().copied().flatten())
            .or_else(|| addresses.into_iter().flatten().find_map(|address| self.place(address)))
            .ok_or("the requester's address is not in the database")?;
        let mut places = self.places(&names, resolve);
        if requester.cloudflare.is_some() {
            let direct: Vec<String> = names.iter().map(|name| format!("ip.{name}")).collect();
            let direct: Vec<&str> = direct.iter().map(String::as_str).collect();
            for (place, found) in places.iter_mut().zip(self.places(&direct, resolve)) {
                *place = found.or(*place);
            }
        }
        if places.iter().all(Option::is_none) {
            return Err("no server is in the database".to_owned());
        }
        Ok(sorted(&names, &places, from))
    }
}

/// Returns the order as given, for servers without a database.
pub(crate) fn as_given(servers: &str) -> Result<Vec<usize>, String> {
    names(servers).map(|names| (1..=names.len()).collect())
}

/// Returns the body of an answer.
pub(crate) fn text(order: &[usize]) -> String {
    let positions: Vec<String> = order.iter().map(usize::to_string).collect();
    format!("{}\n", positions.join(","))
}

fn names(servers: &str) -> Result<Vec<&str>, String> {
    let names: Vec<&str> = servers.split(',').collect();
    if names.len() > NAMES_MAX {
        return Err(format!("more than {NAMES_MAX} servers"));
    }
    match names.iter().find(|name| **name != SEPARATOR && !is_name(name)) {
        Some(_) => {
            Err("a server's name has other characters than letters, digits, dots, colons and dashes".into())
        }
        None => Ok(names),
    }
}

fn is_name(name: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b".:-".contains(&byte);
    !name.is_empty() && name.len() <= NAME_MAX && name.bytes().all(is_fit)
}

/// Sorts proxies by distance from the client, and servers by distance from its nearest proxy or else from itself.
fn sorted(names: &[&str], places: &[Option<Place>], from: Place) -> Vec<usize> {
    let by_distance = |range: std::ops::Range<usize>, from: Place| -> Vec<usize> {
        let angle =
            |at: &usize| places.get(*at).copied().flatten().map_or(f64::INFINITY, |place| place.angle(from));
        let mut order: Vec<usize> = range.collect();
        order.sort_by(|one, other| angle(one).total_cmp(&angle(other)));
        order
    };
    let order = match names.iter().position(|name| *name == SEPARATOR) {
        None => by_distance(0..names.len(), from),
        Some(separator) => {
            let proxies = by_distance(separator + 1..names.len(), from);
            let nearest = proxies.first().and_then(|at| places.get(*at).copied().flatten());
            let mut order = by_distance(0..separator, nearest.unwrap_or(from));
            order.extend(proxies);
            order.push(separator);
            order
        }
    };
    order.into_iter().map(|at| at + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(latitude: f64, longitude: f64) -> Place {
        Place { latitude: latitude.to_radians(), longitude: longitude.to_radians() }
    }

    #[test]
    fn servers_are_sorted_by_distance_and_unknown_ones_are_last() {
        let (geneva, chicago, melbourne) = (at(46.2, 6.1), at(41.9, -87.6), at(-37.8, 145.0));
        let places = [Some(melbourne), None, Some(geneva), Some(chicago)];
        assert_eq!(sorted(&["m", "x", "g", "c"], &places, at(50.0, 8.0)), [3, 4, 1, 2]);
        assert_eq!(sorted(&["m", "x", "g", "c"], &places, at(-33.9, 151.2)), [1, 4, 3, 2]);
    }

    #[test]
    fn servers_are_near_the_nearest_proxy() {
        let (geneva, chicago) = (at(46.2, 6.1), at(41.9, -87.6));
        let names = ["geneva", "chicago", SEPARATOR, "unknown", "proxy"];
        let places = [Some(geneva), Some(chicago), None, None, Some(chicago)];
        assert_eq!(sorted(&names, &places, geneva), [2, 1, 5, 4, 3]);
        let places = [Some(geneva), Some(chicago), None, None, None];
        assert_eq!(sorted(&names, &places, geneva), [1, 2, 4, 5, 3]);
    }

    #[test]
    fn only_names_of_servers_are_accepted() {
        assert!(as_given("a.test,[::1]").expect_err("brackets").contains("characters"));
        assert_eq!(as_given("a.test,b.test:80,::1").expect("names"), [1, 2, 3]);
        assert!(as_given("a.test,,b").is_err() && as_given("").is_err());
        assert!(as_given(&["a"; NAMES_MAX + 1].join(",")).is_err());
        assert_eq!(text(&[2, 1, 3]), "2,1,3\n");
    }
}
