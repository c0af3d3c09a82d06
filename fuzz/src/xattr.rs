//! A list of attributes that parses is packed into the bytes it came from, unless names came twice.

use esker_format::catalog::XattrList;

use super::within;

/// Checks any bytes.
pub fn check(bytes: &[u8]) {
    let Ok(list) = within(bytes, 32, || XattrList::parse(bytes)) else { return };
    assert!(list.len() <= 255);
    match list.to_blob() {
        Some(blob) => {
            assert!(bytes.starts_with(&blob) || blob.get(1) < bytes.get(1));
            assert_eq!(XattrList::parse(&blob).as_ref(), Ok(&list));
        }
        None => assert!(list.is_empty()),
    }
    for (name, value) in list.iter() {
        assert!(!name.is_empty() && !name.contains(&0));
        assert_eq!(list.get(name), Some(value));
    }
}
