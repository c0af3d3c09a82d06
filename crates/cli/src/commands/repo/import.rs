use std::path::PathBuf;

use esker_admin::{Outcome, ServerConf, Takeover};
use esker_format::name::RepositoryName;
use serde_json::json;

use crate::error::{Failure, warn};
use crate::output::Output;
use crate::publisher::{Interrupt, LockArgs, PublisherArgs, now, of_admin};
use crate::settings::Settings;

/// Takes over a repository of `cvmfs_server`: its parameters become settings.
///
/// Checks keys, whitelist and reflog, and prints a table of parameters. The storage stays where it is. Each publish
/// respects the locks in CernVM-FS's spool folder, so `cvmfs_server` can still publish to the repository.
///
/// Example: esker repo import sw.example.org --config conf/server.conf --dry-run
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Name of the repository
    #[arg(value_name = "NAME")]
    name: String,

    #[command(flatten)]
    place: PublisherArgs,

    /// Configuration of cvmfs_server [default: /etc/cvmfs/repositories.d/NAME/server.conf]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    lock: LockArgs,

    /// Print the table, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    let name = RepositoryName::parse(&args.name).map_err(|error| Failure::usage(error.to_string()))?;
    let failed = |error| of_admin(&format!("{name} was not taken over"), &error);
    let usual = || settings.config_root.join(format!("etc/cvmfs/repositories.d/{name}/server.conf"));
    let conf = ServerConf::read(&args.config.clone().unwrap_or_else(usual))
        .map_err(|error| failed(error).hint("name the configuration with --config FILE"))?;
    if args.place.is_bucket_given()? {
        return Err(Failure::usage(
            "`repo import` takes over repositories in folders, and not in object storage",
        )
        .hint("name the folder of the repository with --storage DIR"));
    }
    // An option goes before the configuration.
    let root = match args.place.is_storage_given() {
        true => args.place.place(&args.name, settings)?.root,
        false => conf.storage().map_err(failed)?,
    };
    let keys = args.place.keys(&name, settings)?;
    let taken = Takeover::plan(&conf, &root, &name, &keys, now()).map_err(failed)?;
    if !args.dry_run {
        args.lock.when_free(&interrupt, false, || taken.run()).map_err(failed)?;
    }
    let mut out = Output::new();
    if args.json {
        out.json(&json!({ "repository": args.name, "taken_over": !args.dry_run, "result": taken.told }))?;
        return out.finish();
    }
    let told = &taken.told;
    let width = told.parameters.iter().map(|row| row.parameter.len()).max().unwrap_or_default();
    for row in &told.parameters {
        let outcome = match row.outcome {
            Outcome::Taken => "taken",
            Outcome::InRepository => "in the repository",
            Outcome::NoMeaning => "no meaning here",
            Outcome::NotSupported => "not supported",
        };
        let value = row.value.as_deref().unwrap_or("?");
        let line = format!("{:width$}  {outcome:17}  {} [{value}]", row.parameter, row.note);
        let line = out.name(line.as_bytes()).into_owned();
        out.line(line)?;
    }
    let would = if args.dry_run { "would be taken over" } else { "is taken over" };
    out.line(format!("{name} {would} at revision {}: {}", told.revision, told.storage.display()))?;
    if let Some(spool) = &told.spool {
        out.line(format!("  locks of cvmfs_server: {}", spool.display()))?;
    }
    if !args.dry_run {
        out.line(format!(
            "  next: esker repo reindex {name}, so that content which is there is not stored again"
        ))?;
    }
    told.warnings.iter().for_each(|warning| warn(Some(warning)));
    out.finish()
}
