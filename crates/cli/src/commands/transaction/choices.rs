use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use esker_publish::{Choices, PublishError, PublishOptions, PublishUpper, Side, Upper};

use crate::error::{Failure, Kind, chain};
use crate::output::tell;
use crate::publisher::{Interrupt, PublishingArgs, now};
use crate::settings::Settings;
use crate::transaction::{OnBranch, Transaction};

use super::finish::{is_kept, lease, place_of};

/// Maximum number of decided conflicts in a message.
const NAMED_MAX: usize = 10;

/// Options for the changes of a transaction that another publisher made too, and for those that are not meant.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct ChoiceArgs {
    /// Directory or file where both the transaction and a later revision changed the same paths: publish those of the
    /// transaction
    #[arg(long, value_name = "PATH")]
    ours: Vec<PathBuf>,

    /// The same, but keep the paths of the later revision
    #[arg(long, value_name = "PATH")]
    theirs: Vec<PathBuf>,

    /// Leave out the changes at this path and below it
    #[arg(long, value_name = "PATH")]
    drop: Vec<PathBuf>,

    /// Move the transaction to the newest revision first: its tree then shows what other publishers changed; paths that
    /// both changed are as in the transaction, and are listed. Ignored files are left behind
    #[arg(long, conflicts_with = "dry_run")]
    pub(super) rebase: bool,
}

impl ChoiceArgs {
    pub(super) fn choices(&self) -> Result<Choices, Failure> {
        let mut choices = Choices::default();
        let refused = |error: PublishError| Failure::new(Kind::Usage, chain(&error));
        for (paths, side) in [(&self.ours, Side::Ours), (&self.theirs, Side::Theirs)] {
            for path in paths {
                choices.choose(path.as_os_str().as_bytes(), side).map_err(refused)?;
            }
        }
        for path in &self.drop {
            choices.leave_out(path.as_os_str().as_bytes()).map_err(refused)?;
        }
        Ok(choices)
    }

    /// Moves a transaction to the newest revision if that is requested. After a failure it is as it was.
    pub(super) fn rebase(
        &self,
        transaction: &mut Transaction,
        how: &PublishingArgs,
        interrupt: &Interrupt,
        settings: &Settings,
    ) -> Result<(), Failure> {
        if !self.rebase {
            return Ok(());
        }
        let kept = |failure: Failure, id: &str| failure.hint_first(is_kept(id));
        let moved = self.try_rebase(transaction, how, interrupt, settings);
        moved.map_err(|failure| kept(failure, &transaction.id))
    }

    fn try_rebase(
        &self,
        transaction: &mut Transaction,
        how: &PublishingArgs,
        interrupt: &Interrupt,
        settings: &Settings,
    ) -> Result<(), Failure> {
        let place = place_of(transaction.record()?, settings)?;
        let session = lease(transaction, &place, how)?;
        let repository = how.open(&place, session.as_ref(), interrupt)?;
        let upper = Upper { filter: how.filter()?, ..transaction.upper()? };
        let branch = transaction.record()?.branch.as_ref().map(OnBranch::request);
        let choices = self.choices()?.otherwise(Side::Ours);
        let work = |mut options: PublishOptions<'_>| {
            options.tag.branch = branch;
            PublishUpper { upper, choices, options }.stage(&repository, now())
        };
        let staged = how.work(&place, interrupt, work, "was not changed")?;
        transaction.go_on_above(&staged)?;
        let both = &staged.resolved;
        if !both.is_empty() {
            let side = |side| if side == Side::Ours { "ours" } else { "theirs" };
            let named: Vec<String> =
                both.iter().take(NAMED_MAX).map(|one| format!("{} ({})", one.path, side(one.side))).collect();
            let more = both.len().saturating_sub(NAMED_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            tell(&format!("esker: changed on both sides, and decided: {}{more}\n", named.join(", ")));
        }
        Ok(())
    }
}
