//! `esker image inspect`.

use esker_prefetch::{Observation, SequenceStore};
use esker_squashfs::layout::{
    CodecOptions, Flags, LayoutError, MetaHeader, NO_TABLE, SUPERBLOCK_LEN, Superblock,
};
use esker_vfs::Time;
use serde_json::{Value, json};

use super::list_and_cat::NamedArgs;
use crate::error::{Context, Failure, Kind};
use crate::image::brought;
use crate::output::{Output, show, size};
use crate::settings::Settings;
use crate::trees::entry::time_text;

/// Shows the properties of an image: compression, block size, counts, tables.
///
/// Example: esker image inspect stack.sqfs
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    image: NamedArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let shown = &args.image.image;
    let image = args.image.bytes(settings)?;
    let file_bytes = image.len();
    let damaged = |error: LayoutError| {
        let failure = Failure::new(Kind::Damaged, format!("{shown}: {error}"));
        match error {
            LayoutError::Magic => {
                failure.hint("if the image is inside another file, give its position with --offset")
            }
            _ => failure,
        }
    };
    let read = |offset: u64, bytes: &mut [u8]| {
        if offset.saturating_add(bytes.len() as u64) > file_bytes {
            return Err(Failure::new(Kind::Damaged, format!("{shown} ends too early")));
        }
        image.read_at(offset, bytes).context(Kind::Failed, format!("can't read {shown}"))
    };
    let mut bytes = [0; SUPERBLOCK_LEN];
    if file_bytes < SUPERBLOCK_LEN as u64 {
        return Err(damaged(LayoutError::Magic));
    }
    read(0, &mut bytes)?;
    let superblock = Superblock::decode(&bytes).map_err(damaged)?;
    let codec_options = match superblock.flags.has(Flags::OPTIONS) {
        true => {
            let mut head = [0; MetaHeader::LEN];
            read(SUPERBLOCK_LEN as u64, &mut head)?;
            let head = MetaHeader::decode(head).map_err(damaged)?;
            let mut bytes = vec![0; usize::from(head.len)];
            read((SUPERBLOCK_LEN + MetaHeader::LEN) as u64, &mut bytes)?;
            options_json(&CodecOptions::decode(superblock.codec, &bytes).map_err(damaged)?)
        }
        false => Value::Null,
    };
    let learned = SequenceStore::default().with(&brought(&*image, &superblock)).load(Observation::Gaps);
    let tables = [superblock.fragment_table, superblock.export_table, superblock.id_table];
    let after_directories = tables.into_iter().filter(|table| *table != NO_TABLE).min();
    let directories_end = after_directories.unwrap_or(superblock.bytes_used);
    // Field names are an interface.
    let value = json!({
        "codec": superblock.codec.name(),
        "codec_options": codec_options,
        "block_size": superblock.block_size,
        "bytes": superblock.bytes_used,
        "file_bytes": file_bytes,
        "inodes": superblock.inodes,
        "fragments": superblock.fragments,
        "ids": superblock.ids,
        "modified": superblock.modified,
        "exportable": superblock.export_table != NO_TABLE,
        "duplicates_shared": superblock.flags.has(Flags::DUPLICATES),
        "has_fragments": superblock.fragments > 0,
        "has_xattrs": superblock.xattr_table != NO_TABLE,
        "inode_table_bytes": inode_table(&superblock),
        "directory_table_bytes": directories_end.saturating_sub(superblock.directory_table),
        "table_bytes": superblock.bytes_used.saturating_sub(superblock.inode_table),
        "learned_steps": learned.steps(),
    });
    show(args.json, &value, |out| print(out, &superblock, &codec_options, learned.steps()))
}

fn inode_table(superblock: &Superblock) -> u64 {
    superblock.directory_table.saturating_sub(superblock.inode_table)
}

fn options_json(options: &CodecOptions) -> Value {
    match *options {
        CodecOptions::Gzip { level, window, strategies } => {
            json!({"level": level, "window": window, "strategies": strategies})
        }
        CodecOptions::Lzo { algorithm, level } => json!({"algorithm": algorithm, "level": level}),
        CodecOptions::Xz { dictionary, filters } => json!({"dictionary": dictionary, "filters": filters}),
        CodecOptions::Lz4 { high } => json!({"high": high}),
        CodecOptions::Zstd { level } => json!({"level": level}),
    }
}

fn print(
    out: &mut Output,
    image: &Superblock,
    codec_options: &Value,
    learned_steps: usize,
) -> Result<(), Failure> {
    let codec = match codec_options {
        Value::Object(options) => {
            let options: Vec<String> =
                options.iter().map(|(name, value)| format!("{name} {value}")).collect();
            format!("{} ({})", image.codec.name(), options.join(", "))
        }
        _ => image.codec.name().to_owned(),
    };
    let yes = |is: bool| if is { "yes" } else { "no" };
    let modified = time_text(Time { secs: image.modified.into(), nanos: 0 });
    let lines = [
        ("codec", codec),
        ("block size", size(image.block_size.into())),
        ("length", format!("{} ({} bytes)", size(image.bytes_used), image.bytes_used)),
        ("inodes", image.inodes.to_string()),
        ("fragments", image.fragments.to_string()),
        ("ids", image.ids.to_string()),
        (
            "tables",
            format!(
                "{}, of these inodes {}",
                size(image.bytes_used.saturating_sub(image.inode_table)),
                size(inode_table(image))
            ),
        ),
        ("time", modified),
        ("exportable", yes(image.export_table != NO_TABLE).to_owned()),
        ("xattrs", yes(image.xattr_table != NO_TABLE).to_owned()),
        ("learned", format!("{} steps", learned_steps)),
    ];
    for (name, value) in lines {
        out.line(format!("{name:<11} {value}"))?;
    }
    Ok(())
}
