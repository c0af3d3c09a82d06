use std::path::PathBuf;

use esker_format::hash::ContentHash;
use esker_repository::KeyFolder;
use serde_json::json;

use crate::error::Failure;
use crate::output::show;
use crate::publisher::{Interrupt, LockArgs, NamedArgs, now, of_operation};
use crate::settings::Settings;

/// Options for the key that signs whitelists.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct MasterArgs {
    /// Master key [default: NAME.masterkey in the keys folder]
    #[arg(long, value_name = "FILE")]
    pub(super) master_key: Option<PathBuf>,

    /// Command that signs in place of the master key [default: the one in NAME.masterkey.signer, if there is no key]
    #[arg(long, value_name = "CMD", conflicts_with = "master_key")]
    pub(super) master_signer: Option<String>,

    /// Days for which the whitelist is valid
    #[arg(long, value_name = "DAYS", default_value_t = esker_repository::WHITELIST_DAYS,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(esker_repository::WHITELIST_DAYS_MAX)))]
    pub(super) whitelist_days: u32,
}

impl MasterArgs {
    pub(super) fn keys(&self, keys: KeyFolder) -> KeyFolder {
        keys.with_master_signer(self.master_signer.clone())
    }
}

/// Removes a certificate from the whitelist, so that clients refuse what its key signs.
///
/// If its key signed the present head, sign the head with another key first: see `esker key rotate`.
///
/// Example: esker key revoke sw.example.org 58:C3:41:E0:97:9A:5C:C9:AB:02:80:AC:AC:CE:9B:36:4B:29:83:50
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    named: NamedArgs,

    /// Fingerprint of the certificate, as `esker key list` prints it
    #[arg(value_name = "FINGERPRINT", value_parser = fingerprint)]
    fingerprint: ContentHash,

    #[command(flatten)]
    master: MasterArgs,

    #[command(flatten)]
    lock: LockArgs,

    /// Print the whitelist that would be signed, and sign nothing
    #[arg(long)]
    dry_run: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Reads a fingerprint.
pub(super) fn fingerprint(text: &str) -> Result<ContentHash, String> {
    ContentHash::from_fingerprint(text.as_bytes())
        .ok_or_else(|| "it is not a fingerprint like 58:C3:41:…, as `esker key list` shows it".to_owned())
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    let mut place = args.named.place(settings)?;
    place.keys = args.master.keys(place.keys);
    let resign = args.master.resign(vec![args.fingerprint]);
    let done = match args.dry_run {
        true => resign.dry_run(&place.root, &place.name, &place.keys, now()),
        false => args
            .lock
            .when_free(&interrupt, false, || resign.run(&place.root, &place.name, &place.keys, now())),
    };
    let what = format!("the certificate was not taken off the whitelist of {}", place.name);
    let done = done.map_err(|error| of_operation(&what, &error))?;
    let fingerprint = args.fingerprint.to_fingerprint();
    let value = json!({ "repository": args.named.name, "revoked": !args.dry_run, "whitelist": done });
    show(args.json, &value, |out| {
        let is = if args.dry_run { "would no longer be" } else { "is no longer" };
        out.line(format!("{fingerprint} {is} on the whitelist; {} certificates stay", done.kept.len()))?;
        out.line(
            "clients that are offline, or behind a cache, may accept the old whitelist until it expires",
        )?;
        out.line("next: add this line to /etc/cvmfs/blacklist on clients, which is effective at once:")?;
        out.line(format!("  {fingerprint}"))
    })
}
