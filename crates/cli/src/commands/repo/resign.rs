use std::path::PathBuf;

use esker_format::time::UnixTime;
use esker_maintain::Resign;
use esker_repository::is_exposed;
use serde_json::json;

use crate::error::Failure;
use crate::output::show;
use crate::publisher::{Interrupt, LockArgs, PublisherArgs, now, of_operation, warn_of_key};
use crate::settings::Settings;

/// Renews the signature of the whitelist, which states the accepted certificates and an expiry date.
///
/// Needs the master key. Adds the certificate in the keys folder to the whitelist if it is missing.
///
/// Example: esker repo resign sw.example.org
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Name of the repository
    #[arg(value_name = "NAME", required_unless_present = "timer")]
    name: Option<String>,

    /// Print a shell script that writes a systemd service and timer, which sign the whitelist each week
    #[arg(long, conflicts_with_all = ["name", "dry_run", "json", "only_own", "master_key"])]
    timer: bool,

    #[command(flatten)]
    place: PublisherArgs,

    #[command(flatten)]
    lock: LockArgs,

    /// Master key [default: NAME.masterkey in the keys folder]
    #[arg(long, value_name = "FILE")]
    master_key: Option<PathBuf>,

    /// Command that signs in place of the master key [default: the one in NAME.masterkey.signer, if there is no key]
    #[arg(long, value_name = "CMD", conflicts_with = "master_key")]
    master_signer: Option<String>,

    /// Days for which the whitelist is valid
    #[arg(long, value_name = "DAYS", default_value_t = esker_repository::WHITELIST_DAYS, value_parser = super::whitelist_days())]
    whitelist_days: u32,

    /// Remove all certificates from the whitelist except the one in the keys folder
    #[arg(long)]
    only_own: bool,

    /// Print the whitelist that would be signed, and sign nothing
    #[arg(long)]
    dry_run: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let Some(name) = args.name.as_deref().filter(|_| !args.timer) else {
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/usr/bin/esker"));
        return super::timer::print(&program, args.whitelist_days, !settings.root);
    };
    let interrupt = Interrupt::on_signals()?;
    let mut place = args.place.place(name, settings)?;
    place.keys = place.keys.with_master_signer(args.master_signer.clone());
    args.master_key.iter().filter(|key| is_exposed(key)).for_each(|key| warn_of_key(key));
    let resign = Resign {
        days: args.whitelist_days,
        master: args.master_key.clone(),
        only_own: args.only_own,
        drop: Vec::new(),
    };
    let done = match args.dry_run {
        true => resign.dry_run(&place.root, &place.name, &place.keys, now()),
        false => args
            .lock
            .when_free(&interrupt, false, || resign.run(&place.root, &place.name, &place.keys, now())),
    };
    let resigned = done
        .map_err(|error| of_operation(&format!("the whitelist of {} was not signed", place.name), &error))?;
    let value = json!({
        "repository": place.name.as_str(),
        "signed": !args.dry_run,
        "whitelist": resigned,
    });
    show(args.json, &value, |out| {
        let (would, before) = (if args.dry_run { "would be " } else { "is " }, UnixTime(resigned.expired));
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
