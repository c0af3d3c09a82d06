//! Real mounts of trees in memory.
#![deny(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests talk to their children and to people")]

mod attributes;
mod changes;
mod child;
mod content;
mod held_up;
mod hot;
mod lifetime;
mod listing;
mod mounted;
mod patience;
mod people;
mod resume;
mod sys;
mod tracing;

/// The kernels every mount test runs as.
macro_rules! on_all_kernels {
    ($($(#[$meta:meta])* fn $name:ident($kernel:ident: KernelMask) $body:block)*) => { $(
        $(#[$meta])*
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            fn run($kernel: esker_fuse::KernelMask) $body
            #[test]
            fn linux_4_18() {
                crate::mounted::with_fuse(|| run(esker_fuse::KernelMask::LINUX_4_18));
            }
            #[test]
            fn linux_5_14() {
                crate::mounted::with_fuse(|| run(esker_fuse::KernelMask::LINUX_5_14));
            }
            #[test]
            fn linux_6_18() {
                crate::mounted::with_fuse(|| run(esker_fuse::KernelMask::LINUX_6_18));
            }
        }
    )* };
}
use on_all_kernels;

/// A module that is missing here has tests that never run.
#[test]
fn every_file_is_a_module_of_this_binary() {
    let main = include_str!("main.rs");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");
    for entry in std::fs::read_dir(folder).expect("the tests' folder") {
        let name = entry.expect("an entry").file_name().into_string().expect("text");
        let module = name.strip_suffix(".rs").expect("only sources");
        assert!(module == "main" || main.contains(&format!("mod {module};")), "{name} is not listed");
    }
}
