//! What a repository is, byte for byte: hashes, manifest, whitelist, trust, catalogs, history, reflog, packs; what
//! libraries and compiled modules tell of themselves. No sockets, threads or clocks.
//!
//! The parts, from the bottom up:
//!
//! * [`hash`], [`object`], [`name`], [`compress`]: how content is named and stored;
//! * [`manifest`], [`whitelist`], [`certificate`], [`blacklist`], [`trust`]: how a signed head is believed;
//! * [`sqlite`]: a reader of SQLite files that needs no lock and no connection;
//! * [`catalog`], [`history`], [`reflog`]: the databases of a repository, read through it;
//! * [`batch`]: many objects in one answer;
//! * [`bundle`], [`profile`]: which files are read after another one;
//! * [`elf`], [`pyc`]: what libraries and compiled Python modules, as others made them, tell of what is read next.
//!
//! Every parser takes bytes that anybody may have written: none panics, allocates by an unchecked length or
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
mod der;
pub mod elf;
pub mod hash;
pub mod history;
mod keyed_lines;
pub mod letter;
pub mod manifest;
pub mod master_keys;
pub mod metainfo;
pub mod name;
pub mod object;
mod pem;
pub mod profile;
pub mod pyc;
pub mod reflog;
pub mod sqlite;
mod stored_properties;
pub mod time;
pub mod trust;
pub mod whitelist;
pub mod write;
