//! One file a command: its arguments, whose comments are the help, and one function.

pub(crate) mod broker;
pub(crate) mod cache;
pub(crate) mod cat;
pub(crate) mod child;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod find;
pub(crate) mod image;
pub(crate) mod ingest;
pub(crate) mod key;
pub(crate) mod ls;
pub(crate) mod manual;
pub(crate) mod mount;
pub(crate) mod profile;
pub(crate) mod publish;
pub(crate) mod replay;
pub(crate) mod repo;
pub(crate) mod revision;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod setup;
pub(crate) mod stat;
pub(crate) mod status;
pub(crate) mod umount;
