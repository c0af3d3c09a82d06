//! A list of attributes that parses shows the same after it was packed again.

use esker_format::catalog::XattrList;

use super::within;

/// Checks any bytes.
pub fn check(bytes: &[u8]) {
    let Ok(list) = within(bytes, 32, || XattrList::parse(bytes)) else { return };
    match list.to_blob() {
        Some(blob) => assert_eq!(XattrList::parse(&blob).as_ref(), Ok(&list)),
        // The form without a version may have more than the others can.
        None => {
            let is_long = |(name, value): (&[u8], &[u8])| {
                name.len() > XattrList::NAME_MAX || value.len() > XattrList::VALUE_MAX
            };
            assert!(list.is_empty() || list.len() > XattrList::COUNT_MAX || list.iter().any(is_long));
        }
    }
    for (name, value) in list.iter() {
        assert!(!name.is_empty() && !name.contains(&0));
        assert_eq!(list.get(name), Some(value));
    }
}
