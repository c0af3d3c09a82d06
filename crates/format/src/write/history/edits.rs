//! Changes of tags by the publisher: moves, removals, rollbacks, and the age limit of automatic tags.

use std::collections::HashSet;

use super::{HistoryDraft, TRUNK_PREVIOUS, TagError, is_reserved};
use crate::history::{Branch, DEFAULT_BRANCH, Tag};
use crate::time::UnixTime;

impl HistoryDraft {
    /// Returns the tag with this name.
    pub fn find(&self, name: &str) -> Option<&Tag> {
        self.tags.iter().find(|tag| tag.name == name)
    }

    /// Returns the branches.
    pub fn branches(&self) -> &[Branch] {
        &self.branches
    }

    /// Adds a branch that starts at a revision of its parent.
    pub fn add_branch(&mut self, branch: Branch) -> Result<(), TagError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_@./-".contains(&byte);
        if branch.name.is_empty() || !branch.name.bytes().all(is_allowed) {
            return Err(TagError::BranchName(branch.name));
        }
        if self.branches.iter().any(|known| known.name == branch.name) {
            return Err(TagError::BranchExists(branch.name));
        }
        let parent = branch.parent.as_deref().unwrap_or(DEFAULT_BRANCH);
        if !self.branches.iter().any(|known| known.name == parent) {
            return Err(TagError::UnknownBranch(parent.to_owned()));
        }
        self.branches.push(Branch { parent: Some(parent.to_owned()), ..branch });
        Ok(())
    }

    /// Moves a tag to another revision; keeps its branch, and its description unless `tag` has one. Returns the tag
    /// as it was.
    pub fn retag(&mut self, tag: Tag) -> Result<Tag, TagError> {
        if is_reserved(&tag.name) {
            return Err(TagError::Reserved(tag.name));
        }
        let Some(known) = self.tags.iter_mut().find(|known| known.name == tag.name) else {
            return Err(TagError::Unknown(tag.name));
        };
        if known.root_catalog == tag.root_catalog {
            return Err(TagError::Unmoved(tag.name));
        }
        let description =
            if tag.description.is_empty() { known.description.clone() } else { tag.description.clone() };
        let moved = Tag { description, branch: known.branch.clone(), ..tag };
        Ok(std::mem::replace(known, moved))
    }

    /// Removes tags, and branches that no tag is left of. If one of the tags can't be removed, none is.
    pub fn remove(&mut self, names: &[String]) -> Result<Vec<Tag>, TagError> {
        for name in names {
            if is_reserved(name) {
                return Err(TagError::Reserved(name.clone()));
            }
            if self.find(name).is_none() {
                return Err(TagError::Unknown(name.clone()));
            }
        }
        let names: HashSet<&str> = names.iter().map(String::as_str).collect();
        let removed = self.take(|tag| names.contains(tag.name.as_str()));
        self.prune_branches();
        Ok(removed)
    }

    /// Removes automatic tags of revisions that were published before a time.
    pub fn remove_automatic(&mut self, before: UnixTime) -> Vec<Tag> {
        let removed = self.take(|tag| tag.timestamp < before && is_automatic(&tag.name));
        if !removed.is_empty() {
            self.prune_branches();
        }
        removed
    }

    /// Rolls the default branch back: removes its tags of revisions after `revision`, gives the tag `target` the new
    /// `head`, and makes that the newest revision. Returns the removed tags, newest first.
    ///
    /// No tag of the revision before is left, as in the reference: a rollback has no default undo target.
    pub fn roll_back(&mut self, revision: u64, target: Option<&str>, head: &Tag) -> Vec<Tag> {
        let named = target.filter(|name| !is_reserved(name)).and_then(|name| self.find(name)).cloned();
        let is_named = |tag: &Tag| named.as_ref().is_some_and(|named| named.name == tag.name);
        let mut removed = self.take(|tag| {
            let is_newer = tag.revision > revision || is_reserved(&tag.name) || is_named(tag);
            tag.branch == DEFAULT_BRANCH && is_newer
        });
        removed.retain(|tag| !is_reserved(&tag.name) && !is_named(tag));
        removed.sort_by_key(|tag| std::cmp::Reverse(tag.revision));
        if let Some(Tag { name, description, .. }) = named {
            self.tags.push(Tag { name, description, branch: DEFAULT_BRANCH.to_owned(), ..head.clone() });
        }
        self.advance(head);
        self.prune_branches();
        removed
    }

    /// Makes `head` the newest revision, and leaves the tag of the one before where it is.
    pub fn replace_head(&mut self, head: &Tag) {
        let previous = self.find(TRUNK_PREVIOUS).cloned();
        self.advance(head);
        self.tags.retain(|tag| tag.name != TRUNK_PREVIOUS);
        self.tags.extend(previous);
    }

    fn take(&mut self, is_taken: impl Fn(&Tag) -> bool) -> Vec<Tag> {
        let (taken, left) = std::mem::take(&mut self.tags).into_iter().partition(|tag| is_taken(tag));
        self.tags = left;
        taken
    }

    /// Removes branches without tags; branches that began at one of them then begin at its parent.
    fn prune_branches(&mut self) {
        let used: HashSet<String> = self.tags.iter().map(|tag| tag.branch.clone()).collect();
        let is_kept = |branch: &Branch| branch.parent.is_none() || used.contains(&branch.name);
        let mut removed: Vec<Branch> = Vec::new();
        self.branches.retain(|branch| {
            let kept = is_kept(branch);
            if !kept {
                removed.push(branch.clone());
            }
            kept
        });
        for branch in &mut self.branches {
            // Each step leaves one removed branch, so a circle in a damaged history ends too.
            for _ in 0..removed.len() {
                let Some(gone) = removed.iter().find(|gone| branch.parent.as_ref() == Some(&gone.name))
                else {
                    break;
                };
                branch.parent.clone_from(&gone.parent);
            }
        }
    }
}

