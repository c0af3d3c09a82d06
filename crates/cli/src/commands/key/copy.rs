use std::path::PathBuf;

use esker_repository::{Copied, KeyCopy, KeyFolder};
use serde_json::json;

use crate::error::Failure;
use crate::output::{QuietArgs, show};
use crate::publisher::{NamedArgs, of_operation};
use crate::settings::Settings;

/// Copies the keys of a repository into the keys folder, after checking that they match.
///
/// Never replaces a different key: if there is one, nothing is copied.
///
/// Example: esker key import sw.example.org keys-for-clients
#[derive(clap::Args, Debug)]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    named: NamedArgs,

    /// Folder with NAME.pub, NAME.crt, NAME.key and NAME.masterkey; missing ones are left out
    #[arg(value_name = "DIR")]
    from: PathBuf,

    /// Do not copy the master key
    #[arg(long)]
    no_master: bool,

    /// Protect the copied private keys with a passphrase
    #[arg(long)]
    encrypt: bool,

    #[command(flatten)]
    _quiet: QuietArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Copies keys to another folder: the public ones, and private ones only if requested.
///
/// Example: esker key export sw.example.org --to keys-for-clients
#[derive(clap::Args, Debug)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    named: NamedArgs,

    /// Folder to copy to
    #[arg(long, value_name = "DIR")]
    to: PathBuf,

    /// Copy the publisher's private key too
    #[arg(long)]
    private: bool,

    /// Copy the master key too
    #[arg(long)]
    master: bool,

    /// Protect the copied private keys with a passphrase
    #[arg(long)]
    encrypt: bool,

    #[command(flatten)]
    _quiet: QuietArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn import(args: &ImportArgs, settings: &Settings) -> Result<(), Failure> {
    let place = args.named.place(settings)?;
    let from = args.named.place.keys_in(&args.from, &place.name, settings);
    let which = KeyCopy { private: true, master: !args.no_master, encrypt: args.encrypt };
    copy(&args.named.name, &place.keys, &from, which, args.json)
}

pub(super) fn export(args: &ExportArgs, settings: &Settings) -> Result<(), Failure> {
    let place = args.named.place(settings)?;
    let to = args.named.place.keys_in(&args.to, &place.name, settings);
    let which = KeyCopy { private: args.private, master: args.master, encrypt: args.encrypt };
    copy(&args.named.name, &to, &place.keys, which, args.json)
}

fn copy(name: &str, to: &KeyFolder, from: &KeyFolder, which: KeyCopy, json: bool) -> Result<(), Failure> {
    let copied = to.copy_from(from, which);
    let Copied { written, present } =
        copied.map_err(|error| of_operation(&format!("the keys of {name} were not copied"), &error))?;
    show(json, json!({ "repository": name, "written": written, "present": present }), |out| {
        written.iter().try_for_each(|path| out.line(format!("wrote {}", path.display())))?;
        present.iter().try_for_each(|path| out.line(format!("there already: {}", path.display())))
    })
}
