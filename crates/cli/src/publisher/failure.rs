//! Failures of a publisher's commands: the kind, the cause, and the next step.

use esker_format::trust::TrustError;
use esker_format::write::history::TagError;
use esker_repository::AdminError;

use crate::error::{Failure, Kind, chain_after, of_store};

/// Converts the failure of a publisher's command.
pub(crate) fn of_admin(what: &str, error: &AdminError) -> Failure {
    let kind = match error {
        AdminError::Storage(error) => return of_store(what, error),
        AdminError::Interrupted => Kind::Interrupted,
        AdminError::NoRepository(_)
        | AdminError::NotReplica(_)
        | AdminError::IsReplica { .. }
        | AdminError::ReplicaState { .. }
        | AdminError::Exists(_)
        | AdminError::OtherRepository { .. }
        | AdminError::Foreign { .. }
        | AdminError::Key { .. }
        | AdminError::NoKey { .. }
        | AdminError::PublicKey { .. }
        | AdminError::Certificate { .. }
        | AdminError::OtherMaster { .. }
        | AdminError::StillNeeded { .. }
        | AdminError::NotListed(_)
        | AdminError::Target { .. }
        | AdminError::Outside { .. }
        | AdminError::Rules { .. }
        | AdminError::Graft { .. }
        | AdminError::OverLimit { .. }
        | AdminError::LongXattr { .. }
        | AdminError::UnknownParts { .. }
        | AdminError::Settings { .. }
        | AdminError::Setting { .. }
        | AdminError::UnknownSetting { .. }
        | AdminError::NotRemoved { .. }
        | AdminError::ServerConf { .. }
        | AdminError::Passphrase { .. }
        | AdminError::KeyConflict { .. }
        | AdminError::SignRequest(_)
        | AdminError::Rotation(_)
        | AdminError::NotOnWhitelist(_)
        | AdminError::Profile { .. }
        | AdminError::NoProfile(_)
        | AdminError::NoPath(_)
        | AdminError::NoSuchPath(_)
        | AdminError::NoRevision { .. }
        | AdminError::AmbiguousRevision { .. }
        | AdminError::Tag(_)
        | AdminError::NoTag(_)
        | AdminError::NotCollectable(_)
        | AdminError::OpenWork { .. }
        | AdminError::NotInStorage { .. }
        | AdminError::MessageWithoutTag
        | AdminError::Dirtab { .. } => Kind::Usage,
        AdminError::Untrusted { .. }
        | AdminError::Missing { .. }
        | AdminError::Corrupt { .. }
        | AdminError::Compressed { .. }
        | AdminError::Catalog { .. }
        | AdminError::History(_)
        | AdminError::Reflog(_) => Kind::Damaged,
        _ => Kind::Failed,
    };
    let failure = Failure::new(kind, format!("{what}: {}", chain_after(what, error)));
    match error {
        AdminError::NoRepository(_) => {
            failure.hint("make one with `esker repo create NAME`, or name its storage with --storage DIR or URL")
        }
        AdminError::OtherRepository { .. } | AdminError::Foreign { .. } => {
            failure.hint("name an empty folder or prefix, or the folder above, in which each repository has its own")
        }
        AdminError::IsReplica { .. } => {
            failure.hint("change it where it is published; `esker replicate NAME` then brings the change here")
        }
        AdminError::Exists(_) => {
            failure.hint("publish to it with `esker publish NAME DIR`, or choose another name")
        }
        AdminError::Key { .. }
        | AdminError::NoKey { .. }
        | AdminError::PublicKey { .. }
        | AdminError::Certificate { .. }
        | AdminError::OtherMaster { .. } => failure.hint("name the folder of the keys with --keys DIR"),
        AdminError::Untrusted { source, .. } if matches!(**source, TrustError::WhitelistExpired { .. }) => {
            failure.hint("sign the whitelist again with `esker repo resign NAME`")
        }
        AdminError::StillNeeded { .. } => {
            failure.hint("publish with the certificate in the keys folder first, then repeat this")
        }
        AdminError::Transaction(_) => {
            failure.hint("publish or abort it with `cvmfs_server`, or have this wait for that with --wait")
        }
        AdminError::Locked { .. } => {
            failure.hint("repeat this when it has ended, or with --wait (at most ten minutes: --wait=10m)")
        }
        AdminError::Conflict { head, .. } => failure.hint(format!(
            "repeat this to compare with revision {head}, and to replace what it changed there; --dry-run lists the \
             paths"
        )),
        AdminError::Contended { .. } => {
            failure.hint("repeat this, or let it try for longer with --wait (at most ten minutes: --wait=10m)")
        }
        AdminError::BeingDeleted { .. } => {
            failure.hint("repeat this when the collect has ended; if it was interrupted, `esker collect NAME` ends it")
        }
        AdminError::OpenWork { .. } => failure.hint(
            "`esker collect NAME --dry-run` lists the open work; remove the record if its transaction is gone",
        ),
        AdminError::Collected { .. } => failure.hint("repeat this: the objects are then stored again"),
        AdminError::Shrinks(_) => {
            failure.hint("if that is meant, repeat this with --allow-shrink; --dry-run lists the paths")
        }
        AdminError::Tag(TagError::BranchWithoutTag(_)) => failure.hint("name one with --tag NAME"),
        AdminError::Tag(TagError::UnknownBranch(_)) => failure.hint(
            "start it with --from REVISION; `esker tag list NAME --branches` lists those that are there",
        ),
        AdminError::Tag(TagError::BranchExists(_)) => {
            failure.hint("leave out --from to go on with it, or choose another name")
        }
        AdminError::OverLimit { first, .. } => failure.hint(match first.setting {
            "file_size_limit" => "leave the file out, raise the limit with `esker repo set NAME file_size_limit=SIZE`, \
                                  or have limits only warn with enforce_limits=off"
                .to_owned(),
            setting => format!(
                "split the catalog with `.cvmfscatalog` files, or raise the limit with `esker repo set NAME \
                 {setting}=ENTRIES`"
            ),
        }),
        AdminError::LongXattr { .. } => failure.hint(
            "remove the attribute, or let it be published or left out with `esker repo set NAME \
             long_xattrs=publish|skip`",
        ),
        AdminError::UnknownParts { .. } => failure.hint(
            "nothing was published; publish with a version that knows them, or with the program that wrote the catalog",
        ),
        AdminError::Graft { .. } => failure.hint("`esker graft FILE` writes markers"),
        AdminError::MessageWithoutTag => failure.hint("name a tag with --tag NAME"),
        AdminError::NotListed(_) => {
            failure.hint("the owner of the master key puts it there with `esker repo resign NAME`")
        }
        AdminError::UnknownSetting { .. } => failure.hint("`esker repo set NAME --list` lists the settings"),
        AdminError::Passphrase { .. } => failure
            .hint("run this on a terminal, or name a file with the passphrase in ESKER_KEY_PASSPHRASE_FILE"),
        AdminError::NotOnWhitelist(_) => failure.hint("`esker key list NAME` lists the certificates"),
        AdminError::NoProfile(_) => failure.hint("`esker profile list NAME` lists them"),
        _ => failure,
    }
}
