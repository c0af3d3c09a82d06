use std::path::PathBuf;

use esker_admin::Publish;

use crate::exit::Failure;
use crate::meter::Meter;
use crate::publisher::{HowArgs, PublisherArgs, now, of_admin, print_report, stop_on_signals};
use crate::settings::Settings;

/// Makes a repository, or a directory of it, equal to a folder.
///
/// Example: esker publish sw.example.org /build/software --to /software
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Name of the repository
    #[arg(value_name = "NAME")]
    name: String,

    /// The folder
    #[arg(value_name = "DIR")]
    source: PathBuf,

    /// The directory of the repository that becomes equal to the folder
    #[arg(long, value_name = "/PATH", default_value = "/")]
    to: PathBuf,

    #[command(flatten)]
    place: PublisherArgs,

    #[command(flatten)]
    how: HowArgs,
}

pub(crate) fn run(args: Args, settings: &Settings) -> Result<(), Failure> {
    use std::os::unix::ffi::OsStringExt as _;
    let stop = stop_on_signals()?;
    let place = args.place.place(&args.name, settings)?;
    let mut repository = place.open()?;
    if args.source.is_file() {
        let what = format!("{} was not published: {} is not a folder", place.name, args.source.display());
        return Err(Failure::failed(what).hint("name a folder; archives are for `esker ingest`"));
    }
    if let Some(deflate) = args.how.deflate {
        repository.settings_mut().deflate = deflate.into();
    }
    let mut meter = Meter::new(args.how.quiet);
    let mut progress = |progress| meter.show(progress);
    let mut publish = Publish {
        source: args.source,
        target: args.to.into_os_string().into_vec(),
        how: args.how.how(stop, &mut progress)?,
    };
    let done = match args.how.dry_run {
        true => publish.dry_run(&repository, now()),
        false => publish.run(&repository, now()),
    };
    drop(meter);
    let report = done.map_err(|error| of_admin(&format!("{} was not published", place.name), &error))?;
    print_report(&report, args.how.dry_run, args.how.json)
}
