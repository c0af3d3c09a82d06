//! An image as a tree, and a tree as an image. Reads through its own `Image` trait (length, read at); `cli` plugs in a
//! file, HTTP or a repository object.
//!
//! * [`layout`]: the bytes of squashfs 4.0, each structure with its decoder beside its encoder.
//!
//! Every decoder takes bytes that anybody may have written: none panics, allocates by an unchecked length or loops
//! without a bound.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::cast_possible_truncation))]

pub mod layout;
