use super::*;

/// Versions of `compiled/imports.py`, compiled by several versions of CPython.
const COMPILED: [(&str, &[u8]); 6] = [
    ("3.7", include_bytes!("compiled/python3.7.pyc")),
    ("3.8", include_bytes!("compiled/python3.8.pyc")),
    ("3.10", include_bytes!("compiled/python3.10.pyc")),
    ("3.11", include_bytes!("compiled/python3.11.pyc")),
    ("3.12", include_bytes!("compiled/python3.12.pyc")),
    ("3.13", include_bytes!("compiled/python3.13.pyc")),
];

/// Magic number of a version with unknown instruction numbers.
const UNKNOWN: [u8; 2] = 3627_u16.to_le_bytes();

fn import_names(file: &[u8]) -> Vec<String> {
    let join = |names: &[&[u8]]| String::from_utf8(names.join(&b' ')).unwrap();
    let import = |it: &Import<'_>| {
        let level = it.level.unwrap();
        format!("{level} {}: {}", str::from_utf8(it.module).unwrap(), join(&it.names))
    };
    imports(file).unwrap().iter().map(import).collect()
}

/// Returns code without instructions, up to its constants.
fn code() -> Vec<u8> {
    [&COMPILED[3].1[..HEADER_LEN], b"c", &[0; 20], &[b's', 0, 0, 0, 0]].concat()
}

fn of_another_version() -> Vec<u8> {
    [&UNKNOWN, &COMPILED[5].1[2..]].concat()
}

#[test]
fn imports_that_run_at_once_are_found_in_order() {
    let expected =
        ["0 os: ", "0 a.b: ", "0 a.c: c", "1 : own", "2 up.more: name other", "0 maybe: ", "0 d.e: "];
    for (version, file) in COMPILED {
        assert_eq!(import_names(file), expected, "{version}");
    }
}

#[test]
fn all_names_of_an_unknown_version_may_be_modules() {
    let file = of_another_version();
    let imports = imports(&file).unwrap();
    let modules: Vec<_> = imports.iter().map(|it| str::from_utf8(it.module).unwrap()).collect();
    for module in ["os", "a.b", "a.c", "", "up.more", "maybe", "d.e"] {
        assert!(modules.contains(&module), "{module} of {modules:?}");
    }
    assert!(!modules.contains(&"never") && !modules.contains(&"inner"));
    let names = &imports[0].names;
    assert!([&b"own"[..], b"name", b"other"].iter().all(|name| names.contains(name)));
    assert!(imports.iter().all(|it| it.level.is_none() && Rc::ptr_eq(&it.names, names)));
}

#[test]
fn a_truncated_module_has_no_imports_or_those_before_its_end() {
    for (version, file) in COMPILED {
        let whole = import_names(file);
        for len in 0..file.len() {
            let count = imports(&file[..len]).map(|it| it.len());
            assert!(count.is_none_or(|len| len == whole.len()), "{version}, {len} bytes");
        }
    }
}

#[test]
fn damaged_modules_are_parsed_or_rejected() {
    let other = of_another_version();
    let files = COMPILED.iter().map(|(_, file)| *file).chain([&*other]);
    for file in files {
        for place in 4..file.len() {
            for byte in [0, 1, b'(', b'r', b'{' | REF_FLAG, b'c' | REF_FLAG, 0x7f, 0xff] {
                let mut damaged = file.to_vec();
                damaged[place] = byte;
                imports(&damaged);
            }
        }
    }
}

#[test]
fn endless_nesting_is_rejected() {
    let nested = [code(), [b')', 1].repeat(1 << 19)].concat();
    assert!(imports(&nested).is_none());
    // More items than the file can hold.
    let many = [&*code(), &[b'(', 0xff, 0xff, 0xff, 0x7f]].concat();
    assert!(imports(&many).is_none());
}

#[test]
fn self_references_end() {
    // A tuple that contains itself, and names that are the same tuple.
    let tuple = [b')' | REF_FLAG, 1, b'r', 0, 0, 0, 0];
    let file = [&*code(), &tuple, &[b'r', 0, 0, 0, 0]].concat();
    assert_eq!(imports(&file), Some(Vec::new()));
}

#[test]
fn a_file_that_is_no_module_has_no_imports() {
    for file in [&b""[..], b"\x7fELF", &[0; 64], &[b'\r'; 64]] {
        assert!(imports(file).is_none());
    }
    let older = [&3379_u16.to_le_bytes(), &COMPILED[0].1[2..]].concat();
    assert!(imports(&older).is_none(), "its header is shorter");
}

#[test]
fn repeated_constants_are_not_multiplied() {
    // A tuple of 250 texts, and a thousand constants that refer to it.
    let texts = [&[b')' | REF_FLAG, 250][..], &[b'z', 1, b'm'].repeat(250)].concat();
    let constants = [&[b'(', 0xe8, 3, 0, 0][..], &texts, &[b'r', 0, 0, 0, 0].repeat(999)].concat();
    let names = [b')', 1, b'z', 2, b'o', b's'];
    let file = [&UNKNOWN, &code()[2..], &constants, &names].concat();
    let imports = imports(&file).unwrap();
    assert_eq!(imports[0].module, b"os");
    assert!((250..=file.len()).contains(&imports[0].names.len()), "{}", imports[0].names.len());
}

#[test]
fn reference_chains_of_any_length_end() {
    let link = |number: u32| [&[b')' | REF_FLAG, 1, b'r'][..], &number.to_le_bytes()].concat();
    let count = 200_000_u32;
    let links: Vec<u8> = (0..count).flat_map(|number| link(number.saturating_sub(1))).collect();
    let constants = [&[b'('][..], &count.to_le_bytes(), &links].concat();
    let file = [&code()[..], &constants, &[b')', 0]].concat();
    assert_eq!(imports(&file), Some(Vec::new()));
}
