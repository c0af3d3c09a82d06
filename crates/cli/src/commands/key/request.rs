use std::io::Read as _;
use std::path::{Path, PathBuf};

use esker_format::hash::ContentHash;
use esker_format::whitelist::Whitelist;
use esker_maintain::{SignAnswer, SignRequest};

use super::revoke::fingerprint;
use crate::error::Failure;
use crate::output::{Output, QuietArgs};
use crate::publisher::{
    Interrupt, LockArgs, MasterArgs, NamedArgs, PublisherArgs, confirm, now, of_operation,
};
use crate::settings::Settings;

/// Longest request or answer, in bytes.
const LENGTH_MAX: u64 = 1 << 18;

/// Prints a request to sign the whitelist on the machine with the master key.
///
/// The request is text: a description of the change, and the whitelist to sign.
///
/// Example: esker key request sw.example.org > request.txt
#[derive(clap::Args, Debug)]
pub(crate) struct RequestArgs {
    #[command(flatten)]
    named: NamedArgs,

    /// Remove this certificate from the whitelist; may be repeated
    #[arg(long, value_name = "FINGERPRINT", value_parser = fingerprint)]
    drop: Vec<ContentHash>,

    /// Days for which the whitelist is valid
    #[arg(long, value_name = "DAYS", default_value_t = esker_repository::WHITELIST_DAYS,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(esker_repository::WHITELIST_DAYS_MAX)))]
    whitelist_days: u32,
}

/// Signs the whitelist of a request with the master key, and prints it for `esker key apply`.
///
/// Works on a machine without the repository and without network. Shows the whitelist and asks for confirmation;
/// without a terminal, --yes is required.
///
/// Example: esker key sign request.txt --yes > answer.txt
#[derive(clap::Args, Debug)]
pub(crate) struct SignArgs {
    /// File that `esker key request` printed; - for standard input
    #[arg(value_name = "FILE")]
    request: PathBuf,

    #[command(flatten)]
    place: PublisherArgs,

    /// Master key [default: NAME.masterkey in the keys folder]
    #[arg(long, value_name = "FILE")]
    master_key: Option<PathBuf>,

    /// Command that signs in place of the master key [default: the one in NAME.masterkey.signer, if there is no key]
    #[arg(long, value_name = "CMD", conflicts_with = "master_key")]
    master_signer: Option<String>,

    /// Sign without confirmation
    #[arg(long)]
    yes: bool,
}

/// Verifies and publishes a whitelist that `esker key sign` signed.
///
/// Example: esker key apply answer.txt
#[derive(clap::Args, Debug)]
pub(crate) struct ApplyArgs {
    /// File that `esker key sign` printed; - for standard input
    #[arg(value_name = "FILE")]
    answer: PathBuf,

    #[command(flatten)]
    place: PublisherArgs,

    #[command(flatten)]
    lock: LockArgs,

    #[command(flatten)]
    _quiet: QuietArgs,
}

pub(super) fn request(args: &RequestArgs, settings: &Settings) -> Result<(), Failure> {
    let place = args.named.place(settings)?;
    let drop = args.drop.clone();
    let resign = MasterArgs { master_key: None, master_signer: None, whitelist_days: args.whitelist_days }
        .resign(drop);
    let made = SignRequest::new(&resign, &place.root, &place.name, &place.keys, now());
    let what = format!("there is no request for {}", place.name);
    let (request, told) = made.map_err(|error| of_operation(&what, &error))?;
    let mut out = Output::new();
    out.text(request.to_text(&told))?;
    out.finish()
}

pub(super) fn sign(args: &SignArgs, settings: &Settings) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    let failed = |error| of_operation("the whitelist was not signed", &error);
    let request = SignRequest::parse(&read(&args.request)?).map_err(failed)?;
    let keys = args.place.keys(request.name(), settings)?.with_master_signer(args.master_signer.clone());
    let facts = describe(request.name().as_str(), request.whitelist());
    // The answer goes to standard output, so the question goes to the other.
    let question = format!("{facts}Sign this whitelist?");
    if !args.yes && !confirm(&question, &interrupt) {
        return Err(Failure::failed("the whitelist was not signed")
            .hint("confirm on a terminal, or read the request and repeat this with --yes"));
    }
    let answer = request.sign(&keys, args.master_key.as_deref()).map_err(failed)?;
    let mut out = Output::new();
    out.text(answer.to_text())?;
    out.finish()
}

pub(super) fn apply(args: &ApplyArgs, settings: &Settings) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    let failed = |error| of_operation("the whitelist was not published", &error);
    let answer = SignAnswer::parse(&read(&args.answer)?).map_err(failed)?;
    let place = args.place.place(answer.name().as_str(), settings)?;
    args.lock
        .when_free(&interrupt, false, || answer.apply(&place.root, &place.name, &place.keys, now()))
        .map_err(failed)?;
    let mut out = Output::new();
    out.text(describe(place.name.as_str(), answer.whitelist()))?;
    out.line("this whitelist is published")?;
    out.finish()
}

fn describe(name: &str, whitelist: &Whitelist) -> String {
    let mut text = format!("whitelist of {name}, valid until {}\n", whitelist.expires);
    for fingerprint in &whitelist.fingerprints {
        text += &format!("  accepts {}\n", fingerprint.to_fingerprint());
    }
    text
}

fn read(path: &Path) -> Result<String, Failure> {
    let failed = |error: std::io::Error| Failure::usage(format!("can't read {}: {error}", path.display()));
    let mut text = String::new();
    let read = match path == Path::new("-") {
        true => std::io::stdin().take(LENGTH_MAX + 1).read_to_string(&mut text),
        false => {
            std::fs::File::open(path).and_then(|file| file.take(LENGTH_MAX + 1).read_to_string(&mut text))
        }
    };
    read.map_err(failed)?;
    Ok(text)
}
