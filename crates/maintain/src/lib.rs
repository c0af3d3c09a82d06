//! Maintains repositories: collects, checks, repairs and replicates them, renews signatures and keys, and imports from CernVM-FS.
#![deny(unsafe_code)]

/// Converts errors of the storage to errors of an operation.
macro_rules! from_store_error {
    ($($error:ty),*) => {
        $(impl From<esker_store::StoreError> for $error {
            fn from(error: esker_store::StoreError) -> Self {
                Self::Repository(error.into())
            }
        })*
    };
}

mod check;
mod collect;
mod hash_lists;
mod info;
mod keys;
mod pace;
mod reflog;
mod remove;
mod replicate;
mod resign;
mod status_file;
mod tags;
mod takeover;

pub use check::{
    Check, CheckError, CheckPlace, CheckProgress, CheckReport, DataCheck, Finding, FindingKind, Fix, Mirror,
    MirrorServer, Repair, Repaired, Verdict, note_outcome,
};
pub use collect::{
    Collect, CollectError, CollectPlan, CollectProgress, Collected, Deleted, DroppedRevision, Keep,
    KeptRevision, Waiting,
};
pub use info::{
    CertificateInfo, InfoContext, ListedRepository, Problem, ReplicaInfo, RepositoryInfo, WhitelistInfo,
    list_repositories,
};
pub use keys::{KeysError, ListedCertificate, Rotate, Rotated, SignAnswer, SignRequest, list_certificates};
pub use pace::Pace;
pub use remove::{Removal, RemoveError};
pub use replicate::{
    PARTIAL, Replicable, Replicate, ReplicateError, ReplicateProgress, Replicated, ReplicationPlan,
    ReplicationSchedule, Retries, RevisionLimit,
};
pub use resign::{Resign, Resigned};
pub use takeover::{
    ExportedConfig, Outcome, ParameterRow, ServerConf, TakenOver, Takeover, TakeoverError, Upstream,
    UpstreamBucket, remembered_spool,
};

from_store_error!(CheckError, CollectError, KeysError, RemoveError, ReplicateError, TakeoverError);
