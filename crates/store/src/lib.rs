//! Where objects live and how they travel, verified: local, HTTP (proxies, fail-over), S3, cache.
