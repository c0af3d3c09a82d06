//! `esker image build`.

mod credentials;
mod from;
mod layers;
mod registry;
mod write_error;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use esker_format::glob::Glob;
use esker_format::profile::Profile;
use esker_squashfs::layout::CodecId;
use esker_squashfs::writer::{
    self, BuildControl, Compression, IdRange, ImageFile, Options, Owners, Progress, Report,
};
use serde_json::json;

use self::write_error::of_write;
use crate::error::{Context, Failure, Kind, warn};
use crate::output::{QuietArgs, parse_size, show, size};
use crate::process::limits::JobsArgs;
use crate::progress::ProgressMeter;
use crate::publisher::Interrupt;
use crate::settings::args::RepositoryArgs;
use crate::settings::{Settings, SourceSettings};

use from::{ImageSource, Opening};

/// Builds a squashfs image from a folder, a tar archive, a container image or a repository.
///
/// The image depends on the input alone, not on the number of threads. The file appears under its name once it is
/// complete.
///
/// Example: esker image build stack.sqfs /build/software
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Image file to write
    #[arg(value_name = "IMAGE")]
    image: PathBuf,

    /// Input: a folder; a tar archive, plain or compressed; - for an archive on standard input; oci:FOLDER[:TAG],
    /// oci-archive:FILE[:TAG] or docker-archive:FILE[:NAME:TAG] for a container image; docker://NAME[:TAG] for an image
    /// in Docker Hub, docker://REGISTRY/NAME[:TAG] for one in another registry, with the credentials of `docker login`
    /// or `podman login`; a folder of a repository as http://server/cvmfs/NAME:/path or NAME:/path
    #[arg(value_name = "FROM")]
    from: String,

    /// Use plain HTTP with the registry of docker://…, which any host on the route can impersonate
    #[arg(long)]
    insecure_http: bool,

    /// Replace an existing image
    #[arg(long)]
    force: bool,

    /// Compression of blocks: gzip, lz4, xz or zstd, optionally with a level, like zstd:19
    #[arg(long, value_name = "CODEC[:LEVEL]", default_value = "zstd", value_parser = compression)]
    codec: Compression,

    /// Size of a block, from 4K to 1M: larger blocks compress better, smaller ones make short reads faster
    #[arg(long, value_name = "SIZE", default_value = "128K", value_parser = block_size)]
    block_size: u32,

    /// Store no fragments: no two files share a block
    #[arg(long)]
    no_fragments: bool,

    /// Store the tail ends of large files as fragments too
    #[arg(long, conflicts_with = "no_fragments")]
    tail_ends: bool,

    /// Store duplicate files separately
    #[arg(long)]
    no_duplicates: bool,

    /// Omit extended attributes
    #[arg(long)]
    no_xattrs: bool,

    /// Omit the export table, which NFS servers need
    #[arg(long)]
    no_export: bool,

    /// Pattern of entries to omit: with a slash it matches paths from the root, otherwise names at any depth
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,

    /// Owner of all entries, as ids UID[:GID]
    #[arg(long, value_name = "UID[:GID]", value_parser = owners, conflicts_with = "all_root")]
    owner: Option<(u32, Option<u32>)>,

    /// Make root the owner of all entries
    #[arg(long)]
    all_root: bool,

    /// Range of user ids to map to others; may be repeated
    #[arg(long, value_name = "FROM:TO[:COUNT]", value_parser = id_range)]
    uid_map: Vec<IdRange>,

    /// Range of group ids to map to others; may be repeated
    #[arg(long, value_name = "FROM:TO[:COUNT]", value_parser = id_range)]
    gid_map: Vec<IdRange>,

    /// Time of all entries and of the image, in seconds since 1970 [default: entries keep their times, none later than
    /// $SOURCE_DATE_EPOCH if that is set; the image has the latest of them]
    #[arg(long, value_name = "SECONDS")]
    mtime: Option<u32>,

    /// Profile from `esker profile record`: its files come first, in the order of their first reads, so that a cold
    /// start reads the image from the beginning
    #[arg(long, value_name = "PROFILE")]
    sort: Option<PathBuf>,

    #[command(flatten)]
    jobs: JobsArgs,

    #[command(flatten)]
    quiet: QuietArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    repository: RepositoryArgs,
}

