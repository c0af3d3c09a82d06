use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;

use esker_vfs::{Change, Cookie, Data, Listing, Reply, StatFs, TreeError, Watcher};
use proptest::prelude::*;

use super::*;

/// Counts held nodes; implements nothing but hold and release.
#[derive(Default)]
struct Ledger {
    held: Mutex<HashMap<NodeKey, Node>>,
    wrong: AtomicUsize,
}

fn found(number: u64) -> NodeWithAttr {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    let kind = if number.is_multiple_of(3) { Kind::Directory } else { Kind::File };
    let node =
        Node { key: NodeKey(key), ino: Ino(number + 7), payload: Payload([number as u8; PAYLOAD_LEN]), kind };
    let attr = Attr {
        ino: node.ino,
        size: number << 33,
        mtime: Time { secs: -5, nanos: 999_999_999 },
        permissions: 0o7777,
        kind,
        nlink: u32::MAX,
        uid: 1 + number as u32,
        gid: u32::MAX - 1,
        rdev: Device { major: 0xfff, minor: 0xfffff },
    };
    NodeWithAttr { node, attr }
}

impl Tree for Ledger {
    fn root(&self) -> NodeWithAttr {
        found(0)
    }
    fn hold(&self, node: &Node) {
        if self.held.lock().insert(node.key, *node).is_some() {
            self.wrong.fetch_add(1, Ordering::SeqCst);
        }
    }
    fn release(&self, node: &Node) {
        if self.held.lock().remove(&node.key).is_none_or(|held| held.payload != node.payload) {
            self.wrong.fetch_add(1, Ordering::SeqCst);
        }
    }
    fn lookup(&self, _: &Node, _: &[u8], _: Reply<NodeWithAttr>) {}
    fn attributes(&self, _: &Node, _: Reply<Attr>) {}
    fn list(&self, _: &Node, _: Cookie, _: Reply<Listing>) {}
    fn read(&self, _: &Node, _: u64, _: usize, _: Reply<Data>) {}
    fn link_target(&self, _: &Node, _: Reply<Vec<u8>>) {}
    fn xattr(&self, _: &Node, _: &[u8], _: Reply<Vec<u8>>) {}
    fn xattr_names(&self, _: &Node, _: Reply<Vec<Vec<u8>>>) {}
    fn statfs(&self) -> StatFs {
        StatFs::default()
    }
    fn watch(&self, _: Arc<dyn Watcher>) {}
    fn failed(&self, _: &Node, _: &TreeError, _: Option<u32>) {}
}

impl Watcher for Ledger {
    fn changed(&self, _: &[Change]) {}
}

fn table() -> (Arc<SharedMemory>, Arc<Ledger>, NodeTable) {
    let memory = Arc::new(SharedMemory::new().expect("an arena"));
    let tree = Arc::new(Ledger::default());
    let table = NodeTable::new(Arc::clone(&memory), Arc::clone(&tree) as _).expect("a table");
    (memory, tree, table)
}

#[test]
fn the_root_is_number_one_and_stays() {
    let (_, tree, table) = table();
    assert_eq!(table.node(NodeId::ROOT).expect("the root"), found(0).node);
    assert_eq!(table.attr(NodeId::ROOT), Some(found(0).attr));
    assert_eq!(table.intern(&found(0), None), Some(NodeId::ROOT));
    assert_eq!(table.forget(NodeId::ROOT, 1), Forgotten::Known);
    assert_eq!((table.len(), tree.held.lock().len()), (1, 1));
}

#[test]
fn a_node_number_is_never_reused() {
    let (_, tree, table) = table();
    let mut numbers = std::collections::HashSet::new();
    for round in 1..2000 {
        let id = table.intern(&found(round), Some(NodeId::ROOT)).expect("room");
        assert!(numbers.insert(id));
        let node = table.node(id).expect("known");
        assert_eq!(
            (node, node.payload, node.kind),
            (found(round).node, found(round).node.payload, found(round).node.kind)
        );
        assert_eq!(table.attr(id), Some(found(round).attr), "every field comes back");
        assert_eq!(table.dir_of(id), Some(NodeId::ROOT));
        assert_eq!(table.forget(id, 1), Forgotten::Gone);
        assert!(table.node(id).is_none() && table.id_of(&found(round).node.key).is_none());
        assert_eq!(table.forget(id, 1), Forgotten::Impossible);
    }
    assert_eq!((table.len(), tree.wrong.load(Ordering::SeqCst)), (1, 0));
    let slots: std::collections::HashSet<u32> = numbers.iter().map(|id| id.slot()).collect();
    assert!(slots.len() < 2000, "slots are used again");
}

