//! Restricts the addresses that a process may connect to.
//!
//! A process that connects on behalf of other users reaches services that they can't: those that trust this node, on
//! its loopback interface or on its link. The resolved addresses of a name are checked and exactly these are connected
//! to, so a DNS answer that changes afterwards has no effect.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Addresses that may be connected to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Destinations {
    /// All addresses.
    #[default]
    All,
    /// Addresses that one of these rules names.
    Named(Vec<DestinationRule>),
}

/// One entry of a list of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DestinationRule {
    /// Every address except those of this node and link-local ones.
    Any,
    /// The addresses of a server with this name.
    Host(String),
    /// Addresses that share a prefix of this length with this address.
    Network(IpAddr, u8),
}

impl Destinations {
    /// Returns true if `address`, which belongs to `host`, may be connected to.
    pub fn allow(&self, host: &str, address: IpAddr) -> bool {
        let address = address.to_canonical();
        match self {
            Self::All => true,
            Self::Named(named) => named.iter().any(|one| match one {
                DestinationRule::Any => !is_local(address),
                DestinationRule::Host(name) => name.eq_ignore_ascii_case(host),
                DestinationRule::Network(network, bits) => has_prefix(address, *network, *bits),
            }),
        }
    }

    /// Returns true if a host given as an address or as a name of this node may be connected to; true for names
    /// that must be resolved first.
    pub fn may_allow(&self, host: &str) -> bool {
        let is_this_node =
            host.eq_ignore_ascii_case("localhost") || host.to_ascii_lowercase().ends_with(".localhost");
        match host.parse() {
            Ok(address) => self.allow(host, address),
            Err(_) if is_this_node => self.allow(host, IpAddr::from([127, 0, 0, 1])),
            Err(_) => true,
        }
    }
}

/// Returns whether packets to an address stay on this node or its links, or have no single receiver.
fn is_local(address: IpAddr) -> bool {
    let special = address.is_loopback() || address.is_unspecified() || address.is_multicast();
    special
        || match address {
            IpAddr::V4(address) => {
                address.is_link_local() || address.is_broadcast() || address.octets()[0] == 0
            }
            IpAddr::V6(address) => {
                // Addresses that embed an IPv4 address lead to it: ::a.b.c.d, 64:ff9b::/96 and 2002::/16.
                let parts = address.segments();
                let embedded = match parts {
                    [0, 0, 0, 0, 0, 0, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                        Some((high, low))
                    }
                    [0x2002, high, low, ..] => Some((high, low)),
                    _ => None,
                };
                let embedded = embedded.map(|(high, low)| (u32::from(high) << 16) | u32::from(low));
                address.is_unicast_link_local()
                    || embedded.is_some_and(|bits| is_local(IpAddr::V4(bits.into())))
            }
        }
}

fn has_prefix(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    let (address, network, len) = match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            (u128::from(address.to_bits()), u128::from(network.to_bits()), 32)
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => (address.to_bits(), network.to_bits(), 128),
        _ => return false,
    };
    let rest = len - u32::from(bits).min(len);
    let first = |value: u128| value.checked_shr(rest).unwrap_or(0);
    first(address) == first(network)
}

impl FromStr for DestinationRule {
    type Err = String;

    /// Reads `any`, an address, a network like `10.0.0.0/8`, or a name.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            || format!("{text:?} is not any, an address, a network like 10.0.0.0/8, or the name of a server");
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        match (address.parse::<IpAddr>(), bits) {
            (Ok(address), bits) => {
                let canonical = address.to_canonical();
                let most: u8 = if canonical.is_ipv4() { 32 } else { 128 };
                // The prefix of an address of IPv4 within IPv6 has that of all such addresses in front.
                let front = if canonical == address { 0 } else { 96 };
                let bits = bits.map_or(Ok(most + front), str::parse::<u8>).map_err(|_| bad())?;
                let bits = bits.checked_sub(front).filter(|bits| *bits <= most).ok_or_else(bad)?;
                Ok(Self::Network(canonical, bits))
            }
            (Err(_), None) if text == "any" => Ok(Self::Any),
            (Err(_), None) if !text.is_empty() && text.bytes().all(plain) => Ok(Self::Host(text.to_owned())),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for DestinationRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Host(name) => f.write_str(name),
            Self::Network(address, bits) => write!(f, "{address}/{bits}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(entries: &[&str]) -> Destinations {
        Destinations::Named(entries.iter().map(|entry| entry.parse().unwrap()).collect())
    }

    #[test]
    fn any_excludes_addresses_of_this_node_and_its_links() {
        let any = named(&["any"]);
        for local in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
        ] {
            assert!(!any.allow("x", local.parse().unwrap()), "{local}");
            assert!(!any.may_allow(local) && Destinations::All.may_allow(local));
        }
        for other in ["10.1.2.3", "192.168.1.1", "188.184.1.1", "2001:db8::1", "fd00::1", "64:ff9b::808:808"]
        {
            assert!(any.allow("x", other.parse().unwrap()), "{other}");
        }
        assert!(
            !any.may_allow("LocalHost") && !any.may_allow("a.localhost") && any.may_allow("a.example.org")
        );
    }

    #[test]
    fn only_named_addresses_are_allowed() {
        let some = named(&["squid.example.org", "127.0.0.1", "10.1.0.0/16", "2001:db8::/32"]);
        let allow = |host: &str, address: &str| some.allow(host, address.parse().unwrap());
        assert!(allow("Squid.example.org", "127.0.0.2") && allow("x", "127.0.0.1"));
        assert!(allow("x", "10.1.255.1") && allow("x", "2001:db8:1::") && allow("x", "::ffff:10.1.2.3"));
        assert!(!allow("x", "127.0.0.2") && !allow("x", "10.2.0.1") && !allow("x", "2001:db9::"));
        assert!(!allow("evil-squid.example.org", "192.0.2.1"));
        assert!(named(&["any", "127.0.0.0/8"]).allow("x", "127.0.0.1".parse().unwrap()));
        assert!(named(&["0.0.0.0/0"]).allow("x", "127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn rules_survive_their_text_form() {
        for (text, shown) in [
            ("any", "any"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("::1", "::1/128"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:10.0.0.1", "10.0.0.1/32"),
            ("a.b", "a.b"),
        ] {
            assert_eq!(text.parse::<DestinationRule>().unwrap().to_string(), shown);
        }
        for bad in ["", "10.0.0.0/33", "::ffff:10.0.0.0/95", "::/129", "a b", "a/8", "10.0.0.0/", "http://a"]
        {
            assert!(bad.parse::<DestinationRule>().is_err(), "{bad:?}");
        }
    }
}
