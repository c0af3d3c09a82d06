use esker_vfs::Kind as NodeKind;

use crate::error::Failure;
use crate::output::{Output, lossy};
use crate::settings::Settings;
use crate::settings::args::PlaceArgs;
use crate::trees::browse::Browsed;
use crate::trees::entry::{EntryJson, hex, kind_name, mode_text, time_text};

/// Shows all metadata of a path in a repository without mounting it.
///
/// Example: esker stat http://server/cvmfs/sw.example.org:/bin/tool --public-key sw.example.org.pub
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    place: PlaceArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args, settings: &Settings) -> Result<(), Failure> {
    let browsed = Browsed::open(&args.place, settings)?;
    let (walk, path) = (browsed.walk(), browsed.path());
    let found = walk.resolve(path, false)?;
    let attr = &found.attr;
    let target =
        if attr.kind == NodeKind::Symlink { Some(walk.link_target(&found.node, path)?) } else { None };
    let xattrs = walk.xattrs(&found.node, path)?;
    let mut out = Output::new();
    if args.json {
        let mut json = EntryJson::new(path, attr, target.as_deref());
        json.xattrs = Some(xattrs.iter().map(|(name, value)| (lossy(name), hex(value))).collect());
        out.json(&json)?;
        return out.finish();
    }
    let mut name = lossy(&out.name(path));
    if let Some(target) = &target {
        name = format!("{name} -> {}", lossy(&out.name(target)));
    }
    out.line(format!("  Path: {name}"))?;
    out.line(format!("  Type: {}", kind_name(attr.kind)))?;
    out.line(format!("  Size: {}", attr.size))?;
    out.line(format!("  Mode: {:04o} ({})", attr.permissions, mode_text(attr)))?;
    out.line(format!(" Owner: {}:{}", attr.uid, attr.gid))?;
    out.line(format!(" Links: {}", attr.nlink))?;
    out.line(format!(" Inode: {}", attr.ino.0))?;
    if matches!(attr.kind, NodeKind::CharDevice | NodeKind::BlockDevice) {
        out.line(format!("Device: {}, {}", attr.rdev.major, attr.rdev.minor))?;
    }
    out.line(format!(" Mtime: {}.{:09} UTC", time_text(attr.mtime), attr.mtime.nanos))?;
    for (name, value) in &xattrs {
        let printable = value.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ');
        let value = if printable { lossy(value) } else { format!("0x{}", hex(value)) };
        out.line(format!(" Xattr: {} = {value}", lossy(&out.name(name))))?;
    }
    out.finish()
}
