//! One revision of a repository as a tree, following new revisions.
