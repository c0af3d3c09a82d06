//! Counts entries, and compares counters.

use esker_format::catalog::{Counters, EntryKind, Flags, Row};

/// Adds an entry with this number of chunks to the counters.
pub(super) fn count(own: &mut Counters, row: &Row<'_>, chunks: u64) {
    own.xattr += u64::from(row.has_xattrs());
    match row.kind() {
        EntryKind::Directory => own.dir += 1,
        EntryKind::Symlink => own.symlink += 1,
        EntryKind::File => {
            own.regular += 1;
            own.file_size = own.file_size.saturating_add(row.size());
            if row.flags().has(Flags::CHUNKED) {
                own.chunked += 1;
                own.chunks += chunks;
                own.chunked_size = own.chunked_size.saturating_add(row.size());
            }
            if row.flags().has(Flags::EXTERNAL) {
                own.external += 1;
                own.external_file_size = own.external_file_size.saturating_add(row.size());
            }
        }
        _ => own.special += 1,
    }
}

/// Describes the counters that differ; `revision` is the one of the schema, since old catalogs lack some.
pub(super) fn differences(stored: &Counters, counted: &Counters, revision: u32) -> Vec<String> {
    let mut fields = vec![
        ("regular", stored.regular, counted.regular),
        ("symlink", stored.symlink, counted.symlink),
        ("dir", stored.dir, counted.dir),
        ("nested", stored.nested, counted.nested),
        ("chunked", stored.chunked, counted.chunked),
        ("chunks", stored.chunks, counted.chunks),
        ("file_size", stored.file_size, counted.file_size),
        ("chunked_size", stored.chunked_size, counted.chunked_size),
    ];
    if revision >= 2 {
        fields.push(("xattr", stored.xattr, counted.xattr));
    }
    if revision >= 3 {
        fields.push(("external", stored.external, counted.external));
        fields.push(("external_file_size", stored.external_file_size, counted.external_file_size));
    }
    if revision >= 5 {
        fields.push(("special", stored.special, counted.special));
    }
    let different = fields.into_iter().filter(|(_, stored, counted)| stored != counted);
    different.map(|(name, stored, counted)| format!("{name} is {stored}, counted {counted}")).collect()
}
