//! Detects the kind of program in a file.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Number of bytes in which the kernel looks for the interpreter of a file.
const HEAD: usize = 256;
/// Limit of program headers; programs have about ten.
const HEADERS_MAX: u16 = 512;
/// Maximum length of an interpreter's path.
const PATH_MAX: u64 = 4096;
/// Type of the program header that names the loader.
const PT_INTERP: u32 = 3;
const HEADER_64: usize = 64;
const HEADER_32: usize = 52;

/// Kind of a program, by its first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// A script with a `#!` line.
    Script {
        /// Interpreter named in the line.
        interpreter: PathBuf,
        /// Text of the `#!` line.
        line: String,
    },
    /// A program in machine code.
    Elf {
        /// Machine type of the program.
        machine: Machine,
        /// Path of the dynamic loader, if the program needs one.
        loader: Option<PathBuf>,
    },
    /// A binary file in no known format.
    Damaged,
    /// Text without a `#!` line.
    Text,
}

/// Machine type of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    number: u16,
    /// Word size: 1 for 32 bits, 2 for 64 bits.
    class: u8,
    /// Byte order: 1 for little endian, 2 for big endian.
    order: u8,
}

impl Machine {
    fn of(head: &[u8]) -> Option<Self> {
        let [0x7f, b'E', b'L', b'F', class, order, ..] = *head else { return None };
        let number = <[u8; 2]>::try_from(head.get(18..20)?).ok()?;
        let number = if order == 2 { u16::from_be_bytes(number) } else { u16::from_le_bytes(number) };
        Some(Self { number, class, order })
    }

    /// Returns the machine that this program was built for.
    fn own() -> Option<Self> {
        let mut head = [0; HEADER_64];
        File::open("/proc/self/exe").ok()?.read_exact(&mut head).ok()?;
        Self::of(&head)
    }

    /// Returns the machine that the program is built for, if it differs from this one.
    pub(super) fn other(self) -> Option<String> {
        let own = std::env::consts::ARCH;
        // In a container there may be no /proc to look at this program.
        let same = Self::own().map_or_else(|| self.name() == own, |machine| machine == self);
        (!same).then(|| format!("it is a program for {}, and this machine is {own}", self.name()))
    }

    fn name(self) -> String {
        match (self.number, self.order, self.class) {
            (3, ..) => "i386".into(),
            (62, _, 1) => "x32".into(),
            (62, ..) => "x86_64".into(),
            (40, ..) => "arm".into(),
            (183, ..) => "aarch64".into(),
            (20, ..) => "powerpc".into(),
            (21, 2, _) => "powerpc64".into(),
            (21, ..) => "powerpc64le".into(),
            (22, ..) => "s390x".into(),
            (243, ..) => "riscv".into(),
            (258, ..) => "loongarch".into(),
            (8, ..) => "mips".into(),
            (number, ..) => format!("another machine (ELF number {number})"),
        }
    }
}

impl Program {
    /// Reads the head of a file; `None` if it can't be read.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut head = Vec::new();
        (&file).take(HEAD as u64).read_to_end(&mut head).ok()?;
        if let Some(line) = head.strip_prefix(b"#!") {
            let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
            // The kernel ends the name at a zero byte, too.
            let words = line.split(|byte| matches!(byte, b' ' | b'\t' | 0));
            let Some(interpreter) = words.into_iter().find(|word| !word.is_empty()) else {
                return Some(Self::Text);
            };
            return Some(Self::Script {
                interpreter: OsStr::from_bytes(interpreter).into(),
                line: format!("#!{}", String::from_utf8_lossy(line)),
            });
        }
        if head.starts_with(b"\x7fELF") {
            return Some(Self::elf(&file, &head));
        }
        // As shells tell text: no zero byte in its first line.
        let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
        Some(if line.contains(&0) { Self::Damaged } else { Self::Text })
    }

    fn elf(file: &File, head: &[u8]) -> Self {
        let Some(machine) = Machine::of(head) else { return Self::Damaged };
        let whole = if machine.class == 1 { HEADER_32 } else { HEADER_64 };
        if head.len() < whole {
            return Self::Damaged;
        }
        Self::Elf { machine, loader: loader(file, head, machine) }
    }
}

/// Returns the path of the loader in the program headers.
fn loader(file: &File, head: &[u8], machine: Machine) -> Option<PathBuf> {
    let number = |bytes: &[u8], at: usize, len: usize| -> Option<u64> {
        let bytes = bytes.get(at..at + len)?;
        let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        Some(if machine.order == 2 { bytes.iter().fold(0, add) } else { bytes.iter().rev().fold(0, add) })
    };
    // Where the headers are, how long each is, how many; and in each where the file offset and length are.
    let wide = machine.class != 1;
    let (table, size, count) = if wide { (32, 54, 56) } else { (28, 42, 44) };
    let word = if wide { 8 } else { 4 };
    let (offset_at, len_at) = if wide { (8, 32) } else { (4, 16) };
    let (table, size) = (number(head, table, word)?, number(head, size, 2)?);
    let count = number(head, count, 2)?.min(HEADERS_MAX.into());
    for index in 0..count {
        let mut header = [0; 56];
        let room = header.get_mut(..if wide { 56 } else { 32 })?;
        file.read_exact_at(room, table.checked_add(index * size)?).ok()?;
        if number(&header, 0, 4)? == u64::from(PT_INTERP) {
            let (offset, len) = (number(&header, offset_at, word)?, number(&header, len_at, word)?);
            let mut path = vec![0; usize::try_from(len.min(PATH_MAX)).ok()?];
            file.read_exact_at(&mut path, offset).ok()?;
            let path = path.split(|byte| *byte == 0).next()?;
            return Some(OsStr::from_bytes(path).into());
        }
    }
    None
}
