use std::path::PathBuf;

use esker_maintain::{ExportedConfig, remembered_spool};
use serde_json::json;

use crate::error::{Failure, warn};
use crate::output::{Output, QuietArgs};
use crate::publisher::{NamedArgs, of_operation};
use crate::settings::Settings;

/// Writes `server.conf` and `client.conf`, with which `cvmfs_server` can manage the repository.
///
/// For a repository in a bucket of the protocol S3, `s3.conf` names the bucket, without its keys. Settings of the
/// repository become parameters. Existing files are not replaced. `cvmfs_server` reads keys from
/// /etc/cvmfs/keys: copy them there with `esker key export` if they are in another folder.
///
/// Example: esker repo export-config sw.example.org --to conf --user builder
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    named: NamedArgs,

    /// Folder for the files [default: /etc/cvmfs/repositories.d/NAME]
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,

    /// User that publishes (CVMFS_USER)
    #[arg(long, value_name = "USER", default_value = "root")]
    user: String,

    /// URL of the repository on this server [default: that of its bucket, else http://localhost/cvmfs/NAME]
    #[arg(long, value_name = "URL")]
    stratum0: Option<String>,

    /// Spool folder [default: that of the import, else /var/spool/cvmfs/NAME]
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,

    /// Print the files, and write nothing
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    _quiet: QuietArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let place = args.named.place(settings)?;
    let failed =
        |error| of_operation(&format!("the configuration of {} was not written", place.name), &error);
    let spool = args.spool.clone().or_else(|| remembered_spool(&place.root));
    let made =
        ExportedConfig::new(&place.root, &place.name, &args.user, args.stratum0.as_deref(), spool.as_deref());
    let config = made.map_err(failed)?;
    let usual = || settings.config_root.join(format!("etc/cvmfs/repositories.d/{}", place.name));
    let folder = args.to.clone().unwrap_or_else(usual);
    let mut out = Output::new();
    if args.dry_run {
        if args.json {
            out.json(&json!({ "folder": folder, "written": false, "config": config }))?;
        } else {
            for (name, text) in config.files() {
                out.line(out.bold(&folder.join(name).display().to_string()))?;
                out.text(text)?;
            }
        }
        return out.finish();
    }
    let paths = config.write(&folder).map_err(failed)?;
    if args.json {
        out.json(&json!({ "folder": folder, "written": true, "config": config }))?;
        return out.finish();
    }
    paths.iter().try_for_each(|path| out.line(format!("wrote {}", path.display())))?;
    out.line("next, as root, if `cvmfs_server` has no spool folder of the repository:")?;
    config.commands.iter().try_for_each(|line| out.line(format!("  {line}")))?;
    config.warnings.iter().for_each(|warning| warn(Some(warning)));
    out.finish()
}
