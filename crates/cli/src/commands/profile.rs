mod record;

use std::path::PathBuf;

use esker_format::profile::Profile;
use esker_publish::{Cluster, NamedProfile, Profiles, PublishError, clusters, extent};
use serde_json::{Value, json};

use crate::error::Failure;
use crate::output::{self, Output, QuietArgs, size};
use crate::publisher::{Interrupt, LockArgs, NamedArgs, Place, of_operation, read_profile};
use crate::settings::Settings;
commands! {
    /// Records and stores profiles of the files that programs read, for prefetching.
    ///
    /// Example: esker profile record http://server/cvmfs/sw.example.org --public-key sw.example.org.pub -- ls -R /cvmfs/sw.example.org
    args, call;
    Record(Box<record::Args>) => record::run(*args, call.settings, call.files);
    Show(ShowArgs) => show(&args);
    Add(AddArgs) => add(&args, call.settings);
    List(ListArgs) => list(&args, call.settings);
    Remove(RemoveArgs) => remove(&args, call.settings);
}

/// Shows the content of a profile, and the file bundles that a publish would make from it.
///
/// Example: esker profile show tool.profile.json
#[derive(clap::Args, Debug)]
pub(crate) struct ShowArgs {
    /// Profile
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Adds profiles to a repository; each later publish writes file bundles made from them.
///
/// The name of a profile is its file name without `.profile.json`; a profile of the same name is replaced.
///
/// Example: esker profile add sw.example.org tool.profile.json
#[derive(clap::Args, Debug)]
pub(crate) struct AddArgs {
    #[command(flatten)]
    named: NamedArgs,

    /// Profiles
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    #[command(flatten)]
    lock: LockArgs,

    #[command(flatten)]
    _quiet: QuietArgs,
}

/// Lists the profiles of a repository.
///
/// Example: esker profile list sw.example.org
#[derive(clap::Args, Debug)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    named: NamedArgs,

    #[command(flatten)]
    lock: LockArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Removes profiles from a repository; the next publish removes their bundles.
///
/// Example: esker profile remove sw.example.org tool
#[derive(clap::Args, Debug)]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    named: NamedArgs,

    /// Names of profiles, as `esker profile list` prints them
    #[arg(value_name = "PROFILE", required = true)]
    profiles: Vec<String>,

    #[command(flatten)]
    lock: LockArgs,

    #[command(flatten)]
    _quiet: QuietArgs,
}

fn failed<'p>(what: &'p str, place: &'p Place) -> impl Fn(PublishError) -> Failure + 'p {
    move |error| of_operation(&format!("{what} of {}", place.name), &error)
}

fn show(args: &ShowArgs) -> Result<(), Failure> {
    let NamedProfile { name, profile } = read_profile(&args.file)?;
    let (clusters, left_out) = clusters(&profile);
    output::show(args.json, as_json(&name, &profile, &clusters), |out| {
        let bytes = profile.files.iter().fold(0u64, |sum, file| sum.saturating_add(file.size));
        out.line(out.bold(&profile.command))?;
        out.line(format!("  repository  {}, revision {}", profile.repository, profile.revision))?;
        out.line(format!("  recorded    {}", profile.recorded))?;
        out.line(format!("  read        {} files, {}", profile.files.len(), size(bytes)))?;
        if clusters.is_empty() {
            out.line("  nothing in it announces anything else")?;
        }
        for cluster in &clusters {
            let (files, bytes) = extent(&profile, cluster);
            let trigger = &profile.files[cluster.trigger].path;
            out.line(format!("  {trigger} announces {files} files, {}", size(bytes)))?;
        }
        if left_out > 0 {
            out.line(format!(
                "  {left_out} more, which announce least, are left out; --trigger keeps a file"
            ))?;
        }
        Ok(())
    })
}

fn as_json(name: &str, profile: &Profile, clusters: &[Cluster]) -> Value {
    let bundles = clusters.iter().map(|cluster| {
        let (files, bytes) = extent(profile, cluster);
        json!({ "trigger": profile.files[cluster.trigger].path, "files": files, "bytes": bytes })
    });
    json!({
        "name": name,
        "repository": profile.repository.as_str(),
        "revision": profile.revision,
        "command": profile.command,
        "recorded": profile.recorded.0,
        "files": profile.files.len(),
        "reads": profile.reads.len(),
        "bundles": bundles.collect::<Vec<_>>(),
    })
}

fn add(args: &AddArgs, settings: &Settings) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    let profiles = args.files.iter().map(|file| read_profile(file)).collect::<Result<Vec<_>, _>>()?;
    let place = args.named.place(settings)?;
    let repository = place.open(args.lock, &interrupt, false)?;
    let mut out = Output::new();
    for profile in &profiles {
        Profiles::of(&repository).add(profile).map_err(failed("can't store a profile", &place))?;
        out.line(format!("profile {} is stored; the next publish writes its bundles", profile.name))?;
    }
    out.finish()
}

fn list(args: &ListArgs, settings: &Settings) -> Result<(), Failure> {
    let place = args.named.place(settings)?;
    let repository = place.open_for_reading()?;
    let failed = failed("can't list the profiles", &place);
    let stored = Profiles::of(&repository);
    let names = stored.names().map_err(&failed)?;
    let mut out = Output::new();
    if args.json {
        let profiles = names.iter().map(|name| stored.get(name)).collect::<Result<Vec<_>, _>>();
        let profiles = profiles.map_err(&failed)?;
        out.json_array(
            profiles.iter().map(|named| as_json(&named.name, &named.profile, &clusters(&named.profile).0)),
        )?;
        return out.finish();
    }
    if names.is_empty() {
        out.line(format!("no profile is stored for {}", place.name))?;
    }
    for name in names {
        match stored.get(&name) {
            Ok(NamedProfile { profile, .. }) => {
                out.line(format!("{name}  {} files  {}", profile.files.len(), profile.command))?;
            }
            Err(error @ PublishError::Profile { .. }) => out.line(out.warning(&error.to_string()))?,
            Err(error) => return Err(failed(error)),
        }
    }
    out.finish()
}

fn remove(args: &RemoveArgs, settings: &Settings) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    let place = args.named.place(settings)?;
    let repository = place.open(args.lock, &interrupt, false)?;
    let mut out = Output::new();
    for name in &args.profiles {
        Profiles::of(&repository).remove(name).map_err(failed("can't give up a profile", &place))?;
        out.line(format!("profile {name} is given up; the next publish takes its bundles back"))?;
    }
    out.finish()
}
