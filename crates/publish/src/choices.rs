//! Decisions of a publisher about the changes of a transaction: which side of a conflict is published, and what is left out.

use std::collections::{BTreeMap, BTreeSet};

use esker_repository::{RepositoryError, path};
use serde::Serialize;

use crate::error::PublishError;

/// Side of a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The change of the transaction.
    Ours,
    /// The change of the later revision.
    Theirs,
}

/// Decisions about the changes of a transaction. Each path stands for itself and all below it.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    sides: BTreeMap<Vec<u8>, Side>,
    dropped: BTreeSet<Vec<u8>>,
    /// Side of the conflicts that no path decides; none to refuse them.
    otherwise: Option<Side>,
}

/// Conflict that the publisher has decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resolved {
    /// Path that both sides changed.
    pub path: String,
    /// Side whose change it has now.
    pub side: Side,
}

impl Choices {
    /// Decides the conflicts at a path and below it. The longest path decides.
    pub fn choose(&mut self, typed: &[u8], side: Side) -> Result<(), PublishError> {
        let path = path::normalise(typed)?;
        let shown = path::shown(&path);
        match self.sides.insert(path, side) {
            Some(other) if other != side => {
                Err(RepositoryError::Target { path: shown, reason: "it is named for both sides" }.into())
            }
            _ => Ok(()),
        }
    }

    /// Decides all other conflicts, too.
    #[must_use]
    pub fn otherwise(self, side: Side) -> Self {
        Self { otherwise: Some(side), ..self }
    }

    /// Leaves out the changes at a path and below it.
    pub fn leave_out(&mut self, typed: &[u8]) -> Result<(), PublishError> {
        self.dropped.insert(path::normalise(typed)?);
        Ok(())
    }

    pub(crate) fn dropped(&self) -> &BTreeSet<Vec<u8>> {
        &self.dropped
    }

    pub(crate) fn side(&self, path: &[u8]) -> Option<Side> {
        let above: Vec<&[u8]> = path::ancestry(path).collect();
        let chosen = above.iter().rev().find_map(|path| self.sides.get(*path).copied());
        chosen.or(self.otherwise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_path_decides() {
        let mut choices = Choices::default();
        choices.choose(b"a/", Side::Theirs).unwrap();
        choices.choose(b"/a/b", Side::Ours).unwrap();
        let sides = [&b"/a/x"[..], b"/a/b", b"/a/b/c", b"/ab", b""].map(|path| choices.side(path));
        assert_eq!(sides, [Some(Side::Theirs), Some(Side::Ours), Some(Side::Ours), None, None]);
        assert_eq!(choices.clone().otherwise(Side::Ours).side(b"/ab"), Some(Side::Ours));
        let refused = choices.choose(b"/a", Side::Ours).unwrap_err();
        assert!(refused.to_string().contains("`/a`"), "{refused}");
    }
}
