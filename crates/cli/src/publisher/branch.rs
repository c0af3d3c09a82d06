//! Options of commands that publish on a branch.

use esker_repository::BranchRequest;

/// Branch of a new revision.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct BranchArgs {
    /// Branch to publish on: the head stays, and the new revision is known by its tag only [default: the branch of the
    /// head]
    #[arg(long, value_name = "BRANCH", help_heading = "Revision")]
    branch: Option<String>,

    /// Start of a new branch: tag, number or hash of the root catalog of a revision; omit for an existing branch
    #[arg(long, value_name = "REVISION", requires = "branch", help_heading = "Revision")]
    from: Option<String>,
}

impl BranchArgs {
    /// Returns the requested branch; none for the one of the head.
    pub(crate) fn request(&self) -> Option<BranchRequest> {
        let name = self.branch.clone()?;
        Some(BranchRequest { name, from: self.from.clone() })
    }
}
