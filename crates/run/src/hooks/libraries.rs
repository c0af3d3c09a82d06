//! Libraries of the host, found as its loader would find them.
//!
//! The cache of glibc's loader, as ldconfig writes it (numbers in the machine's byte order):
//!
//! ```text
//!  "glibc-ld.so.cache1.1"  count(4)  length of strings(4)  flags(4)  extension(4)  unused(12)
//!  count times:            flags(4)  name(4)  path(4)  OS(4)  hardware(8)
//!  strings                 name and path are offsets from the first byte of the magic words
//! ```
//!
//! Older files have a part for older loaders before it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use esker_format::glob::Glob;

use super::elf::Machine;

const CACHE: &str = "/etc/ld.so.cache";
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEAD: usize = 48;
const ENTRY: usize = 24;
/// Maximum size of the loader's cache in bytes; machines with very many libraries have a few megabytes.
const LONGEST: u64 = 64 << 20;
/// Default folders of libraries, searched in addition to the loader's cache.
const FOLDERS: [&str; 6] = ["/usr/lib64", "/lib64", "/usr/lib", "/lib", "/usr/local/lib64", "/usr/local/lib"];

/// Returns names and paths of libraries for this machine that match one of `patterns`.
pub(super) fn find(patterns: &[String]) -> Vec<(String, PathBuf)> {
    let mut found = BTreeMap::new();
    let own = Machine::own();
    let patterns: Vec<_> = patterns.iter().map(|pattern| Glob::from_bytes(pattern.as_bytes())).collect();
    let mut take = |name: String, path: PathBuf| {
        let wanted = patterns.iter().any(|pattern| pattern.fits(name.as_bytes()));
        let fits = || own.is_some() && Machine::of(&path) == own;
        if wanted
            && !found.contains_key(&name)
            && fits()
            && let Ok(file) = fs::canonicalize(&path)
        {
            found.insert(name, file);
        }
    };
    // Libraries of loaded environment modules come before those of the system.
    let search = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    for folder in std::env::split_paths(&search).filter(|folder| folder.is_absolute()) {
        listed(&folder, &mut take);
    }
    let small = fs::metadata(CACHE).is_ok_and(|meta| meta.len() <= LONGEST);
    let cache = if small { fs::read(CACHE).unwrap_or_default() } else { Vec::new() };
    for (name, path) in entries(&cache) {
        take(name, path);
    }
    for folder in FOLDERS {
        listed(Path::new(folder), &mut take);
    }
    found.into_iter().collect()
}

fn listed(folder: &Path, take: &mut impl FnMut(String, PathBuf)) {
    for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        if let Ok(name) = entry.file_name().into_string() {
            take(name, entry.path());
        }
    }
}

/// Returns the entries of a loader's cache, in its order; nothing for a damaged one.
fn entries(cache: &[u8]) -> Vec<(String, PathBuf)> {
    let start = cache.windows(MAGIC.len()).position(|window| window == MAGIC);
    let Some(cache) = start.and_then(|start| cache.get(start..)) else { return Vec::new() };
    let count = number(cache, MAGIC.len()).unwrap_or(0).min(cache.len() / ENTRY);
    let entry = |index: usize| {
        let at = HEAD + index * ENTRY;
        let name = text(cache, number(cache, at + 4)?)?;
        Some((name, PathBuf::from(text(cache, number(cache, at + 8)?)?)))
    };
    (0..count).filter_map(entry).collect()
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let field = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
    // The file is the machine's own; one in another order is not for its loader either.
    let number =
        if cfg!(target_endian = "big") { u32::from_be_bytes(field) } else { u32::from_le_bytes(field) };
    usize::try_from(number).ok()
}

fn text(bytes: &[u8], at: usize) -> Option<String> {
    let rest = bytes.get(at..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    String::from_utf8(rest.get(..end)?.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(entries: &[(&str, &str)]) -> Vec<u8> {
        let strings = HEAD + entries.len() * ENTRY;
        let mut head = MAGIC.to_vec();
        head.extend((entries.len() as u32).to_le_bytes());
        head.resize(HEAD, 0);
        let mut tail = Vec::new();
        for (name, path) in entries {
            let mut place = |text: &str| {
                let at = (strings + tail.len()) as u32;
                tail.extend(text.as_bytes());
                tail.push(0);
                at
            };
            let (name, path) = (place(name), place(path));
            for field in [0, name, path, 0, 0, 0] {
                head.extend(field.to_le_bytes());
            }
        }
        head.extend(tail);
        head
    }

    #[test]
    fn a_loader_cache_is_read_after_an_old_format_and_if_damaged() {
        let listed = [("libcuda.so.1", "/usr/lib/libcuda.so.1"), ("libm.so.6", "/lib/libm.so.6")];
        let expected: Vec<(String, PathBuf)> =
            listed.iter().map(|(name, path)| ((*name).to_owned(), PathBuf::from(path))).collect();
        let good = cache(&listed);
        assert_eq!(entries(&good), expected);
        let mut old = b"ld.so-1.7.0\0\0\0\0\0\0\0\0\0".to_vec();
        old.extend(&good);
        assert_eq!(entries(&old), expected);
        for end in 0..good.len() {
            assert!(entries(&good[..end]).len() <= 2);
        }
        let mut many = good;
        many[MAGIC.len()..MAGIC.len() + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        entries(&many);
    }

    #[test]
    fn the_c_library_of_this_machine_is_found() {
        let found = find(&["libc.so.6".to_owned(), "libc.musl-*".to_owned()]);
        assert!(found.iter().all(|(_, file)| Machine::of(file) == Machine::own()), "{found:?}");
    }
}