/// Returns true for names of automatic tags. They are `generic-2026-01-31T12:00:00Z`, with a number after `generic`
/// if there were several in one second, and with up to three digits of a fraction.
pub fn is_automatic(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("generic") else { return false };
    let rest = match rest.strip_prefix('_') {
        Some(numbered) => {
            let digits = numbered.bytes().take_while(u8::is_ascii_digit).count();
            if digits == 0 {
                return false;
            }
            &numbered[digits..]
        }
        None => rest,
    };
    const FORM: &[u8] = b"-dddd-dd-ddTdd:dd:dd";
    let Some((time, rest)) = rest.as_bytes().split_at_checked(FORM.len()) else { return false };
    let is_time = time.iter().zip(FORM).all(|(byte, form)| match form {
        b'd' => byte.is_ascii_digit(),
        form => byte == form,
    });
    let fraction = match rest.strip_prefix(b".") {
        Some(fraction) => {
            let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
            fraction.get(digits..).filter(|_| (1..=3).contains(&digits))
        }
        None => Some(rest),
    };
    is_time && fraction.is_some_and(|rest| rest.first() == Some(&b'Z'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::{ContentHash, HashAlgorithm};
    use crate::name::RepositoryName;

    fn tag(name: &str, revision: u64, branch: &str) -> Tag {
        Tag {
            name: name.to_owned(),
            root_catalog: ContentHash::of(HashAlgorithm::Sha1, &revision.to_le_bytes()),
            size: Some(1),
            revision,
            timestamp: UnixTime(1000 + revision.cast_signed()),
            description: format!("about {name}"),
            branch: branch.to_owned(),
        }
    }

    fn branch(name: &str, parent: &str) -> Branch {
        Branch { name: name.to_owned(), parent: Some(parent.to_owned()), initial_revision: 1 }
    }

    /// Revisions 1 to 5 with tags v1 to v5, and two branches, one of which began at the other.
    fn draft() -> HistoryDraft {
        let mut draft = HistoryDraft::new(RepositoryName::parse("a.test").unwrap());
        for revision in 1..=5 {
            let tag = tag(&format!("v{revision}"), revision, "");
            draft.add(tag.clone()).unwrap();
            draft.advance(&tag);
        }
        draft.branches.extend([branch("fix", ""), branch("deep", "fix")]);
        draft.add(tag("f1", 4, "fix")).unwrap();
        draft.add(tag("d1", 9, "deep")).unwrap();
        draft
    }

    fn names(draft: &HistoryDraft) -> Vec<&str> {
        let mut names: Vec<_> = draft.tags().iter().map(|tag| tag.name.as_str()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_moved_tag_keeps_description_and_branch() {
        let mut draft = draft();
        let moved = Tag { description: String::new(), ..tag("f1", 5, "") };
        assert_eq!(draft.retag(moved).unwrap().revision, 4);
        let found = draft.find("f1").unwrap();
        assert_eq!((found.revision, &*found.description, &*found.branch), (5, "about f1", "fix"));
        assert_eq!(draft.retag(tag("f1", 5, "")), Err(TagError::Unmoved("f1".into())));
        assert_eq!(draft.retag(tag("trunk", 1, "")), Err(TagError::Reserved("trunk".into())));
        assert_eq!(draft.retag(tag("v9", 1, "")), Err(TagError::Unknown("v9".into())));
        draft.retag(tag("v1", 3, "")).unwrap();
        assert_eq!(draft.find("v1").unwrap().description, "about v1");
    }

    #[test]
    fn a_branch_is_added_once_and_below_a_branch_that_exists() {
        let mut draft = draft();
        draft.add_branch(branch("new/1.x", "deep")).unwrap();
        let twice = draft.add_branch(branch("new/1.x", ""));
        assert_eq!(twice, Err(TagError::BranchExists("new/1.x".into())));
        let orphan = draft.add_branch(branch("other", "gone"));
        assert_eq!(orphan, Err(TagError::UnknownBranch("gone".into())));
        for name in ["", "a b", "a\n", "\u{fc}"] {
            assert_eq!(draft.add_branch(branch(name, "")), Err(TagError::BranchName(name.into())));
        }
    }

    #[test]
    fn several_tags_are_removed_or_none() {
        let mut draft = draft();
        let before = draft.clone();
        let names_of = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(draft.remove(&names_of(&["v1", "v9"])), Err(TagError::Unknown("v9".into())));
        assert_eq!(draft.remove(&names_of(&["v1", "trunk"])), Err(TagError::Reserved("trunk".into())));
        assert_eq!(draft, before);
        assert_eq!(draft.remove(&names_of(&["v1", "v2"])).unwrap().len(), 2);
        assert_eq!(names(&draft), ["d1", "f1", "trunk", "trunk-previous", "v3", "v4", "v5"]);
    }

    #[test]
    fn a_branch_without_tags_is_pruned_and_its_children_move_up() {
        let mut draft = draft();
        draft.remove(&["f1".to_owned()]).unwrap();
        let left: Vec<_> =
            draft.branches().iter().map(|branch| (branch.name.as_str(), branch.parent.as_deref())).collect();
        assert_eq!(left, [("", None), ("deep", Some(""))]);
        draft.remove(&["d1".to_owned()]).unwrap();
        assert_eq!(draft.branches().len(), 1);
    }

    #[test]
    fn a_rollback_keeps_tags_of_other_branches() {
        let mut draft = draft();
        let head = tag("", 6, "");
        let removed = draft.roll_back(2, Some("v2"), &head);
        let removed: Vec<_> = removed.iter().map(|tag| tag.name.as_str()).collect();
        assert_eq!(removed, ["v5", "v4", "v3"]);
        assert_eq!(names(&draft), ["d1", "f1", "trunk", "v1", "v2"]);
        let target = draft.find("v2").unwrap();
        assert_eq!((target.revision, &*target.description), (6, "about v2"));
        assert_eq!(target.root_catalog, head.root_catalog);
        assert_eq!(draft.find("trunk").unwrap().root_catalog, head.root_catalog);
    }

    #[test]
    fn an_undo_leaves_no_default_target() {
        let mut draft = draft();
        draft.roll_back(4, Some("trunk-previous"), &tag("", 6, ""));
        assert_eq!(names(&draft), ["d1", "f1", "trunk", "v1", "v2", "v3", "v4"]);
        draft.advance(&tag("", 7, ""));
        assert_eq!(draft.find("trunk-previous").unwrap().revision, 6);
    }

    #[test]
    fn old_automatic_tags_are_removed() {
        let mut draft = draft();
        for (name, revision) in [
            ("generic-2026-01-01T00:00:00Z", 1),
            ("generic_12-2026-01-01T00:00:00.123Z", 2),
            ("generic-2026-01-09T00:00:00Z", 5),
        ] {
            draft.add(tag(name, revision, "")).unwrap();
        }
        assert_eq!(draft.remove_automatic(UnixTime(1005)).len(), 2);
        assert!(draft.find("generic-2026-01-09T00:00:00Z").is_some() && draft.find("v1").is_some());
        assert!(draft.remove_automatic(UnixTime(1005)).is_empty());
    }

    #[test]
    fn automatic_names_have_one_form() {
        for name in ["generic-2026-01-31T12:00:00Z", "generic_2-2026-01-31T12:00:00Z"] {
            assert!(is_automatic(name), "{name}");
        }
        for fraction in [".1Z", ".12Z", ".123Z"] {
            assert!(is_automatic(&format!("generic-2026-01-31T12:00:00{fraction}")), "{fraction}");
        }
        for name in [
            "generic",
            "generic-",
            "generic-2026-01-31",
            "generic_-2026-01-31T12:00:00Z",
            "generic-2026-01-31T12:00:00",
            "generic-2026-01-31T12:00:00.1234Z",
            "generic-2026-01-31T12:00:00.Z",
            "a-generic-2026-01-31T12:00:00Z",
            "generic-2026-01-3\u{fc}T12:00:00Z",
        ] {
            assert!(!is_automatic(name), "{name}");
        }
    }

    #[test]
    fn a_replaced_head_leaves_the_undo_target() {
        let mut draft = draft();
        draft.replace_head(&tag("", 6, ""));
        let revision = |name: &str| draft.find(name).map(|tag| tag.revision);
        assert_eq!((revision("trunk"), revision("trunk-previous")), (Some(6), Some(4)));
    }
}
