mod known;
mod poll;
mod screen;
mod snapshot;
mod state;
#[cfg(test)]
mod tests;
mod text;
mod view;

use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use esker_run::take_signals;

use self::poll::Poller;
use self::snapshot::Snapshot;
use crate::error::{Context, Failure, Kind};
use crate::output::{duration_between, show};
use crate::settings::Settings;

/// Shows the activity of mounts: requests, downloads, slow paths, and the processes that wait for them.
///
/// Root sees the mounts of all users, other users their own. On a terminal the view is live, and `h` shows its keys.
/// Without one, a table is printed at each interval. While it runs, the daemons measure every request.
///
/// Example: esker top --plain --count 1
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Time between two tables
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration_between("1s", "1d"))]
    interval: Duration,

    /// End after so many tables
    #[arg(long, value_name = "N")]
    count: Option<u64>,

    /// Print tables on a terminal, too
    #[arg(long)]
    plain: bool,

    /// Print one JSON object a line at each interval
    #[arg(long, conflicts_with = "plain")]
    json: bool,
}

/// Signals that end the command.
const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let (sender, signals) = channel();
    take_signals(&SIGNALS, move |received| _ = sender.send(received.signal))
        .context(Kind::Failed, "can't handle signals")?;
    let poller = Poller::new(settings);
    if args.plain || args.json || !std::io::stdout().is_terminal() {
        return print(args, &poller, &signals);
    }
    screen::run(&poller, args.interval, args.count, &signals)
}

/// Prints a table or a JSON object at each interval.
fn print(args: &Args, poller: &Poller, signals: &Receiver<i32>) -> Result<(), Failure> {
    poller.poll();
    let mut printed = 0;
    loop {
        match signals.recv_timeout(args.interval) {
            Err(RecvTimeoutError::Timeout) => {}
            // A signal, which is the way to end it.
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        poller.poll();
        poller.wait_for_answers(args.interval);
        let snapshot: Snapshot = poller.snapshot();
        show(args.json, &snapshot, |out| out.line(text::table(&snapshot)))?;
        printed += 1;
        if args.count.is_some_and(|count| printed >= count) {
            return Ok(());
        }
    }
}
