//! Measures scenarios and compares their results.
//!
//! * [`startup`]: a command from several roots, cold, warm and hot, side by side;
//! * [`pynamic`]: a tree with many shared libraries, to start from;
//! * [`publish`]: a tree into a repository, beside `tar | pigz`;
//! * [`storage`]: a tree into object storage, beside a folder;
//! * [`publisher`]: the publisher's side, beside the reference implementation;
//! * [`lookup`]: paths in large catalogs, from several threads;
//! * [`clients`]: many clients behind one proxy;
//! * [`site`]: the cold start of many clients through an empty cache, beside squid;
//! * [`scale`]: the same work by more and more threads;
//! * [`fetch`]: objects through the store, ahead and beside what is demanded;
//! * [`link`]: the way to a server that is far away;
//! * [`prepare`]: a repository in which a tree is one of many;
//! * [`nodes`]: a model of many nodes on one parallel file system, fed by the runs of one;
//! * [`serve`], [`squid`]: a server and a proxy for the time of a measurement;
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
pub mod fetch;
pub mod hold;
pub mod jitter;
pub mod link;
pub mod lists;
pub mod lookup;
pub mod measure;
pub mod nodes;
pub mod plot;
pub mod prepare;
pub mod proxied;
pub mod publish;
pub mod publisher;
pub mod pynamic;
pub mod route;
pub mod scale;
pub mod serve;
pub mod site;
pub mod squid;
pub mod startup;
pub mod statistics;
pub mod storage;
mod sys;
pub mod table;
pub mod waits;
