//! A tree as an EROFS image that is made while it is read: names and attributes for the kernel to keep, contents from the
//! tree.
//!
//! A file system of the kernel's own needs nobody to look paths up, to list, to answer ioctls or to keep pages. EROFS mounts
//! an image that is a file, and that file may be one of ours: [`ErofsTree`] is a [`Tree`](esker_vfs::Tree) with that file in
//! it. What the kernel reads of names and attributes is written when it is read, from what the tree says; what it reads of
//! contents is read from the tree. So the kernel asks once for whatever it doesn't know.
//!
//! The tree must never change: the kernel believes that of an image.
#![forbid(unsafe_code)]

mod contents;
mod gather;
mod kept;
mod layout;
mod space;
#[cfg(test)]
mod tests;
mod tree;

pub use tree::{ErofsTree, Told};
