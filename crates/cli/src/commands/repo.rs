mod catalogs;
mod copy;
mod export_config;
mod import;
mod info;
mod list;
mod remove;
mod resign;
mod set;
mod timer;

use std::path::PathBuf;
use std::time::Duration;

use esker_format::chunker::ChunkSizes;
use esker_format::compress::Compression;
use esker_format::hash::HashAlgorithm;
use esker_publish::Reindexed;
use esker_repository::{NewRepository, RememberedStorage, Settings as PublishSettings};
use serde_json::json;

use crate::error::Failure;
use crate::output::{Output, QuietArgs, choice, parse_duration, parse_size, show};
use crate::publisher::{
    BucketArgs, DeflateArg, Interrupt, LockArgs, NamedArgs, PublisherArgs, now, of_operation, storage_of,
};
use crate::settings::Settings;
commands! {
    /// Creates, lists, describes, configures and removes repositories, and renews their whitelists.
    ///
    /// Example: esker repo create sw.example.org
    args, call;
    Create(CreateArgs) => create(&args, call.settings);
    List(list::Args) => list::run(&args, call.settings);
    Info(info::Args) => info::run(&args, call.settings);
    Set(set::Args) => set::run(&args, call.settings);
    Catalogs(Box<catalogs::Args>) => catalogs::run(&args, call.settings);
    Copy(Box<copy::Args>) => copy::run(*args, call.settings);
    Reindex(ReindexArgs) => reindex(&args, call.settings);
    Resign(resign::Args) => resign::run(&args, call.settings);
    Remove(remove::Args) => remove::run(&args, call.settings);
    Import(import::Args) => import::run(&args, call.settings);
    ExportConfig(export_config::Args) => export_config::run(&args, call.settings);
}

/// Rebuilds the content index, with which publishers avoid storing equal content twice.
///
/// Needed once for a repository that another program published.
///
/// Example: esker repo reindex sw.example.org
#[derive(clap::Args, Debug)]
pub(crate) struct ReindexArgs {
    #[command(flatten)]
    named: NamedArgs,

    #[command(flatten)]
    lock: LockArgs,

    #[command(flatten)]
    _quiet: QuietArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Creates a repository: keys, whitelist, and an empty first revision.
///
/// Existing keys are used.
///
/// Example: esker repo create sw.example.org
#[derive(clap::Args, Debug)]
pub(crate) struct CreateArgs {
    /// Fully qualified name of the repository, like sw.example.org
    #[arg(value_name = "NAME")]
    name: String,

    #[command(flatten)]
    place: PublisherArgs,

    /// Folder for the master key, which only signs whitelists; may be on a removable medium [default: the keys folder]
    #[arg(long, value_name = "DIR")]
    master_key: Option<PathBuf>,

    /// Hash algorithm of object names
    #[arg(long, value_name = "sha1|rmd160|shake128", default_value = "sha1", value_parser = choice(HASHES))]
    hash: HashAlgorithm,

    /// Compression of files: zlib, none or zstd. No released CernVM-FS reads zstd.
    ///
    /// zstd is the fastest and smallest choice if all clients can read it.
    #[arg(long, value_name = "zlib|none|zstd", default_value = "zlib", value_parser = choice(COMPRESSIONS))]
    compress: Compression,

    /// Encoder for zlib: stock writes what CernVM-FS writes; fast takes less time, but `cvmfs_fsck` reports its
    /// objects as corrupt.
    ///
    /// Stock writes the bytes of zlib level 6: equal content gets the same object name from every publisher, and
    /// `cvmfs_fsck`, which compresses again and compares names, reports no fault. Fast takes 0.6 of the time, and
    /// every client reads its objects; but `cvmfs_fsck` reports all of them as corrupt, and with -p removes them from
    /// the caches of CernVM-FS clients, which fetch them again. Replicas work with both.
    #[arg(long, value_name = "stock|fast", default_value = "stock")]
    deflate: DeflateArg,

    /// Smallest, average and largest size of the chunks of large files
    #[arg(long, value_name = "MIN,AVERAGE,MAX", value_delimiter = ',', num_args = 1, value_parser = parse_size)]
    chunks: Vec<u64>,

