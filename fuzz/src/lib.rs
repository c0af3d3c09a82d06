//! The bodies of the fuzz targets.
//!
//! Each module has one function `check` that takes any bytes and panics if its invariant, stated on top of the
//! module, does not hold. The targets under `fuzz_targets/` run them with libFuzzer on a nightly toolchain; the
//! test `fuzz_corpus` of `esker-format` includes this file and runs them on the stable one.

pub mod batch;
pub mod bundle;
pub mod catalog;
pub mod certificate;
pub mod compress;
pub mod deflate;
pub mod history;
pub mod loaded;
pub mod manifest;
pub mod sys;
pub mod text;
pub mod whitelist;
pub mod xattr;

/// Heap that every parser may use for itself, in bytes.
const SMALL: usize = 64 * 1024;

/// Checks any bytes; panics if an invariant does not hold.
pub type Check = fn(&[u8]);

/// All targets by name.
pub const TARGETS: [(&str, Check); 12] = [
    ("manifest", manifest::check),
    ("whitelist", whitelist::check),
    ("certificate", certificate::check),
    ("catalog", catalog::check),
    ("history", history::check),
    ("xattr", xattr::check),
    ("compress", compress::check),
    ("deflate", deflate::check),
    ("text", text::check),
    ("bundle", bundle::check),
    ("batch", batch::check),
    ("loaded", loaded::check),
];

/// Runs a parser and checks that it never held more heap than `factor` times its input (and a little).
fn within<T>(bytes: &[u8], factor: usize, parse: impl FnOnce() -> T) -> T {
    let (result, peak) = sys::peak_heap(parse);
    let bound = SMALL + factor * bytes.len();
    assert!(peak <= bound, "{peak} bytes of heap for {} bytes of input (bound {bound})", bytes.len());
    result
}
