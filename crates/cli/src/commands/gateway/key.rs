//! Keys of publishers: their files in the folder of the gateway, and the files that publishers get.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use esker_format::time::UnixTime;
use esker_gateway::{
    KeyLimits, KeyRing, LeasePath, OldSecret, PublisherKey, Secret, is_key_name, key_file, write_key,
    write_plain_key,
};
use esker_store::{RealDisk, make_dirs};
use serde_json::{Value, json};

use super::StateArgs;
use crate::error::{Context, Failure, Kind, chain};
use crate::output::{Output, QuietArgs, parse_duration, parse_size, show_all, size};
use crate::settings::Settings;

commands! {
    /// Lists, makes, replaces and removes the keys of publishers.
    ///
    /// A running gateway takes the changes within seconds.
    ///
    /// Example: esker gateway key list
    args, call;
    List(ListArgs) => list(&args, call.settings);
    Add(AddArgs) => add(args, call.settings);
    Rotate(RotateArgs) => rotate(&args, call.settings);
    Remove(RemoveArgs) => remove(&args, call.settings);
}

/// Lists the keys of publishers with what they may change, without their secrets.
///
/// Example: esker gateway key list --json
#[derive(clap::Args, Debug)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    state: StateArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Makes a key, and writes the file for its publisher.
///
/// Example: esker gateway key add build sw.example.org/gcc
#[derive(clap::Args, Debug)]
pub(crate) struct AddArgs {
    /// Name of the key
    #[arg(value_name = "KEY")]
    name: String,

    /// Directories that the publisher may change, as NAME/PATH; NAME/ is a whole repository
    #[arg(value_name = "NAME/PATH", value_parser = super::parse_path)]
    grants: Vec<LeasePath>,

    /// Let the key list and end leases of others, and enable repositories
    #[arg(long)]
    operator: bool,

    /// Longest lifetime of a lease that is not renewed [default: that of the gateway]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Limits")]
    lease_time: Option<Duration>,

    /// Maximum number of leases at once
    #[arg(long, value_name = "N", help_heading = "Limits")]
    leases: Option<u32>,

    /// Maximum size of the objects that are sent with one lease
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    lease_size: Option<u64>,

    /// Maximum number of requests in a second
    #[arg(long, value_name = "N", help_heading = "Limits")]
    rate: Option<u32>,

    /// File for the publisher, which must not exist [default: KEY.gw]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    state: StateArgs,

    #[command(flatten)]
    _quiet: QuietArgs,
}

/// Gives a key a new secret, and writes the file for its publisher.
///
/// Leases go on: they belong to the key, and not to its secret.
///
/// Example: esker gateway key rotate build --output build-2.gw
#[derive(clap::Args, Debug)]
pub(crate) struct RotateArgs {
    /// Name of the key
    #[arg(value_name = "KEY")]
    name: String,

    /// Time for which the old secret stays valid; 0s for none
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    keep_old: Duration,

    /// File for the publisher, which must not exist [default: KEY.gw]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    state: StateArgs,

    #[command(flatten)]
    _quiet: QuietArgs,
}

/// Removes a key. Its leases publish nothing any more, and end by themselves.
///
/// Example: esker gateway key remove build
#[derive(clap::Args, Debug)]
pub(crate) struct RemoveArgs {
    /// Name of the key
    #[arg(value_name = "KEY")]
    name: String,

    #[command(flatten)]
    state: StateArgs,

    #[command(flatten)]
    _quiet: QuietArgs,
}

fn read(folder: &Path) -> Result<KeyRing, Failure> {
    if !folder.exists() {
        return Ok(KeyRing::default());
    }
    KeyRing::read(folder).map_err(|error| Failure::failed(chain(&error)))
}

/// Returns a key that must exist.
fn known(folder: &Path, name: &str) -> Result<PublisherKey, Failure> {
    let ring = read(folder)?;
    let found = ring.iter().find(|(known, _)| *known == name).map(|(_, key)| key.clone());
    found.ok_or_else(|| {
        Failure::usage(format!("there is no key {name} in {}", folder.display()))
            .hint("`esker gateway key list` lists the keys; name the folder of the gateway with --state DIR")
    })
}

fn list(args: &ListArgs, settings: &Settings) -> Result<(), Failure> {
    let ring = read(&args.state.publishers(settings)?)?;
    show_all(args.json, ring.iter().map(|(name, key)| described(name, key)), |out| {
        ring.iter().try_for_each(|(name, key)| out.line(line(name, key)))
    })
}

/// Returns what JSON has of a key. Field names are an interface.
fn described(name: &str, key: &PublisherKey) -> Value {
    json!({
        "key": name,
        "grants": key.grants,
        "operator": key.admin,
        "limits": key.limits,
        "old_secret_until": key.old.as_ref().map(|old| old.until),
    })
}

