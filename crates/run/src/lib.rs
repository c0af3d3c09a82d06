//! Run a command inside a root made of trees.
