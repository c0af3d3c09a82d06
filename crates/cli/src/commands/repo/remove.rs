use esker_maintain::Removal;
use serde_json::json;

use crate::error::Failure;
use crate::output::Output;
use crate::publisher::{ChangeArgs, Interrupt, NamedArgs, confirm, of_operation};
use crate::settings::Settings;

/// Removes a repository from this machine, with its keys.
///
/// Needs neither keys nor a valid whitelist. Files that do not belong to a repository stay, and links are not
/// followed. Without a terminal, --yes is required.
///
/// Example: esker repo remove sw.example.org --dry-run
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    named: NamedArgs,

    /// Keep the key files
    #[arg(long)]
    keep_keys: bool,

    /// Keep the storage, and remove the key files only
    #[arg(long, conflicts_with = "keep_keys")]
    keep_storage: bool,

    /// Remove without confirmation
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    change: ChangeArgs,
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    let place = args.named.place(settings)?;
    let failed = |error| of_operation(&format!("{} was not removed", place.name), &error);
    let keys = Some(&place.keys).filter(|_| !args.keep_keys);
    let plan = Removal::plan(&place.root, &place.name, keys, !args.keep_storage).map_err(failed)?;
    let mut out = Output::new();
    if !args.change.json {
        let would = if args.change.dry_run { "would remove" } else { "removes" };
        if !args.keep_storage {
            let revision = plan.revision.map(|revision| format!(", revision {revision}")).unwrap_or_default();
            let storage = plan.objects.clone().unwrap_or_else(|| plan.storage.display().to_string());
            out.line(format!("{would} {storage}{revision}"))?;
        }
        for key in &plan.keys {
            out.line(format!("{would} {}", key.display()))?;
        }
        for foreign in &plan.foreign {
            out.line(format!("stays: {}, which is no part of a repository", foreign.display()))?;
        }
        out.flush()?;
    }
    if !args.change.dry_run {
        let question = format!("This removes {} for ever. Go on?", place.name);
        if !args.yes && !confirm(&question, &interrupt) {
            return Err(Failure::failed(format!("{} was not removed", place.name))
                .hint("confirm on a terminal, or repeat this with --yes"));
        }
        args.change.lock.when_free(&interrupt, false, || plan.run(&interrupt.flag())).map_err(failed)?;
    }
    if args.change.json {
        out.json(&json!({ "removed": !args.change.dry_run, "removal": plan }))?;
    }
    out.finish()
}
