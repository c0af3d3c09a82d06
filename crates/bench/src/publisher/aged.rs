//! Check and collect of a repository with many revisions.

use anyhow::{Result, ensure};

use super::packages::Packages;
use super::place::{NAME, Place};
use super::rows::{self, DELETED, Row, Way};
use super::{Bench, Scenario};
use crate::measure::Cost;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Vec<Row>> {
    let plan = bench.plan;
    let packages = Packages::of(plan.aged_entries, plan.catalog, true);
    bench.trees.push(format!(
        "collect: {} entries, {} in each nested catalog; {} revisions that change {} files each; the head and {} before it \
         are kept",
        packages.entries(),
        packages.entries() / packages.count,
        plan.revisions,
        plan.changed,
        plan.kept
    ));
    bench.say("check and collect: publishing the tree");
    let folder = bench.folder()?;
    let place = bench.place(&folder.path().join("first"));
    std::fs::create_dir(&place.scratch)?;
    place.create(&[])?;
    // A tag for each revision would keep all of them.
    place.run(place.command(&["repo", "set", NAME, "automatic_tags=off"])?)?;
    let archive = folder.path().join("tree.tar");
    packages.write(&archive)?;
    place.run(place.ingest(&archive)?)?;
    bench.say(&format!("check and collect: {} revisions", plan.revisions));
    let mut made = Way::new("esker ingest, one of the revisions");
    for revision in 1..=plan.revisions {
        packages.write_change(&archive, revision, plan.changed)?;
        made.runs.push(place.run(place.ingest(&archive)?)?);
    }
    let mut checks = [Way::new("check: esker"), Way::base("check: reference")];
    let mut collects = [Way::new("collect: esker"), Way::base("collect: reference")];
    for round in 0..plan.repetitions {
        bench.say(&format!("check and collect: round {} of {}", round + 1, plan.repetitions));
        let copy = tempfile::tempdir_in(folder.path())?;
        let copy = (place.copy(&copy.path().join("esker"))?, copy);
        checks[0].runs.push(copy.0.run(copy.0.check()?)?);
        let ours = deleted(&copy.0, &mut collects[0], |place| {
            let mut collect = place.command(&["collect", NAME, "--quiet", "--grace", "0"])?;
            collect.arg("--keep-last").arg(plan.kept.to_string());
            place.run(collect)
        })?;
        copy.0.run(copy.0.check()?)?;
        let Some(program) = &bench.reference else { continue };
        let other = place.copy(&copy.1.path().join("reference"))?;
        checks[1].runs.push(program.check(&other)?);
        let theirs = deleted(&other, &mut collects[1], |place| program.collect(place, plan.kept))?;
        ensure!(
            ours > 0 && theirs > 0,
            "nothing was deleted: {ours} objects by Esker, {theirs} by the reference"
        );
    }
    let [checks, collects] = [checks, collects].map(|ways| rows::of(Scenario::Collect, ways.into()));
    Ok([rows::of(Scenario::Collect, vec![made]), checks, collects].concat())
}

/// Runs a collect, and counts the objects that it deletes.
fn deleted(place: &Place, way: &mut Way, collect: impl FnOnce(&Place) -> Result<Cost>) -> Result<u64> {
    let before = place.objects()?.0;
    way.runs.push(collect(place)?);
    let deleted = before.saturating_sub(place.objects()?.0);
    way.facts.insert(DELETED, deleted as f64);
    Ok(deleted)
}
