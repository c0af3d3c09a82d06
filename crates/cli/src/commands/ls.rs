use esker_vfs::{Attr, Kind as NodeKind};

use crate::error::Failure;
use crate::output::Output;
use crate::settings::Settings;
use crate::settings::args::PlaceArgs;
use crate::trees::browse::Browsed;
use crate::trees::entry::{EntryJson, mode_text, time_text};
use crate::trees::walk::Walk;

/// Lists a directory of a repository without mounting it.
///
/// Example: esker ls http://server/cvmfs/sw.example.org:/bin --public-key sw.example.org.pub
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    place: PlaceArgs,

    /// Show type, permissions, owner, size and time too
    #[arg(short, long)]
    long: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

struct Row {
    name: Vec<u8>,
    attr: Attr,
    target: Option<Vec<u8>>,
}

pub(crate) fn run(args: Args, settings: &Settings) -> Result<(), Failure> {
    let browsed = Browsed::open(&args.place, settings)?;
    show(&browsed.walk(), browsed.path(), args.long, args.json)
}

/// Lists the entry or directory at a path.
pub(crate) fn show(walk: &Walk<'_>, path: &[u8], long: bool, json: bool) -> Result<(), Failure> {
    let found = walk.resolve(path, true)?;
    let mut rows = Vec::new();
    if found.attr.kind == NodeKind::Directory {
        for entry in walk.list(&found.node, path)? {
            let target = if entry.attr.kind == NodeKind::Symlink && (long || json) {
                Some(walk.link_target(&entry.node, path)?)
            } else {
                None
            };
            rows.push(Row { name: entry.name, attr: entry.attr, target });
        }
    } else {
        rows.push(Row { name: path.to_vec(), attr: found.attr, target: None });
    }
    let mut out = Output::new();
    if json {
        out.json_array(rows.iter().map(|row| EntryJson::new(&row.name, &row.attr, row.target.as_deref())))?;
    } else if long {
        print_long(&mut out, &rows)?;
    } else {
        for row in &rows {
            out.line(out.name(&row.name))?;
        }
    }
    out.finish()
}

fn print_long(out: &mut Output, rows: &[Row]) -> Result<(), Failure> {
    let size = |attr: &Attr| match attr.kind {
        NodeKind::CharDevice | NodeKind::BlockDevice => format!("{}, {}", attr.rdev.major, attr.rdev.minor),
        _ => attr.size.to_string(),
    };
    let width = |text: &dyn Fn(&Attr) -> String| {
        rows.iter().map(|row| text(&row.attr).len()).max().unwrap_or_default()
    };
    let links = width(&|attr| attr.nlink.to_string());
    let uids = width(&|attr| attr.uid.to_string());
    let gids = width(&|attr| attr.gid.to_string());
    let sizes = width(&size);
    for Row { name, attr, target } in rows {
        let mut line = format!(
            "{} {:>links$} {:>uids$} {:>gids$} {:>sizes$} {} ",
            mode_text(attr),
            attr.nlink,
            attr.uid,
            attr.gid,
            size(attr),
            time_text(attr.mtime),
        )
        .into_bytes();
        line.extend_from_slice(&out.name(name));
        if let Some(target) = target {
            line.extend_from_slice(b" -> ");
            line.extend_from_slice(&out.name(target));
        }
        out.line(&line)?;
    }
    Ok(())
}
