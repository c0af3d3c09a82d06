//! One file changed in a large repository, by transaction.

use anyhow::Result;

use super::packages::Packages;
use super::rows::{self, Row, Way};
use super::session::Session;
use super::{Bench, Scenario};
use crate::serve::Served;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Vec<Row>> {
    let plan = bench.plan;
    let packages = Packages::of(plan.entries, plan.catalog, false);
    bench.trees.push(format!(
        "change: {} entries, {} in each nested catalog",
        packages.entries(),
        packages.entries() / packages.count
    ));
    bench.say("one change: publishing the tree");
    let folder = bench.folder()?;
    let place = bench.place(folder.path());
    place.create(&[])?;
    std::fs::remove_file(place.publish(&packages)?)?;
    let served = Served::start(&plan.esker.to_string_lossy(), &place.storage)?;
    let mut ours = Way::new("esker transaction, whole");
    let mut publish = Way::base("reference, from the change to the new head");
    let mut whole = Way::new("reference, whole");
    // The first round fills caches, and is not counted.
    for round in 0..=plan.repetitions {
        bench.say(&format!("one change: round {round} of {}", plan.repetitions));
        let package = packages.name(packages.count / 2 + round);
        let script = |way: &str| format!("echo {way} {round} > {}", packages.file(round));
        let cost = place.run(place.transaction(&format!("/{package}"), &script("esker"))?)?;
        if round > 0 {
            ours.runs.push(cost);
        }
        let Some(program) = &bench.reference else { continue };
        let mut session = Session::begin(program, &place, &served.url)?;
        session.change(&package, &script("reference"))?;
        let costs = session.publish()?;
        if round > 0 {
            publish.runs.push(costs.publish);
            whole.runs.push(costs.whole);
        }
    }
    place.run(place.check()?)?;
    Ok(rows::of(Scenario::Change, vec![ours, publish, whole]))
}
