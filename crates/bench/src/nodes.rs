//! Models the load on the servers of a parallel file system when many nodes start the same program.
//!
//! Only the input/output of one node with an empty page cache is measured. The model multiplies it by the nodes and
//! divides it by the servers' capacity: lower bounds, because nothing queues and nothing is lost. It tells which part
//! of the file system becomes too slow first, and by how much; it is no forecast.

use serde::Serialize;

use crate::startup::State;
use crate::startup::report::{FromDisk, Row};
use crate::table;

/// A file system and its clients.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Site {
    /// Number of nodes that start at the same time.
    pub nodes: u64,
    /// Number of object servers.
    pub servers: u64,
    /// Number of object servers that store parts of a single file.
    pub stripes: u64,
    /// Bytes that an object server sends in a second.
    pub server_bytes: f64,
    /// Requests that an object server answers in a second.
    pub server_requests: f64,
    /// Names that all metadata servers together look up in a second.
    pub metadata: f64,
    /// Bytes that a node receives in a second.
    pub node_bytes: f64,
}

/// Load of one node.
#[derive(Clone, Debug, Serialize)]
pub struct OneNode {
    /// Name of the root that the program is started from.
    pub name: String,
    /// Seconds of a start on a single node from a local disk.
    pub alone: f64,
    /// Operations of the metadata servers.
    pub metadata: f64,
    /// Requests of object servers.
    pub requests: f64,
    /// Bytes read from the file system.
    pub bytes: f64,
    /// True if all reads are from a single file.
    pub single_file: bool,
}

/// Seconds for which each part of the file system is busy until all nodes have started.
#[derive(Clone, Debug, Serialize)]
pub struct Bounds {
    /// Load of one node.
    #[serde(flatten)]
    pub one: OneNode,
    /// Seconds for which the metadata servers are busy.
    pub metadata_seconds: f64,
    /// Seconds for which the busiest object server is busy with requests.
    pub requests_seconds: f64,
    /// Seconds for which the busiest object server is busy with bytes.
    pub bytes_seconds: f64,
    /// Seconds for which a node's own link is busy.
    pub link_seconds: f64,
}

/// Operations of a node that opens an image: path, open, size. Afterwards it asks metadata servers for nothing.
const OPEN_AN_IMAGE: f64 = 3.0;

/// Returns the load of one node for each root of a cold comparison that reads a disk. `names` is the number of names
/// and listings that the program asks for, each an operation of the metadata servers if its files are on the file
/// system itself.
pub fn measured(rows: &[Row], names: f64) -> Vec<OneNode> {
    let cold = rows.iter().filter(|row| row.setting.state == State::Cold && row.setting.processes == 1);
    let one = |(at, row): (usize, &Row)| {
        let FromDisk { requests, bytes, .. } = row.disk?;
        let single_file = at > 0;
        let metadata = if single_file { OPEN_AN_IMAGE } else { names };
        Some(OneNode {
            name: row.root.clone(),
            alone: row.real.point,
            metadata,
            requests,
            bytes,
            single_file,
        })
    };
    cold.filter(|row| row.setting.link.is_none()).enumerate().filter_map(one).collect()
}

/// Returns the number of names and listings that the program asked for, as counted by a mount without history; the
/// largest count if there are several.
pub fn names(rows: &[Row]) -> Option<f64> {
    let kinds = ["LOOKUP", "GETATTR", "READDIR", "READDIRPLUS", "READLINK"];
    let cold = rows.iter().filter(|row| row.setting.state == State::Cold && !row.callbacks.is_empty());
    let count =
        |row: &Row| kinds.iter().filter_map(|kind| row.callbacks.get(*kind)).map(|(count, _)| count).sum();
    cold.map(count).filter(|count| *count > 0.0).max_by(f64::total_cmp)
}

