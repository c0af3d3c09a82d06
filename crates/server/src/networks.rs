//! Networks of clients that a server answers.

use std::net::IpAddr;
use std::str::FromStr;

use esker_store::{DestinationRule, Destinations};

/// Networks of this node, of its links and of one site: loopback, RFC 1918, RFC 6598 (CGNAT), link-local, and unique local
/// addresses of IPv6.
const PRIVATE: [&str; 9] = [
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "169.254.0.0/16",
    "::1/128",
    "fc00::/7",
    "fe80::/10",
];

/// Network of clients, as `ADDRESS/BITS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientNetwork(DestinationRule);

impl FromStr for ClientNetwork {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(rule @ DestinationRule::Network(..)) => Ok(Self(rule)),
            _ => Err(format!("{text:?} is no network like 10.0.0.0/8 or 2001:db8::/32")),
        }
    }
}

/// The networks whose clients are answered.
#[derive(Clone, Debug)]
pub struct ClientNetworks {
    networks: Destinations,
    refusal: String,
}

impl ClientNetworks {
    /// Returns the named networks, or those of one site if none is named; `server` is named in the refusal of others.
    pub fn new(named: &[ClientNetwork], server: &str) -> Self {
        let private = || PRIVATE.iter().filter_map(|network| network.parse().ok()).collect();
        let (named, which): (Vec<ClientNetwork>, _) = match named {
            [] => (private(), "private networks"),
            named => (named.to_owned(), "the networks that its administrator named"),
        };
        let rules = named.into_iter().map(|network| network.0).collect();
        let refusal = format!("this {server} answers clients in {which} only");
        Self { networks: Destinations::Named(rules), refusal }
    }

    /// Returns true if the client is in one of the networks. An address of IPv4 within IPv6 is one of IPv4.
    pub fn has(&self, client: IpAddr) -> bool {
        self.networks.allow("", client)
    }

    /// Returns the text for a client in none of them.
    pub(crate) fn refusal(&self, client: IpAddr) -> String {
        let client = client.to_canonical();
        let bits = if client.is_ipv4() { 32 } else { 128 };
        let refusal = &self.refusal;
        format!(
            "{refusal}: its administrator can add the address of this client with --allow {client}/{bits}, or its network"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(named: &[&str]) -> ClientNetworks {
        let named: Vec<_> = named.iter().map(|text| text.parse().expect("a network")).collect();
        ClientNetworks::new(&named, "proxy")
    }

    #[track_caller]
    fn assert_has(networks: &ClientNetworks, expected: bool, clients: &[&str]) {
        for client in clients {
            assert_eq!(networks.has(client.parse().expect("an address")), expected, "{client}");
        }
    }

    #[test]
    fn clients_of_a_site_are_answered_and_public_ones_are_not() {
        let private = networks(&[]);
        assert_has(
            &private,
            true,
            &[
                "127.0.0.1",
                "127.255.0.1",
                "10.255.1.1",
                "172.16.0.1",
                "172.31.255.255",
                "192.168.7.7",
                "100.64.0.1",
                "100.127.255.255",
                "169.254.3.4",
                "::1",
                "fd00::1",
                "fe80::1",
                "::ffff:10.1.2.3",
            ],
        );
        assert_has(
            &private,
            false,
            &[
                "0.0.0.0",
                "8.8.8.8",
                "11.0.0.1",
                "126.255.255.255",
                "128.0.0.1",
                "172.15.255.255",
                "172.32.0.0",
                "192.167.1.1",
                "192.169.0.1",
                "100.63.255.255",
                "100.128.0.0",
                "169.253.0.1",
                "255.255.255.255",
                "::",
                "::2",
                "2001:db8::1",
                "fec0::1",
                "ff02::1",
                "::ffff:8.8.8.8",
                "::127.0.0.1",
                "64:ff9b::a01:203",
                "2002:a01:203::1",
            ],
        );
    }

    #[test]
    fn named_networks_replace_the_private_ones() {
        let named = networks(&["192.0.2.0/24", "2001:db8::/32", "::ffff:198.51.100.0/120"]);
        assert_has(&named, true, &["192.0.2.255", "2001:db8:ffff::1", "::ffff:192.0.2.1", "198.51.100.9"]);
        assert_has(
            &named,
            false,
            &["192.0.3.0", "127.0.0.1", "10.0.0.1", "::1", "2001:db9::", "198.51.101.1"],
        );
        assert_has(&networks(&["0.0.0.0/0", "::/0"]), true, &["8.8.8.8", "2001:db8::1", "::ffff:8.8.8.8"]);
    }

    #[test]
    fn a_network_has_a_length() {
        for bad in
            ["", "10.0.0.0/33", "::/129", "a.test", "any", "10.0.0.0/", "10.0.0/8", "::ffff:10.0.0.0/95"]
        {
            assert!(bad.parse::<ClientNetwork>().is_err(), "{bad}");
        }
    }
}
