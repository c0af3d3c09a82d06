#![no_main]
#[path = "../src/image.rs"]
mod image;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // That it can't be opened is an answer.
    let _ = image::check(bytes);
});
