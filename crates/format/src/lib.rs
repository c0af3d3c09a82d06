//! Formats of a repository: hashes, manifest, whitelist, trust chain, catalogs, history, reflog and batches; and
//! headers of libraries and compiled modules. No sockets, threads or clocks.
//!
//! The parts, from the bottom up:
//!
//! * [`hash`], [`object`], [`name`], [`compress`]: names and storage of content;
//! * [`manifest`], [`whitelist`], [`certificate`], [`blacklist`], [`trust`]: verification of a signed head;
//! * [`sqlite`]: a reader of SQLite files that needs no lock and no connection;
//! * [`catalog`], [`history`], [`reflog`]: the databases of a repository, read through it;
//! * [`batch`]: many objects in one answer;
//! * [`bundle`], [`profile`]: recordings of which files are read after another one;
//! * [`copied_xattr`], [`posix_acl`]: extended attributes that an overlay can't copy;
//! * [`elf`], [`pyc`]: predictions of reads from libraries and compiled Python modules.
//!
//! Parsers accept untrusted bytes: none panics, allocates by an unchecked length or
//! loops without a bound.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::cast_possible_truncation))]

pub mod base64;
pub mod batch;
pub mod blacklist;
pub mod bundle;
pub mod canary;
pub mod catalog;
pub mod certificate;
pub mod chunker;
pub mod compress;
pub mod copied_xattr;
mod der;
pub mod elf;
pub mod glob;
pub mod hash;
pub mod history;
mod keyed_lines;
pub mod letter;
pub mod manifest;
pub mod master_keys;
pub mod metainfo;
pub mod name;
pub mod object;
pub mod path;
mod pem;
pub mod posix_acl;
pub mod profile;
pub mod pyc;
pub mod reflog;
pub mod serde_text;
pub mod sqlite;
mod stored_properties;
pub mod time;
pub mod trust;
pub mod whitelist;
pub mod write;