fn line(name: &str, key: &PublisherKey) -> String {
    let KeyLimits { lease_seconds, leases, lease_bytes, requests } = key.limits;
    let mut facts: Vec<String> = key.grants.iter().map(ToString::to_string).collect();
    facts.extend(key.admin.then(|| "operator".to_owned()));
    facts.extend(lease_seconds.map(|seconds| format!("leases of {seconds} s")));
    facts.extend(leases.map(|count| format!("{count} leases at once")));
    facts.extend(lease_bytes.map(|bytes| format!("{} with a lease", size(bytes))));
    facts.extend(requests.map(|count| format!("{count} requests in a second")));
    facts.extend(key.old.as_ref().map(|old| format!("old secret valid until {}", UnixTime(old.until))));
    format!("{name:<16}  {}", facts.join(", "))
}

fn add(args: AddArgs, settings: &Settings) -> Result<(), Failure> {
    let folder = args.state.publishers(settings)?;
    if !is_key_name(&args.name) {
        return Err(Failure::usage(format!("a key can't be called {:?}", args.name))
            .hint("name it with at most 64 letters, digits and ._-@"));
    }
    if args.grants.is_empty() && !args.operator {
        return Err(Failure::usage("the key could do nothing")
            .hint("name a directory, like sw.example.org/gcc, or a whole repository, like sw.example.org/; or use --operator"));
    }
    if key_file(&folder, &args.name).exists() {
        return Err(Failure::usage(format!("there is a key {} already", args.name))
            .hint("`esker gateway key rotate` gives it another secret; `remove` removes it"));
    }
    make_dirs(&RealDisk::PRIVATE, &folder)
        .context(Kind::Failed, format!("can't make {}", folder.display()))?;
    let seconds = args.lease_time.map(|time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX));
    let limits = KeyLimits {
        lease_seconds: seconds,
        leases: args.leases,
        lease_bytes: args.lease_size,
        requests: args.rate,
    };
    let key = PublisherKey {
        secret: Secret::random(),
        grants: args.grants,
        admin: args.operator,
        limits,
        old: None,
    };
    let known = read(&folder)?;
    let mut out = Output::new();
    let file = write(&folder, &args.name, &key, args.output.as_deref())?;
    out.line(format!(
        "made key {}; give {} to its publisher, which names it with --key",
        args.name,
        file.display()
    ))?;
    let is_new = |grant: &&LeasePath| !known.repositories().contains(&grant.repository);
    if let Some(grant) = key.grants.iter().find(is_new) {
        out.line(format!("a gateway that runs uses {} once it is started again", grant.repository))?;
    }
    out.finish()
}

fn rotate(args: &RotateArgs, settings: &Settings) -> Result<(), Failure> {
    let folder = args.state.publishers(settings)?;
    let before = known(&folder, &args.name)?;
    let until = SystemTime::now() + args.keep_old;
    let until = until.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let until = i64::try_from(until).unwrap_or(i64::MAX);
    let old = (!args.keep_old.is_zero()).then(|| OldSecret { secret: before.secret.clone(), until });
    let key = PublisherKey { secret: Secret::random(), old, ..before };
    let file = write(&folder, &args.name, &key, args.output.as_deref())?;
    let mut out = Output::new();
    out.line(format!("key {} has a new secret, in {}", args.name, file.display()))?;
    out.line(match &key.old {
        Some(old) => format!("the old secret is valid until {}", UnixTime(old.until)),
        None => "the old secret is not valid any more".to_owned(),
    })?;
    out.finish()
}

fn remove(args: &RemoveArgs, settings: &Settings) -> Result<(), Failure> {
    let folder = args.state.publishers(settings)?;
    known(&folder, &args.name)?;
    let file = key_file(&folder, &args.name);
    std::fs::remove_file(&file).context(Kind::Failed, format!("can't remove {}", file.display()))?;
    let mut out = Output::new();
    out.line(format!("removed key {}", args.name))?;
    out.finish()
}

/// Writes the file for the publisher, then that of the gateway: a key whose file is lost is of no use.
fn write(folder: &Path, name: &str, key: &PublisherKey, output: Option<&Path>) -> Result<PathBuf, Failure> {
    let file = output.map_or_else(|| PathBuf::from(format!("{name}.gw")), Path::to_owned);
    write_plain_key(&file, name, &key.secret).map_err(|error| {
        Failure::failed(format!("can't write {}: {error}", file.display()))
            .hint("name a file that doesn't exist with --output FILE")
    })?;
    write_key(folder, name, key).map_err(|error| {
        // Of no use without the other one.
        let _ = std::fs::remove_file(&file);
        Failure::failed(format!("can't write the key to {}: {error}", folder.display()))
    })?;
    Ok(file)
}
