//! Raw system calls, by number.
#![allow(unsafe_code)]

use std::io;

use libc::c_long;

/// Calls the kernel with numbers that name nothing: an allowed call fails for another reason than `EPERM`.
pub(crate) fn call(number: c_long, arguments: [c_long; 6]) -> io::Result<c_long> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the callers pass numbers and null pointers only, which the kernel checks.
    let returned = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if returned == -1 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}
