use anyhow::{Context, Result};
use esker_bench::backing::Backing;

/// Makes the host of a virtual machine keep memory allocated that is free in between, until stopped.
///
/// Where the host takes back what is free, each page that a cold run touches has to be given again, which costs many
/// times what a machine's own memory does. Start this before, with nearly all that `free` shows. It touches everything once,
/// which may take a minute, and needs no privilege; a user's pipes hold a page for each 2 MiB of 32 GiB.
///
/// Example: esker-bench backing --megabytes 20000
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Megabytes of memory to hold
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(2..))]
    megabytes: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let _backing = Backing::of(args.megabytes.saturating_mul(1 << 20))
        .with_context(|| format!("can't hold a page of each 2 MiB of {} MB", args.megabytes))?;
    println!("{} MB stay the machine's until this is stopped", args.megabytes);
    loop {
        std::thread::park();
    }
}
