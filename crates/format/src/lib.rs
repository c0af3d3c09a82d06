//! What a repository is, byte for byte: hashes, manifest, whitelist, trust, catalogs, history, reflog, packs. No sockets, threads or clocks.
