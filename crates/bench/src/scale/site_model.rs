//! Models a site whose nodes all start the same program at once, from what one node was measured to fetch.
//!
//! The model multiplies the requests and bytes of one node and divides them by the capacity of proxies, link and servers:
//! lower bounds, because nothing queues and nothing is lost. It tells which part is too slow first.

use serde::Serialize;

use crate::table;

/// Requests and bytes that one node sends and receives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OfNode {
    /// Seconds of the start on a node with an empty cache and a server beside it.
    pub seconds: f64,
    /// Objects fetched.
    pub requests: f64,
    /// Bytes received.
    pub bytes: f64,
}

/// A site and the servers that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Site {
    /// Number of nodes.
    pub nodes: u64,
    /// Number of proxies of the site.
    pub proxies: u64,
    /// Bytes that a proxy sends in a second.
    pub proxy_bytes: f64,
    /// Throughput of a proxy, in requests per second.
    pub proxy_requests: f64,
    /// Bytes that the link between the site and the servers carries in a second.
    pub link_bytes: f64,
    /// Requests that the servers answer in a second, all together.
    pub server_requests: f64,
    /// Bytes that a node receives in a second.
    pub node_bytes: f64,
}

/// Seconds for which each part is busy until all nodes have started.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Busy {
    /// Requests at the busiest proxy.
    pub proxy_requests: f64,
    /// Bytes of the busiest proxy.
    pub proxy_bytes: f64,
    /// Bytes on the link.
    pub link: f64,
    /// Requests at the servers.
    pub servers: f64,
    /// Bytes at one node.
    pub node: f64,
    /// A node alone.
    pub alone: f64,
}

/// Ways between the nodes and the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// All nodes ask the servers.
    Direct,
    /// Each proxy fetches each object once.
    Proxies,
    /// The proxies are peers, so that the site fetches each object once.
    Peers,
}

impl Site {
    /// Returns the busy time of each part.
    pub fn busy(&self, way: Way, node: OfNode) -> Busy {
        let (nodes, proxies) = (self.nodes as f64, self.proxies.max(1) as f64);
        let upstream = match way {
            Way::Direct => nodes,
            Way::Proxies => proxies,
            Way::Peers => 1.0,
        };
        // A peer fetches from the owner of an object what it doesn't own, once.
        let between = if way == Way::Peers { (proxies - 1.0) / proxies } else { 0.0 };
        let per_proxy = if way == Way::Direct { 0.0 } else { nodes / proxies + between };
        Busy {
            proxy_requests: per_proxy * node.requests / self.proxy_requests,
            proxy_bytes: per_proxy * node.bytes / self.proxy_bytes,
            link: upstream * node.bytes / self.link_bytes,
            servers: upstream * node.requests / self.server_requests,
            node: node.bytes / self.node_bytes,
            alone: node.seconds,
        }
    }

    /// Returns the assumptions, in lines.
    pub fn assumptions(&self) -> String {
        format!(
            "{} nodes with empty caches start the same program at once; every process of a node shares its mount.\n\
             {} proxies, each {:.2} GB/s and {:.0} requests/s; the link carries {:.3} GB/s; servers answer {:.0} requests/s.\n\
             A node receives {:.2} GB/s. Nothing queues, nothing is lost: each time is a bound from below.\n",
            self.nodes,
            self.proxies,
            self.proxy_bytes / 1e9,
            self.proxy_requests,
            self.link_bytes / 1e9,
            self.server_requests,
            self.node_bytes / 1e9,
        )
    }

    /// Returns the assumptions and the times of all ways.
    pub fn table(&self, node: OfNode) -> String {
        let header = [
            "way",
            "bounded by",
            "s at least",
            "proxy req s",
            "proxy bytes s",
            "link s",
            "servers s",
            "node s",
        ];
        let rows: Vec<Vec<String>> = [Way::Direct, Way::Proxies, Way::Peers]
            .into_iter()
            .map(|way| {
                let busy = self.busy(way, node);
                let (part, seconds) = busy.slowest();
                let times =
                    [seconds, busy.proxy_requests, busy.proxy_bytes, busy.link, busy.servers, busy.node];
                let names = [format!("{way:?}").to_lowercase(), part.to_owned()];
                names.into_iter().chain(times.map(|time| format!("{time:.1}"))).collect()
            })
            .collect();
        format!(
            "{}Measured on one node: {:.0} objects, {:.1} MB, {:.1} s.\n\n{}",
            self.assumptions(),
            node.requests,
            node.bytes / 1e6,
            node.seconds,
            table::layout(&header, &rows)
        )
    }
}

impl Busy {
    /// Returns the part that is busy for longest, and its time.
    pub fn slowest(&self) -> (&'static str, f64) {
        let parts = [
            ("one node alone", self.alone),
            ("proxy requests", self.proxy_requests),
            ("proxy bytes", self.proxy_bytes),
            ("link", self.link),
            ("servers", self.servers),
            ("a node's link", self.node),
        ];
        parts.into_iter().fold(("", 0.0), |most, part| if part.1 > most.1 { part } else { most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SITE: Site = Site {
        nodes: 1024,
        proxies: 4,
        proxy_bytes: 1e9,
        proxy_requests: 1e4,
        link_bytes: 1e8,
        server_requests: 1e3,
        node_bytes: 1e9,
    };
    const NODE: OfNode = OfNode { seconds: 2.0, requests: 1000.0, bytes: 1e8 };

    #[test]
    fn proxies_take_the_load_from_the_link_and_the_servers() {
        let direct = SITE.busy(Way::Direct, NODE);
        assert_eq!((direct.link, direct.servers, direct.proxy_bytes), (1024.0, 1024.0, 0.0));
        let proxies = SITE.busy(Way::Proxies, NODE);
        assert_eq!((proxies.link, proxies.servers), (4.0, 4.0));
        assert_eq!(proxies.slowest(), ("proxy requests", 25.6));
        let peers = SITE.busy(Way::Peers, NODE);
        assert_eq!((peers.link, peers.servers), (1.0, 1.0));
        assert!(peers.proxy_requests > proxies.proxy_requests && peers.proxy_requests < 26.0);
        assert_eq!(Site { nodes: 1, ..SITE }.busy(Way::Peers, NODE).slowest(), ("one node alone", 2.0));
        assert!(SITE.table(NODE).contains("1024 nodes"));
    }
}
