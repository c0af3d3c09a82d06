#![no_main]
#[path = "../src/archive.rs"]
mod archive;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // That it can't be read is an answer.
    let _ = archive::check(bytes);
});
