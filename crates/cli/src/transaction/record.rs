//! Record of a transaction.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use esker_repository::BranchRequest;
use esker_run::Ending;
use serde::{Deserialize, Serialize};

use super::Opened;
use crate::publisher::{HookFacts, PublishingArgs};

/// End of the command of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// With an exit code.
    Code(u8),
    /// Killed by a signal.
    Signal(i32),
}

impl From<Ending> for Outcome {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Code(code) => Self::Code(code),
            Ending::Signal(signal) => Self::Signal(signal),
        }
    }
}

impl Outcome {
    pub(crate) fn shown(self) -> String {
        match self {
            Outcome::Code(code) => format!("exit code {code}"),
            Outcome::Signal(signal) => format!("signal {signal}"),
        }
    }
}

/// A published revision.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// The hash of its root catalog.
    pub(crate) root: String,
    /// The size of its root catalog.
    pub(crate) root_size: Option<u64>,
}

/// Branch that a transaction is published on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OnBranch {
    /// The name of the branch.
    pub(crate) name: String,
    /// The hash of the root catalog at which a new branch starts.
    pub(crate) from: Option<String>,
}

impl OnBranch {
    /// Returns the request for a publish.
    pub(crate) fn request(&self) -> BranchRequest {
        BranchRequest { name: self.name.clone(), from: self.from.clone() }
    }
}

/// Description of a transaction. Field names are an interface.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The id, which is the name of the folder.
    pub(crate) id: String,
    /// The fully qualified name of the repository.
    pub(crate) repository: String,
    /// The folder of the repository.
    pub(crate) storage: PathBuf,
    /// The folder of the publisher's keys.
    pub(crate) keys: PathBuf,
    /// The revision that the changes are made to.
    pub(crate) revision: u64,
    /// The hash of its root catalog.
    pub(crate) root: String,
    /// The size of its root catalog.
    pub(crate) root_size: Option<u64>,
    /// Number of collections of the repository before.
    pub(crate) collections: u64,
    /// The published revision that the changes are made to, if an archive was unpacked first: then `root` is not published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<Origin>,
    /// Number of times that the changes were moved to a newer revision.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) layer: u32,
    /// The directory of the repository that may change.
    pub(crate) path: String,
    /// The branch that is published on; none for the one of the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) branch: Option<OnBranch>,
    /// Tag for the revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tag: Option<String>,
    /// Description of the revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    /// The command; empty for a shell.
    pub(crate) command: Vec<String>,
    /// Owner that the tree shows for every entry; none if it shows the published ones.
    pub(crate) claimed: Option<(u32, u32)>,
    /// Start, in seconds since 1970.
    pub(crate) started: i64,
    /// Result of the last command; `None` while it runs.
    pub(crate) outcome: Option<Outcome>,
    /// Processes of an open transaction; of no meaning if the first of them has not the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) open: Option<Opened>,
}

impl Record {
    /// Returns options of a publish with the tag and the message that the transaction was given before.
    pub(crate) fn with_words(&self, how: &PublishingArgs) -> PublishingArgs {
        let (tag, message) = (how.tag.clone(), how.message.clone());
        PublishingArgs {
            tag: tag.or_else(|| self.tag.clone()),
            message: message.or_else(|| self.message.clone()),
            ..how.clone()
        }
    }

    /// Returns the path of the directory that may change, in the mount.
    pub(crate) fn directory(&self) -> PathBuf {
        Path::new("/cvmfs").join(&self.repository).join(self.path.trim_start_matches('/'))
    }

    /// Returns the variables of hooks.
    pub(crate) fn hook_facts<'r>(&'r self, id: &'r str) -> HookFacts<'r> {
        let path = Some(OsStr::new(&self.path));
        HookFacts { tag: self.tag.as_deref(), revision: None, transaction: Some(id), path }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