impl Site {
    /// Returns the busy time of each part.
    pub fn bounds(&self, one: OneNode) -> Bounds {
        let nodes = self.nodes as f64;
        let busy = if one.single_file { self.stripes.min(self.servers) } else { self.servers } as f64;
        Bounds {
            metadata_seconds: nodes * one.metadata / self.metadata,
            requests_seconds: nodes * one.requests / (busy * self.server_requests),
            bytes_seconds: nodes * one.bytes / (busy * self.server_bytes),
            link_seconds: one.bytes / self.node_bytes,
            one,
        }
    }

    /// Returns the assumptions, in lines.
    pub fn assumptions(&self) -> String {
        format!(
            "{} nodes start at once; nothing is in their memory, and they share nothing.\n\
             {} object servers, each {:.1} GB/s and {:.0} requests/s; a single file lies on {} of them, a tree of files on all.\n\
             Metadata servers look up {:.0} names/s, all together; a node receives {:.1} GB/s.\n\
             Servers never wait for their own disks, nothing queues, nothing is lost: each time is a bound from below.\n",
            self.nodes,
            self.servers,
            self.server_bytes / 1e9,
            self.server_requests,
            self.stripes.min(self.servers),
            self.metadata,
            self.node_bytes / 1e9,
        )
    }
}

impl Bounds {
    /// Returns the part with the longest busy time, and that time; nothing is faster than one node alone.
    pub fn slowest(&self) -> (&'static str, f64) {
        let parts = [
            ("one node alone", self.one.alone),
            ("metadata", self.metadata_seconds),
            ("requests", self.requests_seconds),
            ("bytes", self.bytes_seconds),
            ("its link", self.link_seconds),
        ];
        parts.into_iter().fold(("", 0.0), |most, part| if part.1 > most.1 { part } else { most })
    }
}

/// Returns the results as a table for terminals.
pub fn table(all: &[Bounds]) -> String {
    let header =
        ["root", "bounded by", "s at least", "alone s", "names", "s", "requests", "s", "MB", "s", "link s"];
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|bounds| {
            let (part, seconds) = bounds.slowest();
            let one = &bounds.one;
            let mut cells = vec![one.name.clone(), part.to_owned(), format!("{seconds:.1}")];
            cells.push(format!("{:.1}", one.alone));
            let asked = [
                (format!("{:.0}", one.metadata), bounds.metadata_seconds),
                (format!("{:.0}", one.requests), bounds.requests_seconds),
                (format!("{:.0}", one.bytes / 1e6), bounds.bytes_seconds),
            ];
            cells.extend(asked.into_iter().flat_map(|(count, seconds)| [count, format!("{seconds:.1}")]));
            cells.push(format!("{:.1}", bounds.link_seconds));
            cells
        })
        .collect();
    table::layout(&header, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SITE: Site = Site {
        nodes: 1000,
        servers: 10,
        stripes: 1,
        server_bytes: 1e9,
        server_requests: 1e4,
        metadata: 1e4,
        node_bytes: 1e10,
    };

    fn one(single_file: bool) -> OneNode {
        let metadata = if single_file { OPEN_AN_IMAGE } else { 5000.0 };
        OneNode { name: "x".into(), alone: 5.0, metadata, requests: 2000.0, bytes: 1e9, single_file }
    }

    #[test]
    fn the_bottleneck_of_a_tree_are_names_and_that_of_an_image_its_server() {
        let tree = SITE.bounds(one(false));
        assert_eq!((tree.metadata_seconds, tree.requests_seconds, tree.bytes_seconds), (500.0, 20.0, 100.0));
        assert_eq!(tree.slowest(), ("metadata", 500.0));
        let image = SITE.bounds(one(true));
        assert_eq!(image.slowest(), ("bytes", 1000.0));
        let spread = Site { stripes: 64, ..SITE }.bounds(one(true));
        assert_eq!(spread.slowest(), ("bytes", 100.0), "no more servers than there are");
        assert_eq!(Site { nodes: 1, ..SITE }.bounds(one(true)).slowest(), ("one node alone", 5.0));
        let lines = table(&[tree, image]);
        assert!(lines.contains("metadata") && lines.contains("1000.0"), "{lines}");
        assert!(SITE.assumptions().contains("1 of them"));
    }
}
