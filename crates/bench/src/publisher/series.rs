//! Revisions of ten files each, one after the other.

use anyhow::Result;

use super::packages::Packages;
use super::rows::{self, REVISIONS_AN_HOUR, Row, Way};
use super::session::Session;
use super::{Bench, Scenario};
use crate::serve::Served;

/// Files of a revision.
const FILES: usize = 10;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Vec<Row>> {
    let plan = bench.plan;
    let packages = Packages::of(plan.aged_entries, plan.catalog, true);
    bench.trees.push(format!(
        "series: {} entries, {} in each nested catalog; {FILES} files of about 10 kB in each revision",
        packages.entries(),
        packages.entries() / packages.count
    ));
    bench.say("series: publishing the tree");
    let folder = bench.folder()?;
    let first = bench.place(&folder.path().join("first"));
    std::fs::create_dir(&first.scratch)?;
    first.create(&[])?;
    let archive = first.publish(&packages)?;
    let [by_transaction, by_ingest, by_reference] =
        ["transaction", "ingest", "reference"].map(|name| first.copy(&folder.path().join(name)));
    let (by_transaction, by_ingest, by_reference) = (by_transaction?, by_ingest?, by_reference?);
    let served = Served::start(&plan.esker.to_string_lossy(), &by_reference.storage)?;
    let mut transaction = Way::new("esker transaction, whole");
    let mut ingest = Way::new("esker ingest of an archive");
    let mut publish = Way::base("reference, from the change to the new head");
    let mut whole = Way::new("reference, whole");
    bench.say(&format!("series: {} revisions", plan.series));
    for round in 0..plan.series {
        let package = packages.name(round);
        let script: String = (0..FILES)
            .map(|number| format!("seq {} 10000 > {}\n", 8000 + round + number, packages.file(number)))
            .collect();
        let command = by_transaction.transaction(&format!("/{package}"), &script)?;
        transaction.runs.push(by_transaction.run(command)?);
        packages.write_change(&archive, round, FILES)?;
        ingest.runs.push(by_ingest.run(by_ingest.ingest(&archive)?)?);
        let Some(program) = &bench.reference else { continue };
        let mut session = Session::begin(program, &by_reference, &served.url)?;
        session.change(&package, &script)?;
        let costs = session.publish()?;
        publish.runs.push(costs.publish);
        whole.runs.push(costs.whole);
    }
    for place in [&by_transaction, &by_ingest, &by_reference] {
        place.run(place.check()?)?;
    }
    let mut ways = vec![transaction, ingest, publish, whole];
    for way in &mut ways {
        let hours = way.runs.iter().map(|cost| cost.real).sum::<f64>() / 3600.0;
        way.facts.insert(REVISIONS_AN_HOUR, way.runs.len() as f64 / hours);
    }
    Ok(rows::of(Scenario::Series, ways))
}
