//! Options of commands that publish on a branch.

use esker_repository::BranchRequest;

/// Branch of a new revision.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct BranchArgs {
    /// Branch to publish on: the head stays, and the new revision is known by its tag only [default: the branch of the
    /// head]
    #[arg(long, value_name = "BRANCH")]
    branch: Option<String>,

    /// Start the branch at this revision: its tag, its number, or the hash of its root catalog [default: the branch
    /// exists]
    #[arg(long, value_name = "REVISION", requires = "branch")]
    from: Option<String>,
}

impl BranchArgs {
    /// Returns the requested branch; none for the one of the head.
    pub(crate) fn request(&self) -> Option<BranchRequest> {
        let name = self.branch.clone()?;
        Some(BranchRequest { name, from: self.from.clone() })
    }
}