/// Reads `zstd` or `zstd:19`.
fn compression(text: &str) -> Result<Compression, String> {
    let (name, level) = text.split_once(':').map_or((text, None), |(name, level)| (name, Some(level)));
    let codec = CodecId::ALL.into_iter().find(|codec| codec.name() == name);
    let codec = codec.ok_or_else(|| format!("{name:?} is none of gzip, lz4, xz and zstd"))?;
    let level =
        level.map(|level| level.parse().map_err(|_| format!("{level:?} is not a level"))).transpose()?;
    Compression::new(codec, level)
}

fn block_size(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text)?;
    let bad = || format!("{text:?} is not a power of two from 4K to 1M");
    let bytes = u32::try_from(bytes).map_err(|_| bad())?;
    if bytes.is_power_of_two() && (4 << 10..=1 << 20).contains(&bytes) { Ok(bytes) } else { Err(bad()) }
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

fn owners(text: &str) -> Result<(u32, Option<u32>), String> {
    let (uid, gid) = text.split_once(':').map_or((text, None), |(uid, gid)| (uid, Some(gid)));
    Ok((number(uid)?, gid.map(number).transpose()?))
}

fn id_range(text: &str) -> Result<IdRange, String> {
    match text.split(':').map(number).collect::<Result<Vec<_>, _>>()?[..] {
        [from, to] => Ok(IdRange { from, to, count: 1 }),
        [from, to, count] => Ok(IdRange { from, to, count }),
        _ => Err(format!("{text:?} is not of the form FROM:TO or FROM:TO:COUNT")),
    }
}

impl Args {
    fn options(&self, settings: &Settings) -> Result<Options, Failure> {
        let order = self.sort.as_deref().map(order).transpose()?.unwrap_or_default();
        let (uid, gid) = match (self.all_root, self.owner) {
            (true, _) => (Some(0), Some(0)),
            (false, Some((uid, gid))) => (Some(uid), gid),
            (false, None) => (None, None),
        };
        Ok(Options {
            block_size: self.block_size,
            fragments: !self.no_fragments,
            tail_ends: self.tail_ends,
            duplicates: !self.no_duplicates,
            xattrs: !self.no_xattrs,
            exportable: !self.no_export,
            image_time: self.mtime,
            entry_time: self.mtime,
            entry_time_max: settings.source_date_epoch()?,
            owners: Owners { uid, gid, uids: self.uid_map.clone(), gids: self.gid_map.clone() },
            order,
            ..Options::new(self.codec, self.jobs.count())
        })
    }

    fn excludes(&self, path: &[u8]) -> bool {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        self.exclude.iter().any(|pattern| match pattern.trim_end_matches('/') {
            pattern if pattern.contains('/') => {
                Glob::from_bytes(pattern.trim_start_matches('/').as_bytes()).fits(path)
            }
            pattern => Glob::from_bytes(pattern.as_bytes()).fits(name),
        })
    }
}

/// Returns the files of a profile in the order of their first reads.
fn order(profile: &Path) -> Result<Vec<Vec<u8>>, Failure> {
    let shown = profile.display();
    let bytes = std::fs::read(profile).context(Kind::Usage, format!("can't read {shown}"))?;
    let profile = Profile::parse(&bytes).context(Kind::Usage, format!("can't use {shown}"))?;
    Ok(profile.files.into_iter().map(|file| file.path.into_bytes()).collect())
}

pub(crate) fn run(args: Args, settings: &Settings) -> Result<(), Failure> {
    let stop = Interrupt::on_signals()?.flag();
    let shown = args.image.display().to_string();
    if !args.force && args.image.symlink_metadata().is_ok() {
        return Err(Failure::usage(format!("{shown} is there already"))
            .hint("replace it with --force, or choose another name"));
    }
    let options = args.options(settings)?;
    let from = ImageSource::parse(&args.from)?;
    let cannot_write = || format!("can't write {shown}");
    let mut image = ImageFile::create(&args.image).context(Kind::Failed, cannot_write())?;
    // The image may be made in the very folder that it is made of, and one that it replaces is not part of it either.
    let mut leave_out = vec![image.metadata().context(Kind::Failed, cannot_write())?];
    leave_out.extend(args.image.metadata());
    let mut meter = ProgressMeter::new(args.quiet.is_set());
    let opening = Opening {
        sources: SourceSettings::new(&args.repository, settings),
        xattrs: !args.no_xattrs,
        beside: folder_of(&args.image),
        stop: &stop,
        insecure: args.insecure_http,
        meter: &mut meter,
        leave_out,
    };
    let opened = from.open(opening);
    if opened.is_err() && stop.load(Ordering::Relaxed) {
        return Err(Failure::new(Kind::Interrupted, format!("{shown} was not made: interrupted")));
    }
    let mut source = opened?;
    let excludes = |path: &[u8]| args.excludes(path);
    let mut progress = |progress: Progress| meter.say(|| describe(&progress));
    let mut watch = BuildControl { excludes: &excludes, stop: &stop, progress: &mut progress };
    let built = writer::build(source.input(), &options, &mut watch, &mut image);
    let report = built.map_err(|error| of_write(&format!("{shown} was not made"), &error));
    drop(meter);
    print(&report?, args.json)
}

