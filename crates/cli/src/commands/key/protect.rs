use esker_repository::KeyCopy;
use serde_json::json;

use crate::error::Failure;
use crate::output::{Output, QuietArgs, show};
use crate::publisher::{NamedArgs, of_operation};
use crate::settings::Settings;

/// Protects the private keys in the keys folder with a passphrase, or removes the passphrase.
///
/// Keys are encrypted as PKCS#8. The passphrase is read from the file that ESKER_KEY_PASSPHRASE_FILE names, from the
/// systemd credential `esker-key-passphrase`, or from the terminal. `cvmfs_server` can't use encrypted keys.
///
/// Example: esker key encrypt sw.example.org --master
#[derive(clap::Args, Debug)]
pub(crate) struct EncryptArgs {
    #[command(flatten)]
    named: NamedArgs,

    /// Protect the master key only
    #[arg(long)]
    master: bool,

    /// Protect the publisher's key only
    #[arg(long, conflicts_with = "master")]
    publisher: bool,

    /// Remove the passphrase
    #[arg(long)]
    remove: bool,

    #[command(flatten)]
    _quiet: QuietArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn encrypt(args: &EncryptArgs, settings: &Settings) -> Result<(), Failure> {
    let place = args.named.place(settings)?;
    let which = KeyCopy { private: !args.master, master: !args.publisher, encrypt: !args.remove };
    let changed = place
        .keys
        .set_encryption(which)
        .map_err(|error| of_operation(&format!("the keys of {} were not changed", place.name), &error))?;
    let value = json!({ "repository": args.named.name, "encrypted": !args.remove, "changed": changed });
    show(args.json, &value, |out| {
        let now = if args.remove { "needs no passphrase" } else { "needs the passphrase" };
        changed.iter().try_for_each(|path| out.line(format!("{} {now}", path.display())))?;
        if changed.is_empty() {
            out.line("nothing changes")?;
        }
        Ok(())
    })
}

/// Sets the command that signs in place of a private key, for keys on a hardware token.
///
/// The command reads the bytes to sign from standard input, pads them as PKCS#1 v1.5 (RSA-PKCS of PKCS#11), and
/// writes the raw signature to standard output. Each signature is verified before it is used. Environment variables
/// of the command: ESKER_SIGN (`manifest` or `whitelist`), ESKER_REPOSITORY (name of the repository), ESKER_SIGN_HASH
/// (hash that is signed).
///
/// Example: esker key signer sw.example.org --master 'pkcs11-tool --sign --mechanism RSA-PKCS --id 01'
#[derive(clap::Args, Debug)]
pub(crate) struct SignerArgs {
    #[command(flatten)]
    named: NamedArgs,

    /// Command
    #[arg(value_name = "CMD", required_unless_present = "remove", conflicts_with = "remove")]
    command: Option<String>,

    /// Set the command for the master key instead of the publisher's key
    #[arg(long)]
    master: bool,

    /// Remove the command
    #[arg(long)]
    remove: bool,

    #[command(flatten)]
    _quiet: QuietArgs,
}

pub(super) fn signer(args: &SignerArgs, settings: &Settings) -> Result<(), Failure> {
    let place = args.named.place(settings)?;
    let path = place
        .keys
        .set_signer(args.master, args.command.as_deref())
        .map_err(|error| of_operation(&format!("the signer of {} was not set", place.name), &error))?;
    let mut out = Output::new();
    let did = if args.remove { "removed" } else { "wrote" };
    out.line(format!("{did} {}", path.display()))?;
    out.finish()
}