#[derive(Clone, Debug)]
enum Op {
    Give(u64),
    TakeBack(u64, u64),
    Alter(u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let key = 1..12_u64;
    prop_oneof![
        3 => key.clone().prop_map(Op::Give),
        2 => (key.clone(), 1..4_u64).prop_map(|(k, n)| Op::TakeBack(k, n)),
        1 => (key, any::<u64>()).prop_map(|(k, size)| Op::Alter(k, size)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Compares the table with a map of counts: the same nodes are known, with stable numbers, and the tree holds
    /// exactly these. From time to time another process takes over.
    #[test]
    fn a_table_is_a_map_of_counts(ops in proptest::collection::vec(op(), 1..200)) {
        let (memory, mut tree, mut table) = table();
        let mut model: HashMap<u64, (u64, NodeId, Attr)> = HashMap::new();
        for (step, op) in ops.into_iter().enumerate() {
            match op {
                Op::Give(key) => {
                    let id = table.intern(&found(key), None).expect("room");
                    let entry = model.entry(key).or_insert((0, id, found(key).attr));
                    prop_assert_eq!(entry.1, id);
                    *entry = (entry.0 + 1, id, found(key).attr);
                }
                Op::TakeBack(key, count) => {
                    let Some(&(known, id, _)) = model.get(&key) else { continue };
                    let expected = match known.cmp(&count) {
                        std::cmp::Ordering::Less => Forgotten::Impossible,
                        std::cmp::Ordering::Equal => Forgotten::Gone,
                        std::cmp::Ordering::Greater => Forgotten::Known,
                    };
                    prop_assert_eq!(table.forget(id, count), expected);
                    match expected {
                        Forgotten::Gone => drop(model.remove(&key)),
                        Forgotten::Known => model.get_mut(&key).expect("known").0 -= count,
                        Forgotten::Impossible => {}
                    }
                }
                Op::Alter(key, size) => {
                    let Some((_, id, attr)) = model.get_mut(&key) else { continue };
                    attr.size = size;
                    table.remember(*id, attr);
                }
            }
            if step % 50 == 49 {
                prop_assert_eq!(tree.wrong.load(Ordering::SeqCst), 0);
                tree = Arc::new(Ledger::default());
                table = NodeTable::new(Arc::clone(&memory), Arc::clone(&tree) as _).expect("rebuilt");
            }
            prop_assert_eq!(table.len(), 1 + model.len() as u64);
            prop_assert_eq!(tree.held.lock().len(), 1 + model.len());
            for (key, (_, id, attr)) in &model {
                prop_assert_eq!(table.id_of(&found(*key).node.key), Some(*id));
                prop_assert_eq!(table.attr(*id), Some(*attr));
            }
        }
        prop_assert_eq!(tree.wrong.load(Ordering::SeqCst), 0);
    }
}

/// Threads intern and forget the same few nodes: each node stays usable until it is forgotten, and in the end nothing
/// is left.
#[test]
fn concurrent_lookups_and_forgets_keep_the_counts() {
    let (_, tree, table) = table();
    let refused = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (table, refused) = (&table, &refused);
            scope.spawn(move || {
                for round in 0..20_000_u64 {
                    let key = 1 + (round * 7 + thread * 3) % 5;
                    let id = table.intern(&found(key), Some(NodeId::ROOT)).expect("room");
                    let same = table
                        .node(id)
                        .is_some_and(|n| n == found(key).node && n.payload == found(key).node.payload);
                    let attr = table.attr(id) == Some(found(key).attr);
                    let index = table.id_of(&found(key).node.key) == Some(id);
                    if !same || !attr || !index {
                        refused.fetch_add(1, Ordering::SeqCst);
                    }
                    table.forget(id, 1);
                }
            });
        }
    });
    assert_eq!(refused.load(Ordering::SeqCst), 0);
    assert_eq!((table.len(), tree.held.lock().len()), (1, 1));
    assert_eq!(tree.wrong.load(Ordering::SeqCst), 0, "holds and releases alternate");
}

