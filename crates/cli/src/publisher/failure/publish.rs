//! Failures of publishing.

use esker_publish::PublishError;
use esker_repository::RepositoryError;

use super::OperationError;
use crate::error::Kind;

impl OperationError for PublishError {
    fn repository(&self) -> Option<&RepositoryError> {
        if let Self::Repository(error) = self { Some(error) } else { None }
    }

    fn explain(&self) -> (Kind, Option<String>) {
        let kind = match self {
            Self::Conflict { .. }
            | Self::Overwrote { .. }
            | Self::Shrinks(_)
            | Self::Source { .. }
            | Self::Changed(_)
            | Self::Refused { .. }
            | Self::Row { .. }
            | Self::NothingToUndo { .. } => Kind::Failed,
            _ => Kind::Usage,
        };
        let hint = match self {
            Self::Conflict { head, is_transaction: true, .. } => format!(
                "choose a side with `esker transaction publish ID --theirs PATH|--ours PATH`, or see the tree on revision {head} \
                 and go on in it with `esker transaction resume ID --rebase`"
            ),
            Self::Outside { .. } => {
                "`esker transaction publish ID --drop PATH` leaves out the changes at a path".to_owned()
            }
            Self::Unchanged(_) => "`esker transaction show ID` lists the changes".to_owned(),
            Self::Conflict { head, .. } => format!(
                "repeat this to compare with revision {head}, and to replace what it changed there; --dry-run lists the \
                 paths"
            ),
            Self::Overwrote { revision, before, .. } => format!(
                "`esker diff NAME {before} {revision}` shows what was there before; publish it again, joined with this change"
            ),
            Self::Shrinks(_) => {
                "if that is meant, repeat this with --allow-shrink; --dry-run lists the paths".to_owned()
            }
            Self::OverLimit { first, .. } => match first.setting {
                "file_size_limit" => "leave the file out, raise the limit with `esker repo set NAME \
                                      file_size_limit=SIZE`, or have limits only warn with enforce_limits=off"
                    .to_owned(),
                setting => format!(
                    "split the catalog with `.cvmfscatalog` files, or raise the limit with `esker repo set NAME \
                     {setting}=ENTRIES`"
                ),
            },
            Self::LongXattr { .. } => {
                "remove the attribute, or let it be published or left out with `esker repo set \
                                       NAME long_xattrs=publish|skip`"
                    .to_owned()
            }
            Self::Graft { .. } => "`esker graft FILE` writes markers".to_owned(),
            Self::MessageWithoutTag => "name a tag with --tag NAME".to_owned(),
            Self::NoProfile(_) => "`esker profile list NAME` lists them".to_owned(),
            _ => return (kind, None),
        };
        (kind, Some(hint))
    }
}
