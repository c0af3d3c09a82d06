//! Asks for confirmation of a change that removes most of a repository.

use esker_publish::Shrink;

use super::ask::confirm;
use super::interrupt::Interrupt;

/// Asks on the terminal; without a terminal the answer is no.
pub(super) fn ask(shrink: Shrink, repository: &str, interrupt: &Interrupt) -> bool {
    let Shrink { removed, entries } = shrink;
    confirm(&format!("This removes {removed} of the {entries} entries of {repository}. Go on?"), interrupt)
}
