use std::path::PathBuf;

use esker_format::time::UnixTime;
use esker_maintain::Resign;
use serde_json::json;

use crate::error::Failure;
use crate::output::show;
use crate::publisher::{
    ChangeArgs, Interrupt, MasterArgs, PublisherArgs, for_each, of_operation, publishable,
};
use crate::settings::Settings;

/// Renews the signature of the whitelist, which states the accepted certificates and an expiry date.
///
/// Needs the master key. Adds the certificate in the keys folder to the whitelist if it is missing.
///
/// Example: esker repo resign sw.example.org
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Names of the repositories
    #[arg(value_name = "NAME", required_unless_present_any = ["timer", "all"])]
    names: Vec<String>,

    /// Renew the whitelists of all repositories in the storage folder, but for replicas
    #[arg(long, conflicts_with = "names")]
    all: bool,

    /// Print a shell script that writes a systemd service and timer, which sign the whitelist each week
    #[arg(long, conflicts_with_all = ["names", "all", "dry_run", "json", "only_own", "master_key"])]
    timer: bool,

    #[command(flatten)]
    place: PublisherArgs,

    #[command(flatten)]
    master: MasterArgs,

    /// Remove all certificates from the whitelist except the one in the keys folder
    #[arg(long)]
    only_own: bool,

    #[command(flatten)]
    change: ChangeArgs,
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    if args.timer {
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/usr/bin/esker"));
        return super::timer::print(&program, args.master.whitelist_days, !settings.root);
    }
    let interrupt = Interrupt::on_signals()?;
    let names = if args.all { publishable(&args.place, settings)? } else { args.names.clone() };
    for_each(&names, "have whitelists that were not signed", |name| one(args, name, settings, &interrupt))
}

fn one(args: &Args, name: &str, settings: &Settings, interrupt: &Interrupt) -> Result<(), Failure> {
    let place = args.place.place(name, settings)?;
    let resign = Resign { only_own: args.only_own, ..args.master.resign(Vec::new()) };
    let done = args.master.sign(&resign, &place, &args.change, interrupt);
    let resigned = done
        .map_err(|error| of_operation(&format!("the whitelist of {} was not signed", place.name), &error))?;
    let value = json!({
        "repository": place.name.as_str(),
        "signed": !args.change.dry_run,
        "whitelist": resigned,
    });
    show(args.change.json, &value, |out| {
        let (would, before) =
            (if args.change.dry_run { "would be " } else { "is " }, UnixTime(resigned.expired));
        out.line(format!(
            "{} {would}accepted until {}; before: {before}",
            place.name,
            UnixTime(resigned.expires)
        ))?;
        for (what, fingerprints) in [
            ("stays  ", &resigned.kept),
            ("new    ", &resigned.added.iter().cloned().collect()),
            ("dropped", &resigned.dropped),
        ] {
            for fingerprint in fingerprints {
                out.line(format!("  {what}  {fingerprint}"))?;
            }
        }
        Ok(())
    })
}
