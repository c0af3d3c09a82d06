//! A broker that has few turns to give.

use super::*;
use crate::peer::Peer;

/// A broker for whose clients together there is little room.
struct Narrow(Arc<World>, Arc<Quota>);

impl Host for Narrow {
    fn admit(&self, _: &Peer) -> Option<Admission> {
        let connection = self.1.connect()?;
        Some(Admission { quota: self.1.clone(), _connection: connection, is_stranger: false })
    }

    fn store(&self, _: &Peer, _: &str) -> Result<Arc<dyn ObjectStore>, StoreError> {
        Ok(Arc::new(FakeStore(self.0.clone())))
    }

    fn cache(&self, _: &Peer) -> Option<Cache> {
        None
    }
}

/// The server occupies all slots, of the mount that waits for it and of another one.
#[test]
fn cached_objects_do_not_wait_for_another_mounts_server() {
    let bench = Bench::new();
    let world = &bench.world;
    let objects: Vec<ObjectRequest> = (0..5u8).map(|number| bench.add(&[number])).collect();
    let cached = bench.add(b"cached");
    world.cached.lock().insert(cached.key(), b"cached".to_vec());
    world.taken.store(true, Ordering::SeqCst);
    world.silent.store(true, Ordering::SeqCst);
    let bounds = Bounds { connections: 2, questions: 2, answers: 1, warms: 1 };
    let listener = address::Listener::bind(bench.folder.path()).expect("a socket");
    let host = Narrow(world.clone(), Quota::new(bounds));
    let broker = Broker::serve(listener, Arc::new(host)).expect("a broker");
    let mounts = [bench.open(), bench.open()];
    let mut waiting = Vec::new();
    for mount in &mounts {
        waiting.extend(objects.iter().map(|wanted| ask(mount, wanted)));
        bench.wait_until_parked(2);
    }
    for mount in &mounts {
        assert_eq!(read(mount, &cached), b"cached");
    }
    assert_eq!(world.asked.load(Ordering::SeqCst), 2, "there are two turns");
    // Waiting requests get a slot when the server replies again.
    world.silent.store(false, Ordering::SeqCst);
    let parked = std::mem::take(&mut *world.parked.lock());
    parked.into_iter().for_each(|(wanted, done)| FakeStore(world.clone()).get(wanted, done));
    for answer in waiting {
        answer.recv_timeout(PATIENCE).expect("an answer").expect("an object");
    }
    mounts.iter().for_each(|mount| mount.close());
    drop(broker);
}
