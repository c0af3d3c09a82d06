//! Presents a tree as an EROFS image that is generated while it is read.
//!
//! With a file system of the kernel, lookups, listings and ioctls need no user-space process, and the kernel
//! keeps the pages. EROFS mounts an image file, and a tree can provide that file: [`ErofsTree`] is a
//! [`Tree`](esker_vfs::Tree) that contains it. Blocks with names and attributes are generated from the tree
//! when the kernel reads them; blocks of file contents are read from the tree. So the kernel reads each block
//! that it doesn't have cached once.
//!
//! The tree must never change, because the kernel assumes that of an image.
#![forbid(unsafe_code)]

mod allocator;
mod directory_cache;
mod encoded_directory;
mod layout;
mod list_all;
mod record;
#[cfg(test)]
mod tests;
mod tree;

pub use tree::{ErofsTree, XattrPolicy};
