use std::path::PathBuf;

use esker_maintain::{Rotate, Rotated};
use esker_repository::TokenKey;
use serde_json::json;

use crate::error::Failure;
use crate::output::{Output, QuietArgs, show};
use crate::publisher::{Interrupt, LockArgs, MasterArgs, NamedArgs, now, of_operation};
use crate::settings::Settings;

/// Replaces the publisher's key and certificate in two steps, without an interruption for clients.
///
/// The first step makes a new key and signs a whitelist with both certificates; the next publish signs with the new
/// key. When all replicas have that revision, run the command with --finish: it removes the old certificate from the
/// whitelist, and the old key. After an interruption, repeat the command. With --next-signer and --next-certificate the
/// new key is on a hardware token.
///
/// Example: esker key rotate sw.example.org
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    named: NamedArgs,

    /// Remove the old certificate from the whitelist, and the old key; signs the head with the new key first
    #[arg(long)]
    finish: bool,

    #[command(flatten)]
    master: MasterArgs,

    /// Days for which the new certificate is valid; clients ignore this limit
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    certificate_days: u32,

    /// Protect the new key with a passphrase
    #[arg(long)]
    encrypt: bool,

    /// Command that signs with a new key in a token, in place of making one [default: a new key in a file]
    #[arg(long, value_name = "CMD", requires = "next_certificate", conflicts_with_all = ["encrypt", "finish"])]
    next_signer: Option<String>,

    /// Certificate of the new key in the token
    #[arg(long, value_name = "FILE", requires = "next_signer")]
    next_certificate: Option<PathBuf>,

    #[command(flatten)]
    lock: LockArgs,

    #[command(flatten)]
    _quiet: QuietArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    let mut place = args.named.place(settings)?;
    place.keys = args.master.keys(place.keys);
    let rotate = Rotate {
        certificate_days: args.certificate_days,
        resign: args.master.resign(Vec::new()),
        encrypt: args.encrypt,
        token: token(args),
    };
    let done = args.lock.when_free(&interrupt, false, || match args.finish {
        true => rotate.finish(&place.root, &place.name, &place.keys, || place.try_open(), now()),
        false => rotate.start(&place.root, &place.name, &place.keys, now()),
    });
    let done =
        done.map_err(|error| of_operation(&format!("the key of {} was not rotated", place.name), &error))?;
    show(args.json, json!({ "repository": args.named.name, "rotation": done }), |out| print(args, &done, out))
}

/// Returns the new key that a token has.
fn token(args: &Args) -> Option<TokenKey> {
    let (signer, certificate) = args.next_signer.clone().zip(args.next_certificate.clone())?;
    Some(TokenKey { signer, certificate })
}

fn print(args: &Args, done: &Rotated, out: &mut Output) -> Result<(), Failure> {
    let name = &args.named.name;
    out.line(format!("new certificate  {}", done.new))?;
    done.old.iter().try_for_each(|old| out.line(format!("old certificate  {old}")))?;
    if done.signed_head {
        out.line("the head was signed with the new key")?;
    }
    if done.needs_signature {
        let drop =
            done.old.iter().filter(|_| args.finish).map(|old| format!(" --drop {old}")).collect::<String>();
        out.line("the whitelist has to be signed with the master key, which is not here:")?;
        out.line(format!("next: esker key request {name}{drop} > request.txt"))?;
        let finish = if args.finish { " --finish" } else { "" };
        return out.line(format!("      esker key apply answer.txt; then: esker key rotate {name}{finish}"));
    }
    if done.finished {
        return out.line("the rotation is finished; the old key was removed");
    }
    out.line("the next publish signs with the new key")?;
    out.line(format!(
        "next: publish, wait until the replicas have it, then: esker key rotate {name} --finish"
    ))
}