/// A process that takes over the memory finds the same nodes under the same numbers, and the unanswered requests.
#[test]
fn a_successor_finds_the_same_nodes() {
    let (memory, tree, table) = table();
    let ids: Vec<NodeId> =
        (1..5000).map(|n| table.intern(&found(n), Some(NodeId::ROOT)).expect("room")).collect();
    for id in ids.iter().step_by(3) {
        assert_eq!(table.forget(*id, 1), Forgotten::Gone);
    }
    let mut answered = memory.slot(0);
    answered.fill(0, |buffer| Ok(buffer.len())).expect("filled");
    let mut waiting = memory.slot(0);
    waiting.fill(3, |_| Ok(5)).expect("filled");
    drop(answered);
    let free = memory.free_slots();
    let file = memory.file().try_clone().expect("a second descriptor");
    let successor = Arc::new(SharedMemory::attach(file).expect("attached"));
    assert_eq!(successor.free_slots(), free, "a request that waits keeps its slot");
    let taken = NodeTable::new(Arc::clone(&successor), Arc::clone(&tree) as _).expect("rebuilt");
    assert_eq!(taken.len(), table.len());
    for (n, id) in (1..5000).zip(&ids) {
        let expected = table.node(*id);
        assert_eq!(expected.is_some(), (n - 1) % 3 != 0);
        assert_eq!(taken.node(*id), expected);
        assert_eq!(taken.id_of(&found(n).node.key), expected.map(|_| *id));
        assert_eq!(taken.dir_of(*id), Some(NodeId::ROOT));
    }
    // It goes on where the other one ended.
    let fresh = taken.intern(&found(9999), None).expect("room");
    assert!(!ids.contains(&fresh), "forgotten numbers are not given again");
}

/// A free slot is found by any worker, also by those that wait already.
#[test]
fn the_last_free_slot_can_be_taken_by_any_shard() {
    let memory = Arc::new(SharedMemory::new().expect("memory"));
    let mut taken: Vec<_> = (0..memory.free_slots()).map(|worker| memory.slot(worker)).collect();
    assert_eq!(memory.free_slots(), 0);
    // It becomes the spare one of another worker.
    taken.swap_remove(0);
    assert_eq!(memory.free_slots(), 1);
    taken.push(memory.slot(1));
    assert_eq!(memory.free_slots(), 0);
    let (asks, asked) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..8)
            .map(|worker| {
                let (memory, asks) = (&memory, asks.clone());
                scope.spawn(move || {
                    asks.send(()).expect("heard");
                    memory.slot(worker)
                })
            })
            .collect();
        asked.iter().take(8).for_each(drop);
        // Slots of the lowest numbers, which are kept as spare ones.
        taken.drain(..8);
        let slots: Vec<_> = waiters.into_iter().map(|waiter| waiter.join().expect("a slot")).collect();
        assert_eq!((slots.len(), memory.free_slots()), (8, 0));
    });
}

#[test]
fn an_invalid_memory_file_is_refused() {
    let memory = || rustix::fs::memfd_create(c"test", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
    assert!(SharedMemory::attach(memory()).is_err(), "empty");
    let zeros = memory();
    rustix::fs::ftruncate(&zeros, 1 << 20).expect("grown");
    assert!(SharedMemory::attach(zeros).is_err(), "no magic");
    let (memory, _, _table) = table();
    let cut = memory.file().try_clone().expect("a second descriptor");
    rustix::fs::ftruncate(&cut, 64 << 10).expect("cut");
    assert!(SharedMemory::attach(cut).is_err(), "shorter than its header says");
}
