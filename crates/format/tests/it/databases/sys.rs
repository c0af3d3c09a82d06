//! SQLite calls that rusqlite does not offer.
#![allow(unsafe_code)]

use rusqlite::{Connection, ffi};

/// Makes SQLite reserve bytes of each page when it next builds the file.
pub(super) fn reserve_bytes(connection: &Connection, bytes: u8) {
    let mut bytes = std::ffi::c_int::from(bytes);
    // SAFETY: the handle belongs to an open connection, the name is terminated, and this control takes a pointer
    // to an int that outlives the call.
    let code = unsafe {
        ffi::sqlite3_file_control(
            connection.handle(),
            c"main".as_ptr(),
            ffi::SQLITE_FCNTL_RESERVE_BYTES,
            std::ptr::from_mut(&mut bytes).cast(),
        )
    };
    assert_eq!(code, ffi::SQLITE_OK);
}
