//! Changes reported for a new revision, against a kernel that caches everything until it is invalidated.

use std::collections::{BTreeMap, BTreeSet};

use esker_journal::Journal;
use esker_testkit::fixture::FULL;
use esker_vfs::{Change, Kind, NodeKey, NodeWithAttr};
use esker_view::{LastLink, View, ViewOptions};
use proptest::prelude::*;

use crate::kernel::Kernel;
use crate::model::{Model, Thing};
use crate::support::Site;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// All paths of up to three names, parents first.
fn universe() -> Vec<String> {
    let mut paths = vec![String::new()];
    let mut level = paths.clone();
    for _ in 0..3 {
        level = level.iter().flat_map(|path| NAMES.map(|name| format!("{path}/{name}"))).collect();
        paths.extend(level.iter().cloned());
    }
    paths.remove(0);
    paths
}

fn thing() -> impl Strategy<Value = Option<Thing>> {
    prop_oneof![
        3 => Just(None),
        8 => prop_oneof![9 => Just(0o755), 1 => Just(0o700)].prop_map(|mode| Some(Thing::Directory { mode })),
        3 => (0..3u8, prop_oneof![4 => Just(0o644), 1 => Just(0o600)])
            .prop_map(|(content, mode)| Some(Thing::File { content, mode })),
        1 => proptest::collection::vec(0..3u8, 1..3).prop_map(|chunks| Some(Thing::Chunked { chunks })),
        1 => (0..2u8).prop_map(|n| Some(Thing::Link { target: format!("target{n}") })),
        1 => (1..3u32, 0..2u8).prop_map(|(group, content)| Some(Thing::Hardlink { group, content })),
    ]
}

/// One choice for each path: its entry, whether it has its own catalog, whether it is hidden.
type Choice = (Option<Thing>, bool, bool);

fn choices() -> impl Strategy<Value = Vec<Choice>> {
    let choice = (thing(), prop::bool::weighted(0.25), prop::bool::weighted(0.05));
    proptest::collection::vec(choice, universe().len())
}

/// A revision that keeps most of the choices of the one before.
fn changed(before: Vec<Choice>) -> impl Strategy<Value = Vec<Choice>> {
    let keep = proptest::collection::vec(prop::bool::weighted(0.85), before.len());
    let keep_catalogs = prop::bool::weighted(0.7);
    (Just(before), choices(), keep, keep_catalogs).prop_map(|(before, other, keep, keep_catalogs)| {
        let pick = |((old, new), keep): ((Choice, Choice), bool)| {
            let nested = if keep_catalogs { old.1 } else { new.1 };
            if keep { (old.0, nested, old.2) } else { (new.0, nested, new.2) }
        };
        before.into_iter().zip(other).zip(keep).map(pick).collect()
    })
}

fn model(choices: &[Choice]) -> Model {
    let mut model = Model::default();
    for (path, (thing, nested, hidden)) in universe().into_iter().zip(choices) {
        let parent = path.rsplit_once('/').unwrap().0.to_owned();
        let in_directory =
            parent.is_empty() || matches!(model.things.get(&parent), Some(Thing::Directory { .. }));
        let Some(thing) = thing.clone().filter(|_| in_directory) else { continue };
        if *nested && matches!(thing, Thing::Directory { .. }) {
            model.nested.insert(path.clone());
        }
        if *hidden {
            model.hidden.insert(path.clone());
        }
        model.things.insert(path, thing);
    }
    model
}

