//! Any tree as a Linux mount: our own transport over `/dev/fuse`.
