use std::path::PathBuf;

use esker_format::manifest;
use esker_format::name::RepositoryName;
use esker_maintain::{Outcome, ServerConf, Takeover, TakeoverError, Upstream};
use esker_object_storage::Environment;
use esker_repository::{Disks, RememberedStorage, Repository, Storage};
use serde_json::json;

use crate::error::{Failure, warn};
use crate::output::show;
use crate::publisher::{ChangeArgs, Interrupt, NamedArgs, now, of_operation};
use crate::settings::Settings;

/// Takes over a repository of `cvmfs_server`: its parameters become settings.
///
/// Checks keys, whitelist and reflog, and prints a table of parameters. The storage stays where it is. Each publish
/// respects the locks in CernVM-FS's spool folder, so `cvmfs_server` can still publish to a repository in a folder.
/// A bucket of the protocol S3 is remembered with its server; its keys are not.
///
/// Example: esker repo import sw.example.org --config conf/server.conf --dry-run
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    named: NamedArgs,

    /// Configuration of cvmfs_server [default: /etc/cvmfs/repositories.d/NAME/server.conf]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    change: ChangeArgs,
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    let name = RepositoryName::parse(&args.named.name).map_err(|error| Failure::usage(error.to_string()))?;
    let failed = |error: TakeoverError| of_operation(&format!("{name} was not taken over"), &error);
    let usual = || settings.config_root.join(format!("etc/cvmfs/repositories.d/{name}/server.conf"));
    let conf = ServerConf::read(&args.config.clone().unwrap_or_else(usual))
        .map_err(|error| failed(error).hint("name the configuration with --config FILE"))?;
    let found = Found::new(args, &conf, &name, settings)?;
    let keys = args.named.place.keys(&name, settings)?;
    let mut taken = Takeover::plan(&conf, &found.storage, &name, &keys, now()).map_err(failed)?;
    taken.told.warnings.extend(found.warnings);
    if !args.change.dry_run {
        if let Some(bucket) = &found.bucket {
            bucket.write(found.storage.place()).map_err(|error| failed(error.into()))?;
        }
        args.change.lock.when_free(&interrupt, false, || taken.run(&found.storage)).map_err(failed)?;
    }
    let value =
        json!({ "repository": args.named.name, "taken_over": !args.change.dry_run, "result": taken.told });
    show(args.change.json, &value, |out| {
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
        let would = if args.change.dry_run { "would be taken over" } else { "is taken over" };
        out.line(format!("{name} {would} at revision {}: {}", told.revision, told.storage))?;
        if let Some(spool) = &told.spool {
            out.line(format!("  locks of cvmfs_server: {}", spool.display()))?;
        }
        if let Some(bucket) = &found.bucket {
            out.line(format!(
                "  server: {}",
                bucket.settings.endpoint.as_deref().unwrap_or("that of the provider")
            ))?;
            out.line(
                "  keys: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile in ~/.aws/credentials",
            )?;
        }
        if !args.change.dry_run {
            out.line(format!(
                "  next: esker repo reindex {name}, so that content which is there is not stored again"
            ))?;
        }
        told.warnings.iter().for_each(|warning| warn(Some(warning)));
        Ok(())
    })
}

/// The storage of the repository.
struct Found {
    storage: Storage,
    /// Bucket to remember.
    bucket: Option<RememberedStorage>,
    warnings: Vec<String>,
}

impl Found {
    /// Looks for the storage. An option goes before the configuration.
    fn new(
        args: &Args,
        conf: &ServerConf,
        name: &RepositoryName,
        settings: &Settings,
    ) -> Result<Self, Failure> {
        let failed = |error: TakeoverError| of_operation(&format!("{name} was not taken over"), &error);
        let folder = |root: PathBuf| {
            let storage = Storage::open(&root).map_err(|error| failed(error.into()))?;
            Ok(Self { storage, bucket: None, warnings: Vec::new() })
        };
        if args.named.place.is_storage_given() {
            return folder(args.named.place(settings)?.root);
        }
        let bucket = match conf.storage().map_err(failed)? {
            Upstream::Folder(root) => return folder(root),
            Upstream::Bucket(bucket) => bucket,
        };
        let root = Repository::locate(&args.named.place.storage_folder(settings)?, name);
        if root.join(manifest::PATH).exists() {
            return Err(Failure::usage(format!("{name} is a repository in the folder {}", root.display()))
                .hint("name another folder for the publisher's state with ESKER_STORAGE"));
        }
        // The keys of this process go before those of the configuration.
        let own = Environment::of_process();
        let has_own = ["AWS_ACCESS_KEY_ID", "AWS_PROFILE"].iter().any(|name| own.get(name).is_some());
        let environment = if has_own { own } else { bucket.credentials };
        let sink = bucket
            .storage
            .open_with(&Disks::default(), &root, environment)
            .map_err(|error| failed(error.into()))?;
        let storage = Storage::new(&root, sink);
        Ok(Self { storage, bucket: Some(bucket.storage), warnings: bucket.warnings })
    }
}
