use esker_format::hash::ContentHash;
use serde_json::json;

use crate::error::Failure;
use crate::output::show;
use crate::publisher::{ChangeArgs, Interrupt, MasterArgs, NamedArgs, of_operation};
use crate::settings::Settings;

/// Removes a certificate from the whitelist, so that clients refuse what its key signs.
///
/// If its key signed the present head, sign the head with another key first: see `esker key rotate`.
///
/// Example: esker key revoke sw.example.org 58:C3:41:E0:97:9A:5C:C9:AB:02:80:AC:AC:CE:9B:36:4B:29:83:50
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    named: NamedArgs,

    /// Fingerprint of the certificate, as `esker key list` prints it
    #[arg(value_name = "FINGERPRINT", value_parser = fingerprint)]
    fingerprint: ContentHash,

    #[command(flatten)]
    master: MasterArgs,

    #[command(flatten)]
    change: ChangeArgs,
}

/// Reads a fingerprint.
pub(super) fn fingerprint(text: &str) -> Result<ContentHash, String> {
    ContentHash::from_fingerprint(text.as_bytes())
        .ok_or_else(|| "it is not a fingerprint like 58:C3:41:…, as `esker key list` shows it".to_owned())
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    let place = args.named.place(settings)?;
    let resign = args.master.resign(vec![args.fingerprint]);
    let done = args.master.sign(&resign, &place, &args.change, &interrupt);
    let what = format!("the certificate was not taken off the whitelist of {}", place.name);
    let done = done.map_err(|error| of_operation(&what, &error))?;
    let fingerprint = args.fingerprint.to_fingerprint();
    let value = json!({ "repository": args.named.name, "revoked": !args.change.dry_run, "whitelist": done });
    show(args.change.json, &value, |out| {
        let is = if args.change.dry_run { "would no longer be" } else { "is no longer" };
        out.line(format!("{fingerprint} {is} on the whitelist; {} certificates stay", done.kept.len()))?;
        out.line(
            "clients that are offline, or behind a cache, may accept the old whitelist until it expires",
        )?;
        out.line("next: add this line to /etc/cvmfs/blacklist on clients, which is effective at once:")?;
        out.line(format!("  {fingerprint}"))
    })
}
