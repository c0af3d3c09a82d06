use std::path::PathBuf;
use std::sync::mpsc;

use crate::error::Failure;
use crate::output::{JsonArray, Output, QuietArgs};
use crate::progress::ProgressMeter;
use crate::trees::compare::{Pair, Scope};

/// Compares two directory trees, such as mounts of one repository by two clients.
///
/// Example: esker compare /mnt/sw /mnt/sw
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// First directory
    #[arg(value_name = "DIR_A")]
    a: PathBuf,

    /// Second directory
    #[arg(value_name = "DIR_B")]
    b: PathBuf,

    /// Compare the bytes of files too; fetches every file that isn't cached
    #[arg(long)]
    content: bool,

    /// Compare owners and groups too; a mount by an ordinary user shows that user as the owner
    #[arg(long)]
    owners: bool,

    /// Number of threads
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    quiet: QuietArgs,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    for directory in [&args.a, &args.b] {
        std::fs::read_dir(directory)
            .map_err(|error| Failure::failed(format!("can't compare {}: {error}", directory.display())))?;
    }
    let pair = Pair::new(&args.a, &args.b, Scope { content: args.content, owners: args.owners });
    let (sender, receiver) = mpsc::channel();
    let mut out = Output::new();
    let mut count = 0_u64;
    std::thread::scope(|scope| -> Result<(), Failure> {
        let receiver = receiver;
        for _ in 0..args.jobs {
            let sender = sender.clone();
            let pair = &pair;
            scope.spawn(move || pair.work(&sender));
        }
        drop(sender);
        let mut meter = ProgressMeter::new(args.quiet.is_set());
        let mut array = args.json.then(|| JsonArray::begin(&mut out)).transpose()?;
        loop {
            // Returning early drops the receiver, and with it ends the threads.
            match receiver.recv_timeout(std::time::Duration::from_millis(200)) {
                Ok(one) => {
                    count += 1;
                    match &mut array {
                        Some(array) => array.add(&mut out, &one)?,
                        None => out.fault(format!("{}: {}: {} / {}", one.path, one.what, one.a, one.b))?,
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    meter.say(|| format!("{} entries compared, {count} differences", pair.entries()));
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        array.map_or(Ok(()), |array| array.end(&mut out))
    })?;
    let entries = pair.entries();
    if count == 0 {
        if !args.json {
            out.line(format!("{entries} entries are the same in both"))?;
        }
        return out.finish();
    }
    out.finish()?;
    let (a, b) = (args.a.display(), args.b.display());
    Err(Failure::failed(format!("{a} and {b} differ: {count} differences in {entries} entries")))
}
