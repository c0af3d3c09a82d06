//! An allocator that counts what a thread holds, and zlib.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(change: isize) {
    // While a thread ends its counters are gone, and are not read any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + change);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call is handed on to the system's allocator unchanged; counting touches two cells without
// destructors, which allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of the same function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of the same function.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of the same function.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller keeps the contract of the same function.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Runs something and tells how much more heap than before it held at most in this thread.
pub fn peak_heap<T>(run: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let result = run();
    let peak = PEAK.get() - before;
    (result, usize::try_from(peak).unwrap_or(0))
}

/// Returns the stream that zlib writes at level 6.
pub fn zlib(plain: &[u8]) -> Vec<u8> {
    let len = plain.len() as libz_sys::uLong;
    // SAFETY: computes a number.
    let mut room = unsafe { libz_sys::compressBound(len) };
    let mut stored = vec![0; room as usize];
    // SAFETY: both buffers have the lengths stated and live through the call.
    let code = unsafe { libz_sys::compress2(stored.as_mut_ptr(), &mut room, plain.as_ptr(), len, 6) };
    assert_eq!(code, libz_sys::Z_OK);
    stored.truncate(room as usize);
    stored
}