/// Lookups of a program: paths, and whether it lists the directory.
fn looks() -> impl Strategy<Value = Vec<(usize, bool)>> {
    proptest::collection::vec((0..universe().len(), any::<bool>()), 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// A kernel that caches everything until it is invalidated agrees with the tree after every switch, whatever it
    /// looked up before, and whether or not another process takes over; and names that were not reported stay valid without a check.
    #[test]
    fn cached_entries_are_correct_after_every_switch(
        revisions in choices()
            .prop_flat_map(|first| (Just(first.clone()), changed(first)))
            .prop_flat_map(|(first, second)| (Just(first), Just(second.clone()), changed(second))),
        looked in proptest::collection::vec(looks(), 3),
        taken_over in proptest::collection::vec(any::<bool>(), 3),
    ) {
        let (first, second, third) = revisions;
        let site = site();
        let journal = Journal::new().expect("memory");
        let open = || {
            let journal = Journal::attach(journal.descriptor().expect("a descriptor")).expect("a journal");
            let ttl = Some(std::time::Duration::MAX);
            site.open(ViewOptions { ttl, journal: Some(journal.into()), ..ViewOptions::default() }).unwrap()
        };
        let mut view = None;
        for ((choices, looks), is_taken_over) in [first, second, third].iter().zip(&looked).zip(taken_over) {
            model(choices).publish(&site.repository);
            let (view, kernel) = view.get_or_insert_with(|| {
                let view = open();
                let kernel = Kernel::on(&view);
                (view, kernel)
            });
            if is_taken_over {
                // The kernel has entries of the revision before, which the other view goes on with.
                *view = open();
                kernel.goes_on(view);
                kernel.check(view, &NAMES);
            }
            view.refresh().unwrap();
            kernel.check(view, &NAMES);
            for (path, list) in looks {
                let node = kernel.walk_to(view, &universe()[*path]);
                if let Some(node) = node.filter(|node| *list && node.kind == Kind::Directory) {
                    kernel.list(view, &node);
                }
            }
            kernel.check(view, &NAMES);
        }
    }

    /// If no catalog appears or vanishes, and everything was looked up, exactly the changes are reported.
    #[test]
    fn exactly_the_changes_are_reported(
        (first, second) in choices().prop_flat_map(|first| (Just(first.clone()), changed(first)))
    ) {
        let site = site();
        let (old, mut new) = (model(&first), model(&second));
        new.nested = old.nested.iter().filter(|path| is_directory(&new, path)).cloned().collect();
        old.publish(&site.repository);
        let view = site.following();
        let kernel = Kernel::on(&view);
        let before = everything(&view);
        new.publish(&site.repository);
        let outcome = view.refresh().unwrap();
        prop_assert!(outcome.changed);
        let after = everything(&view);
        let reported: BTreeSet<String> = kernel.take_reported().iter().map(|change| format!("{change:?}")).collect();
        prop_assert_eq!(reported, expected(&before, &after, &old, &new));
    }
}

#[test]
fn a_returning_directory_has_no_outdated_cached_entries() {
    let site = site();
    let publish = |thing: Thing| {
        let mut model = Model::default();
        model.things.insert("/b".to_owned(), thing);
        model.publish(&site.repository);
    };
    publish(Thing::Directory { mode: 0o700 });
    let view = site.following();
    let kernel = Kernel::on(&view);
    assert!(kernel.walk_to(&view, "/b").is_some());
    for thing in [Thing::File { content: 0, mode: 0o644 }, Thing::Directory { mode: 0o755 }] {
        publish(thing);
        assert!(view.refresh().unwrap().changed);
        kernel.check(&view, &NAMES);
    }
}

/// The catalog that it returns with was never mounted, so its rows are not compared.
#[test]
fn a_directory_returning_with_a_catalog_has_no_outdated_names() {
    let site = site();
    let with_b = Model::default().directory("/b");
    with_b.publish(&site.repository);
    let view = site.following();
    let kernel = Kernel::on(&view);
    assert!(kernel.walk_to(&view, "/b/a").is_none());
    for model in [Model::default(), with_b.directory("/b/a").nest("/b")] {
        model.publish(&site.repository);
        assert!(view.refresh().unwrap().changed);
        kernel.check(&view, &NAMES);
    }
}

/// One repository for all cases: each publishes further revisions of it.
fn site() -> std::sync::MutexGuard<'static, Site> {
    static SITE: std::sync::LazyLock<std::sync::Mutex<Site>> =
        std::sync::LazyLock::new(|| std::sync::Mutex::new(Site::of(FULL)));
    // A failed case leaves no state that affects the next one.
    SITE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn is_directory(model: &Model, path: &str) -> bool {
    matches!(model.things.get(path), Some(Thing::Directory { .. }))
}

/// Returns all entries, hidden ones too.
fn everything(view: &View) -> BTreeMap<String, NodeWithAttr> {
    let find = |path: String| Some((path.clone(), view.find(path.as_bytes(), LastLink::Keep).ok()?));
    [String::new()].into_iter().chain(universe()).filter_map(find).collect()
}

fn expected(
    before: &BTreeMap<String, NodeWithAttr>,
    after: &BTreeMap<String, NodeWithAttr>,
    old: &Model,
    new: &Model,
) -> BTreeSet<String> {
    let mut reported = BTreeSet::new();
    // A file may have become a directory, or the other way round; its names were those of the directory.
    let directory = |path: &str| -> NodeKey {
        let found = [before, after].into_iter().filter_map(|found| found.get(path));
        found.map(|found| found.node).find(|node| node.kind == Kind::Directory).unwrap().key
    };
    for path in universe() {
        let (parent, name) = path.rsplit_once('/').unwrap();
        let node = |found: &BTreeMap<String, NodeWithAttr>| found.get(&path).map(|found| found.node.key);
        let hidden = old.hidden.contains(&path) != new.hidden.contains(&path);
        if node(before) != node(after) {
            let name = name.as_bytes().into();
            reported.insert(format!("{:?}", Change::Name { dir: directory(parent), name }));
            reported.insert(format!("{:?}", Change::Listing { dir: directory(parent) }));
            if let Some(gone) = before.get(&path).filter(|gone| gone.node.kind == Kind::Directory) {
                // It is the same node if it returns.
                reported.insert(format!("{:?}", Change::Attributes { node: gone.node.key }));
            }
        } else if hidden && node(before).is_some() {
            reported.insert(format!("{:?}", Change::Listing { dir: directory(parent) }));
            reported.insert(format!("{:?}", Change::Attributes { node: before[&path].node.key }));
        } else if before.get(&path).map(|found| found.attr) != after.get(&path).map(|found| found.attr) {
            reported.insert(format!("{:?}", Change::Attributes { node: before[&path].node.key }));
        }
    }
    reported
}