    /// Time after which clients check for a newer revision
    #[arg(long, value_name = "DURATION", default_value = "4m", value_parser = parse_duration)]
    ttl: Duration,

    /// Days for which the whitelist is valid
    #[arg(long, value_name = "DAYS", default_value_t = esker_repository::WHITELIST_DAYS, value_parser = whitelist_days())]
    whitelist_days: u32,

    /// Keep old revisions: mark the repository as not garbage-collectable
    #[arg(long)]
    keep_all: bool,

    #[command(flatten)]
    _quiet: QuietArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    bucket: BucketArgs,
}

/// At least one: a whitelist of no days has expired when it is signed.
fn whitelist_days() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(esker_repository::WHITELIST_DAYS_MAX))
}

pub(crate) const HASHES: &[(&str, HashAlgorithm)] = &[
    ("sha1", HashAlgorithm::Sha1),
    ("rmd160", HashAlgorithm::Rmd160),
    ("shake128", HashAlgorithm::Shake128),
];
const COMPRESSIONS: &[(&str, Compression)] =
    &[("zlib", Compression::Zlib), ("none", Compression::Stored), ("zstd", Compression::Zstd)];

fn reindex(args: &ReindexArgs, settings: &Settings) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    let place = args.named.place(settings)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let repository = place.open(args.lock, &interrupt, false)?;
    let Reindexed { objects, left_out } = esker_publish::reindex(&repository, threads, &interrupt.flag())
        .map_err(|error| of_operation(&format!("{} was not indexed", place.name), &error))?;
    let mut out = Output::new();
    match args.json {
        true => {
            out.json(&json!({ "repository": place.name.as_str(), "objects": objects, "left_out": left_out }))?
        }
        false => out.line(format!("{objects} objects of {} are indexed", place.name))?,
    }
    if left_out > 0 && !args.json {
        out.fault(out.warning(&format!("{left_out} more are too large for it, and were left out")))?;
    }
    out.finish()
}

fn create(args: &CreateArgs, settings: &Settings) -> Result<(), Failure> {
    // A bucket that never answers is then forgotten again.
    let _interrupt = Interrupt::on_signals()?;
    let (mut place, is_new) = args.place.new_place(&args.name, &args.bucket, settings)?;
    if let Some(folder) = &args.master_key {
        place.keys = place.keys.with_master_in(folder);
    }
    let mut new = NewRepository::new(place.name.clone());
    new.algorithm = args.hash;
    new.settings = PublishSettings {
        compression: args.compress,
        deflate: args.deflate.into(),
        chunks: chunk_sizes(&args.chunks)?,
        ..new.settings
    };
    new.ttl = u32::try_from(args.ttl.as_secs()).unwrap_or(u32::MAX);
    new.whitelist_days = args.whitelist_days;
    new.garbage_collectable = !args.keep_all;
    if let Err(error) = new.create(&place.root, &place.keys, now()) {
        if is_new {
            RememberedStorage::forget(&place.root);
        }
        return Err(of_operation(&format!("{} was not created", place.name), &error));
    }
    let value = json!({
        "repository": place.name.as_str(),
        "folder": place.root,
        "storage": storage_of(&place.root),
        "public_key": place.keys.public_key_file(),
        "master_key": place.keys.master_key_file(),
    });
    show(args.json, &value, |out| {
        out.line(format!("{} is in {}", place.name, storage_of(&place.root)))?;
        out.line(format!("  clients need {}", place.keys.public_key_file().display()))?;
        if args.master_key.is_some() {
            let key = place.keys.master_key_file();
            out.line(format!("  the master key is {}; resign with --master-key FILE", key.display()))?;
        }
        out.line(format!("  next: esker publish {} DIR", place.name))
    })
}

fn chunk_sizes(sizes: &[u64]) -> Result<ChunkSizes, Failure> {
    let [min, average, max] = sizes else {
        return match sizes {
            [] => Ok(ChunkSizes::DEFAULT),
            _ => Err(Failure::usage("--chunks takes three sizes, like 4M,8M,16M")),
        };
    };
    let small = |size: &u64| u32::try_from(*size).unwrap_or(u32::MAX);
    ChunkSizes::new(small(min), small(average), small(max))
        .map_err(|error| Failure::usage(format!("--chunks: {error}")))
}
