mod output;

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use esker_format::compress::Compression;
use esker_format::hash::HashAlgorithm;
use esker_publish::{Graft, GraftOptions};

use crate::commands::repo::HASHES;
use crate::error::{Context as _, Failure, Kind};
use crate::output::{Output, choice, parse_size};
use output::Target;

/// Writes the marker of a graft: size and hashes of a file to publish without its content.
///
/// The marker of NAME is .cvmfsgraft-NAME; a publisher reads it beside an empty file NAME. Clients fetch the content from
/// servers for external data, or as objects that the repository has by then. Without --output the marker is printed.
///
/// Example: esker graft /build/software/bin/tool
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// File, folder with all files below it, or - for standard input
    #[arg(value_name = "FILE|DIR|-")]
    input: PathBuf,

    /// File to graft, or folder for it: gets the marker and an empty file
    #[arg(long, short, value_name = "PATH")]
    output: Option<PathBuf>,

    /// Size of chunks; 0 leaves files whole
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "24M")]
    chunk_size: u64,

    /// Hash algorithm, which has to be that of the repository
    #[arg(long, value_name = "sha1|rmd160|shake128", default_value = "sha1", value_parser = choice(HASHES))]
    hash: HashAlgorithm,

    /// Compression of the external copies
    #[arg(long, value_name = "none|zlib", default_value = "none", value_parser = choice(COMPRESSIONS))]
    compress: Compression,

    /// Write the hash of the whole file beside those of its chunks
    #[arg(long)]
    whole: bool,
}

const COMPRESSIONS: &[(&str, Compression)] = &[("none", Compression::Stored), ("zlib", Compression::Zlib)];

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let options = options(args)?;
    let is_input = args.input.as_os_str() == "-";
    let Some(output) = &args.output else {
        if args.input.is_dir() {
            return Err(Failure::usage(format!("{} is a folder", args.input.display()))
                .hint("name a folder for the markers with --output DIR"));
        }
        let graft = if is_input { graft_input(&options)? } else { graft(&options, &args.input)? };
        let mut out = Output::new();
        out.line(graft.to_text().trim_end())?;
        return out.finish();
    };
    if is_input {
        if output.is_dir() {
            return Err(Failure::usage(format!("{} is a folder", output.display()))
                .hint("standard input has no name: name the file to graft"));
        }
        return Target::new(output)?.write(&graft_input(&options)?, None);
    }
    if args.input.is_dir() {
        return folder(&options, &args.input, output);
    }
    let target = match (output.is_dir(), args.input.file_name()) {
        (true, Some(name)) => output.join(name),
        _ => output.clone(),
    };
    one(&options, &args.input, &target)
}

fn options(args: &Args) -> Result<GraftOptions, Failure> {
    let compression = args.compress;
    let chunk_size = Some(args.chunk_size).filter(|size| *size > 0);
    if compression == Compression::Zlib && (args.whole || chunk_size.is_none_or(|size| size > 1 << 30)) {
        return Err(Failure::usage(
            "with --compress zlib, files are cut into chunks of at most 1 GiB, without --whole",
        ));
    }
    Ok(GraftOptions { chunk_size, algorithm: args.hash, compression, whole: args.whole })
}

fn graft(options: &GraftOptions, path: &Path) -> Result<Graft, Failure> {
    let failed = || format!("can't read {}", path.display());
    let mut file = File::open(path).context(Kind::Failed, failed())?;
    options.graft(&mut file).context(Kind::Failed, failed())
}

fn graft_input(options: &GraftOptions) -> Result<Graft, Failure> {
    let mut input = BufReader::new(io::stdin());
    options.graft(&mut input).context(Kind::Failed, "can't read standard input")
}

fn one(options: &GraftOptions, from: &Path, to: &Path) -> Result<(), Failure> {
    // Refused before a long read.
    let target = Target::new(to)?;
    let facts = from.metadata().context(Kind::Failed, format!("can't read {}", from.display()))?;
    target.write(&graft(options, from)?, Some(&facts))
}

/// Grafts all files of a folder. Symlinks are copied, and other entries left out.
fn folder(options: &GraftOptions, from: &Path, to: &Path) -> Result<(), Failure> {
    let mut waiting = vec![(from.to_owned(), to.to_owned())];
    while let Some((from, to)) = waiting.pop() {
        output::make_folder(&from, &to)?;
        let failed = || format!("can't list {}", from.display());
        for entry in std::fs::read_dir(&from).context(Kind::Failed, failed())? {
            let entry = entry.context(Kind::Failed, failed())?;
            let kind = entry.file_type().context(Kind::Failed, failed())?;
            let (from, to) = (entry.path(), to.join(entry.file_name()));
            match () {
                () if kind.is_dir() => waiting.push((from, to)),
                () if kind.is_file() => one(options, &from, &to)?,
                () if kind.is_symlink() => output::copy_link(&from, &to)?,
                () => crate::error::warn(Some(&format!(
                    "{} is left out: it is no regular file",
                    from.display()
                ))),
            }
        }
    }
    Ok(())
}
