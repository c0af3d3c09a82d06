//! The mounts of a node as long-lived processes: cache broker, supervisor, control socket, counters, client parameters.
