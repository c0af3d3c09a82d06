//! Measures scenarios and compares their results.
//!
//! * [`startup`]: a command from several roots, cold, warm and hot, side by side;
//! * [`pynamic`]: a tree with many shared libraries, to start from;
//! * [`storage`]: a tree into object storage, beside a folder;
//! * [`publisher`]: the publisher's side, beside the reference implementation;
//! * [`clients`]: many clients behind one proxy;
//! * [`site`]: the cold start of many clients through an empty cache, beside squid;
//! * [`scale`]: the same work by more and more threads;
//! * [`link`]: the way to a server that is far away;
//! * [`prepare`]: a repository in which a tree is one of many;
//! * [`serve`]: a server for the time of a measurement;
//! * [`statistics`]: medians, ratios and how far they can be trusted;
//! * [`lists`]: files that a command opens, for small readers;
//! * [`measure`]: one run of a command, and what it cost;
//! * [`conditions`]: on what machine all this was.
#![deny(unsafe_code)]

pub mod backing;
mod child;
pub mod clients;
pub mod conditions;
pub mod costs;
pub mod hold;
pub mod jitter;
pub mod link;
pub mod lists;
pub mod measure;
pub mod prepare;
pub mod proxied;
pub mod publisher;
pub mod pynamic;
pub mod scale;
pub mod serve;
pub mod site;
pub mod startup;
pub mod statistics;
pub mod storage;
mod sys;
pub mod table;
mod tree_size;