/// Returns the parent folder of a file.
fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn describe(progress: &Progress) -> String {
    let Progress { entries, files, bytes, elapsed } = *progress;
    let speed = bytes as f64 / elapsed.as_secs_f64().max(0.001);
    format!("{entries} entries, {files} files read, {}, {}/s", size(bytes), size(speed as u64))
}

fn print(report: &Report, json: bool) -> Result<(), Failure> {
    // Field names are an interface.
    let value = json!({
        "image_bytes": report.image_bytes,
        "data_bytes": report.data_bytes,
        "table_bytes": report.table_bytes,
        "inodes": report.inodes,
        "files_read": report.files,
        "bytes_read": report.bytes,
        "duplicates": report.duplicates,
        "duplicate_bytes": report.duplicate_bytes,
        "blocks": report.blocks,
        "blocks_plain": report.blocks_plain,
        "blocks_hole": report.blocks_hole,
        "fragments": report.fragments,
        "changed": report.changed,
        "xattrs_left_out": report.xattrs_left_out,
    });
    show(json, &value, |out| {
        let share = match report.bytes {
            0 => String::new(),
            bytes => format!(" ({:.1} %)", report.image_bytes as f64 / bytes as f64 * 100.0),
        };
        out.line(out.bold(&size(report.image_bytes)))?;
        out.line(format!("  read       {} files, {}{share}", report.files, size(report.bytes)))?;
        out.line(format!("  inodes     {}", report.inodes))?;
        out.line(format!("  duplicates {}, {}", report.duplicates, size(report.duplicate_bytes)))?;
        out.line(format!(
            "  blocks     {}: {} of small files, {} that compression doesn't help, {} holes",
            report.blocks, report.fragments, report.blocks_plain, report.blocks_hole
        ))?;
        out.line(format!("  tables     {}", size(report.table_bytes)))
    })?;
    if report.changed > 0 {
        warn(Some(&format!("{} files became shorter while they were read", report.changed)));
    }
    if report.unknown_types > 0 {
        warn(Some(&format!(
            "{} entries of the archive are of a type that isn't known, and became regular files",
            report.unknown_types
        )));
    }
    if report.xattrs_left_out > 0 {
        warn(Some(&format!(
            "{} extended attributes were left out: squashfs holds those of user, trusted and security",
            report.xattrs_left_out
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_options_are_parsed() {
        assert_eq!(compression("zstd:19"), Compression::new(CodecId::Zstd, Some(19)));
        assert_eq!(compression("xz"), Compression::new(CodecId::Xz, None));
        for (wrong, reason) in
            [("brotli", "none of"), ("zstd:x", "not a level"), ("gzip:13", "1 to 12"), ("lzo", "not written")]
        {
            let error = compression(wrong).expect_err("wrong");
            assert!(error.contains(reason), "{error}");
        }
        assert_eq!(block_size("1M"), Ok(1 << 20));
        for wrong in ["2M", "100K", "0", "2K", "x"] {
            block_size(wrong).expect_err(wrong);
        }
        assert_eq!(owners("5:6"), Ok((5, Some(6))));
        assert_eq!(owners("5"), Ok((5, None)));
        assert_eq!(id_range("1:2:3"), Ok(IdRange { from: 1, to: 2, count: 3 }));
        assert_eq!(id_range("1:2"), Ok(IdRange { from: 1, to: 2, count: 1 }));
        for wrong in ["1", "1:2:3:4", "a:1", ""] {
            id_range(wrong).expect_err(wrong);
        }
    }
}
