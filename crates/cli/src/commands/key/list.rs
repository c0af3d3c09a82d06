use esker_format::time::UnixTime;
use esker_maintain::list_certificates;
use serde_json::json;

use crate::error::{Failure, chain, warn};
use crate::output::show;
use crate::publisher::NamedArgs;
use crate::settings::Settings;

/// Lists the key files and the certificates of a repository.
///
/// Example: esker key list sw.example.org
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    named: NamedArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let place = args.named.place(settings)?;
    let files = place.keys.inventory();
    let certificates = match list_certificates(&place.root, &place.name, &place.keys) {
        Ok(certificates) => certificates,
        Err(error) => {
            warn(Some(&format!("the certificates of {} can't be read: {}", place.name, chain(&error))));
            Vec::new()
        }
    };
    let value = json!({ "repository": args.named.name, "files": files, "certificates": certificates });
    show(args.json, &value, |out| {
        for file in &files {
            let state = match (&file.mode, file.encrypted) {
                (None, _) => "not here".to_owned(),
                (Some(mode), Some(true)) => format!("mode {mode}, with passphrase"),
                (Some(mode), _) => format!("mode {mode}"),
            };
            out.line(format!("{:<27} {}  {state}", file.role, file.path.display()))?;
        }
        for certificate in &certificates {
            let mut facts =
                vec![if certificate.listed { "on the whitelist" } else { "not on the whitelist" }.to_owned()];
            facts.extend(certificate.signed_head.then(|| "signed the head".to_owned()));
            facts.extend(certificate.file.map(|file| format!("{}.{file}", args.named.name)));
            facts.extend(certificate.expires.map(|expires| format!("valid until {}", UnixTime(expires))));
            out.line(format!("{}  {}", certificate.fingerprint, facts.join(", ")))?;
        }
        Ok(())
    })
}
