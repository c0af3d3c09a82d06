use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use esker_format::glob::Glob;
use esker_vfs::{Attr, Kind as NodeKind, Node};

use crate::error::Failure;
use crate::output::{JsonArray, Output};
use crate::settings::Settings;
use crate::settings::args::PlaceArgs;
use crate::trees::browse::Browsed;
use crate::trees::entry::EntryJson;
use crate::trees::walk::Walk;

/// Lists all entries below a directory of a repository without mounting it.
///
/// Example: esker find http://server/cvmfs/sw.example.org:/lib --name '*.so*' --type f --public-key sw.example.org.pub
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    place: PlaceArgs,

    /// Pattern that names must match, with *, ? and [abc]
    #[arg(long, value_name = "PATTERN")]
    name: Option<OsString>,

    /// Type of entries to list: f file, d directory, l symlink, p fifo, s socket, c and b devices
    #[arg(long = "type", value_name = "TYPE", value_parser = parse_type)]
    kind: Option<NodeKind>,

    /// Maximum depth below the directory
    #[arg(long, value_name = "LEVELS")]
    max_depth: Option<usize>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_type(text: &str) -> Result<NodeKind, String> {
    Ok(match text {
        "f" => NodeKind::File,
        "d" => NodeKind::Directory,
        "l" => NodeKind::Symlink,
        "p" => NodeKind::Fifo,
        "s" => NodeKind::Socket,
        "c" => NodeKind::CharDevice,
        "b" => NodeKind::BlockDevice,
        _ => return Err(format!("{text:?} is none of f, d, l, p, s, c, b")),
    })
}

/// An entry to print, and to descend into if it is a directory.
struct Step {
    path: Vec<u8>,
    name: Vec<u8>,
    node: Node,
    attr: Attr,
    depth: usize,
}

pub(crate) fn run(args: Args, settings: &Settings) -> Result<(), Failure> {
    let browsed = Browsed::open(&args.place, settings)?;
    let (walk, path) = (browsed.walk(), browsed.path());
    let found = walk.resolve(path, true)?;
    let mut out = Output::new();
    let mut array = if args.json { Some(JsonArray::begin(&mut out)?) } else { None };
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
    let mut to_do = vec![Step { path: path.to_vec(), name, node: found.node, attr: found.attr, depth: 0 }];
    while let Some(step) = to_do.pop() {
        if matches(&args, &step) {
            match &mut array {
                Some(array) => {
                    let target = target(&walk, &step)?;
                    array.add(&mut out, &EntryJson::new(&step.path, &step.attr, target.as_deref()))?;
                }
                None => out.line(out.name(&step.path))?,
            }
        }
        if step.attr.kind == NodeKind::Directory && args.max_depth.is_none_or(|max| step.depth < max) {
            // Taken from the end, so the names come out in order.
            for entry in walk.list(&step.node, &step.path)?.into_iter().rev() {
                let mut path = step.path.clone();
                if !path.ends_with(b"/") {
                    path.push(b'/');
                }
                path.extend_from_slice(&entry.name);
                let (node, attr) = (entry.node, entry.attr);
                to_do.push(Step { path, name: entry.name, node, attr, depth: step.depth + 1 });
            }
        }
    }
    if let Some(array) = array {
        array.end(&mut out)?;
    }
    out.finish()
}

fn matches(args: &Args, step: &Step) -> bool {
    args.kind.is_none_or(|kind| kind == step.attr.kind)
        && args.name.as_ref().is_none_or(|pattern| Glob::from_bytes(pattern.as_bytes()).fits(&step.name))
}

fn target(walk: &Walk<'_>, step: &Step) -> Result<Option<Vec<u8>>, Failure> {
    if step.attr.kind != NodeKind::Symlink {
        return Ok(None);
    }
    walk.link_target(&step.node, &step.path).map(Some)
}
