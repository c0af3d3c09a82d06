//! Many small prefetches in one request.

use std::sync::mpsc::channel;
use std::time::Duration;

use esker_format::batch::{HEADER, Writer, names};
use esker_store::{Callback, CancelToken, Engine, ObjectStore, Objects};
use esker_testkit::mirror::{Fault, Mirror};

use crate::rig::{Made, Rig, bytes, engine_with, noise, roomy, serve, zlib};

const COUNT: u64 = 40;

/// A server that offers batches, with objects of which it knows all but one.
struct Stand {
    mirror: Mirror,
    objects: Vec<Made>,
    rig: Rig,
    store: Objects,
    _folder: tempfile::TempDir,
}

fn far() -> Engine {
    engine_with(|options| options.http.far = Duration::ZERO)
}

impl Stand {
    fn new(fields: &[(&str, &str)]) -> Self {
        Self::at(far(), fields)
    }

    fn at(engine: Engine, fields: &[(&str, &str)]) -> Self {
        let objects: Vec<Made> = (0..COUNT).map(|seed| zlib(&noise(seed, 900))).collect();
        let (mirror, folder) = serve(&objects);
        for (name, value) in fields {
            mirror.say(name, value);
        }
        let rig = Rig::with(engine, roomy());
        let store = rig.open(&mirror.url("repo"));
        // What tells that there are batches.
        bytes(&store, &objects[0].wanted).unwrap();
        Self { mirror, objects, rig, store, _folder: folder }
    }

    /// Answers batches; `change` may spoil an answer.
    fn answer(&self, change: impl Fn(Vec<u8>) -> Vec<u8> + Send + Sync + 'static) {
        let objects = self.objects.clone();
        self.mirror.make(move |path| {
            let names = names(path.strip_prefix("/repo/.esker/batch/")?)?;
            let mut writer = Writer::new();
            for name in names {
                let object = objects.iter().find(|object| object.wanted.name == name);
                match object {
                    Some(object) => writer.put(&object.stored),
                    None => writer.leave_out(),
                }
            }
            Some(change(writer.finish()))
        });
    }

    /// Prefetches everything; returns how many came. Nothing is answered before all of it was asked for, so that the first
    /// fill the way and the others queue.
    fn warm_all(&self) -> usize {
        let rule = self.mirror.fault(|_| true, Fault::Delay(Duration::from_secs(60)));
        let (sender, outcomes) = channel();
        let token = CancelToken::new();
        for object in &self.objects {
            let sender = sender.clone();
            let done = Callback::new(move |warmed| sender.send(warmed).unwrap());
            self.store.warm(object.wanted.clone(), &token, done);
        }
        drop(sender);
        rule.wait_for_hits(1);
        rule.lift();
        outcomes.iter().filter(Result::is_ok).count()
    }

    fn batches(&self) -> usize {
        self.mirror.count(|path| path.contains("/.esker/"))
    }

    fn singles(&self) -> usize {
        self.mirror.count(|path| path.contains("/data/"))
    }

    fn all_read(&self) {
        for object in &self.objects {
            assert_eq!(bytes(&self.store, &object.wanted).unwrap(), object.plain);
        }
    }
}

#[test]
fn small_prefetches_from_afar_share_requests() {
    small_prefetches_share_requests(far());
}

#[test]
fn small_prefetches_from_nearby_share_requests() {
    small_prefetches_share_requests(engine_with(|options| options.http.far = Duration::MAX));
}

fn small_prefetches_share_requests(engine: Engine) {
    let stand = Stand::at(engine, &[(HEADER, "64")]);
    stand.answer(|bytes| bytes);
    assert_eq!(stand.warm_all(), stand.objects.len());
    assert!(stand.batches() > 0);
    assert!(stand.singles() + stand.batches() <= 20, "{} and {}", stand.singles(), stand.batches());
    let asked = stand.mirror.requests().len();
    stand.all_read();
    assert_eq!(stand.mirror.requests().len(), asked, "all of it came with the batches");
    assert_eq!(stand.store.status().traffic.prefetched_used, COUNT - 1);
}

#[test]
fn batches_are_requested_only_from_direct_servers_that_offer_them() {
    for fields in
        [&[][..], &[(HEADER, "0")], &[(HEADER, "64"), ("Via", "1.1 squid")], &[(HEADER, "64"), ("Age", "5")]]
    {
        let stand = Stand::new(fields);
        assert_eq!(stand.warm_all(), stand.objects.len());
        assert_eq!(stand.batches(), 0, "{fields:?}");
        stand.all_read();
    }
}

/// A proxy that answers with a page, a server that took the offer back, an answer that is cut or has more.
#[test]
fn a_server_without_batches_gets_single_requests() {
    let spoilt: [fn(Vec<u8>) -> Vec<u8>; 4] = [
        |_| b"<html>welcome</html>".to_vec(),
        |mut bytes| {
            bytes.pop();
            bytes
        },
        |mut bytes| {
            bytes.push(0);
            bytes
        },
        |mut bytes| {
            bytes[15] = 0x7f;
            bytes
        },
    ];
    for change in spoilt {
        let stand = Stand::new(&[(HEADER, "64")]);
        stand.answer(change);
        assert_eq!(stand.warm_all(), stand.objects.len());
        let batches = stand.batches();
        assert!((1..=20).contains(&batches), "{batches}");
        stand.all_read();
    }
    let stand = Stand::new(&[(HEADER, "64")]);
    assert_eq!(stand.warm_all(), stand.objects.len(), "the server knows no batches after all");
    assert!(stand.batches() > 0);
    stand.all_read();
}

/// One damaged object of a batch is one failed prefetch; the others are there.
#[test]
fn each_object_of_a_batch_is_verified_alone() {
    let stand = Stand::new(&[(HEADER, "64")]);
    stand.answer(|mut bytes| {
        // Behind the frame's first length.
        bytes[20] ^= 1;
        bytes
    });
    let came = stand.warm_all();
    let batches = stand.batches();
    assert!(batches > 0);
    assert_eq!(came, stand.objects.len() - batches);
    assert_eq!(stand.store.status().traffic.prefetches_failed, batches as u64);
    stand.all_read();
}

#[test]
fn an_object_missing_from_a_batch_is_fetched_alone() {
    let stand = Stand::new(&[(HEADER, "64")]);
    stand.mirror.make(|path| {
        let names = names(path.strip_prefix("/repo/.esker/batch/")?)?;
        let mut writer = Writer::new();
        names.iter().for_each(|_| writer.leave_out());
        Some(writer.finish())
    });
    assert_eq!(stand.warm_all(), stand.objects.len());
    assert!(stand.batches() > 0);
    assert_eq!(stand.singles(), stand.objects.len());
    let cached = stand.objects.iter().filter(|object| stand.store.cached(&object.wanted).is_some()).count();
    assert_eq!(cached, stand.objects.len());
    assert_eq!(stand.rig.cache.status().objects, COUNT);
}
