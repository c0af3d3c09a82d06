//! What a compiled Python module imports while it is loaded, as its own code tells.
//!
//! A `.pyc` file has a magic number of the interpreter's version, twelve bytes about its source, and a code object in the
//! form of the module `marshal` (CPython, `Python/marshal.c`; PEP 552 has the twelve bytes). Of the code object only what
//! runs at once matters, so code of functions is gone through for its length alone. Which of a code's names are imported
//! its instructions tell, whose numbers change between versions; of a version whose numbers aren't known here all names
//! may be those of modules.

use std::rc::Rc;

/// The magic number, and what follows it.
const HEADER_LEN: usize = 16;
/// Code in code, and tuples in tuples, no deeper than this.
const DEPTH_MAX: usize = 48;
/// Types that can be referred to later have this bit.
const KEPT: u8 = 0x80;

/// An import of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import<'a> {
    /// How many packages further out than its importer it is looked for, the importer's own being 1; 0 if where modules of no
    /// package lie, and none if that isn't known.
    pub level: Option<u32>,
    /// Its dotted name; empty for the package itself, as in `from . import names`.
    pub module: &'a [u8],
    /// What is taken of it, which may be modules as well.
    pub names: Rc<Vec<&'a [u8]>>,
}

/// The imports of a compiled module, in order; none if this isn't one, or of a form that isn't known.
pub fn imports(file: &[u8]) -> Option<Vec<Import<'_>>> {
    let (header, body) = file.split_at_checked(HEADER_LEN)?;
    let [low, high, b'\r', b'\n', ..] = *header else { return None };
    let version = Version::of(u16::from_le_bytes([low, high]))?;
    let mut reader = Reader { rest: body, version, items: Vec::new(), kept: Vec::new() };
    let kind = reader.byte()?;
    if kind & !KEPT != b'c' {
        return None;
    }
    if kind & KEPT != 0 {
        reader.keep();
    }
    let Code { instructions, constants, names } = reader.code(0)?;
    let names: Vec<&[u8]> = reader.texts(names).collect();
    let constants = reader.items(constants);
    Some(match version.numbers {
        Some(numbers) => imported(instructions, constants, &names, numbers),
        None => {
            // Constants can be the same tuple over and over, so no more is looked at than the file could hold.
            let texts = constants.iter().flat_map(|constant| reader.texts(*constant)).take(file.len());
            all(texts, &names)
        }
    })
}

/// What differs between versions of the interpreter.
#[derive(Clone, Copy, Debug)]
struct Version {
    /// How many numbers a code object begins with.
    counts: usize,
    /// How many tables of lines and exceptions it ends with.
    tables: usize,
    numbers: Option<Numbers>,
}

/// The numbers of instructions.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    load_const: u8,
    import_name: u8,
    import_from: u8,
    extended: u8,
}

impl Version {
    /// The magic numbers are in CPython's `Lib/importlib/_bootstrap_external.py`, the numbers of instructions in its
    /// `Lib/opcode.py`.
    fn of(magic: u16) -> Option<Self> {
        const TO_3_12: Numbers =
            Numbers { load_const: 100, import_name: 108, import_from: 109, extended: 144 };
        const OF_3_13: Numbers = Numbers { load_const: 83, import_name: 75, import_from: 74, extended: 71 };
        let (counts, tables, numbers) = match magic {
            // 3.7
            3390..=3399 => (5, 1, Some(TO_3_12)),
            // 3.8 to 3.10
            3400..=3449 => (6, 1, Some(TO_3_12)),
            // 3.11 and 3.12
            3450..=3549 => (5, 2, Some(TO_3_12)),
            3550..=3599 => (5, 2, Some(OF_3_13)),
            3600.. => (5, 2, None),
            _ => return None,
        };
        Some(Self { counts, tables, numbers })
    }
}

/// An object, as far as it matters.
#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    Bytes(&'a [u8]),
    Text(&'a [u8]),
    Number(u32),
    /// Where among the reader's items its own lie, and how many.
    Tuple(usize, usize),
    Other,
}

/// A code object.
struct Code<'a> {
    instructions: &'a [u8],
    constants: Value<'a>,
    names: Value<'a>,
}

/// Goes through marshalled objects.
struct Reader<'a> {
    rest: &'a [u8],
    version: Version,
    /// What tuples hold. They may refer to each other in chains of any length, so none owns another.
    items: Vec<Value<'a>>,
    /// What can be referred to, by its number.
    kept: Vec<Value<'a>>,
}

impl<'a> Reader<'a> {
    fn items(&self, value: Value<'a>) -> &[Value<'a>] {
        let Value::Tuple(start, len) = value else { return &[] };
        self.items.get(start..start + len).unwrap_or_default()
    }

    /// The texts of a tuple. What isn't one is an empty text, so that the others keep their places.
    fn texts(&self, value: Value<'a>) -> impl Iterator<Item = &'a [u8]> {
        self.items(value).iter().map(|item| if let Value::Text(text) = item { *text } else { &[][..] })
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    fn number(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn len(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }

    /// Makes room for what is referred to by its number, which is given before what it holds is read.
    fn keep(&mut self) -> usize {
        self.kept.push(Value::Other);
        self.kept.len() - 1
    }

    fn value(&mut self, depth: usize) -> Option<Value<'a>> {
        if depth > DEPTH_MAX {
            return None;
        }
        let kind = self.byte()?;
        let place = (kind & KEPT != 0).then(|| self.keep());
        let value = match kind & !KEPT {
            b'0' | b'N' | b'F' | b'T' | b'S' | b'.' => Value::Other,
            b'i' => Value::Number(self.number()?),
            b'I' | b'g' => self.skip(8)?,
            b'y' => self.skip(16)?,
            b'l' => {
                // Digits of 15 bits; the number's sign is that of their count.
                let digits = self.number()?.cast_signed().unsigned_abs();
                self.skip(usize::try_from(digits).ok()?.checked_mul(2)?)?
            }
            b's' => {
                let len = self.len()?;
                Value::Bytes(self.take(len)?)
            }
            b't' | b'u' | b'a' | b'A' => {
                let len = self.len()?;
                Value::Text(self.take(len)?)
            }
            b'z' | b'Z' => {
                let len = self.byte()?;
                Value::Text(self.take(len.into())?)
            }
            b')' => {
                let len = self.byte()?;
                self.tuple(len.into(), depth)?
            }
            b'(' | b'[' | b'<' | b'>' => {
                let len = self.len()?;
                self.tuple(len, depth)?
            }
            b'{' => self.pairs(depth)?,
            b':' => self.tuple(3, depth)?,
            b'c' => {
                self.code(depth)?;
                Value::Other
            }
            b'r' => {
                let number = self.len()?;
                *self.kept.get(number)?
            }
            _ => return None,
        };
        if let Some(place) = place {
            *self.kept.get_mut(place)? = value;
        }
        Some(value)
    }

    fn skip(&mut self, len: usize) -> Option<Value<'a>> {
        self.take(len).map(|_| Value::Other)
    }

    fn tuple(&mut self, len: usize, depth: usize) -> Option<Value<'a>> {
        // Each takes a byte or more.
        if len > self.rest.len() {
            return None;
        }
        let items: Option<Vec<_>> = (0..len).map(|_| self.value(depth + 1)).collect();
        let start = self.items.len();
        self.items.extend(items?);
        Some(Value::Tuple(start, len))
    }

    fn pairs(&mut self, depth: usize) -> Option<Value<'a>> {
        while *self.rest.first()? != b'0' {
            self.value(depth + 1)?;
            self.value(depth + 1)?;
        }
        self.skip(1)
    }

    fn code(&mut self, depth: usize) -> Option<Code<'a>> {
        self.skip(4 * self.version.counts)?;
        let instructions = match self.value(depth + 1)? {
            Value::Bytes(bytes) => bytes,
            _ => return None,
        };
        let constants = self.value(depth + 1)?;
        let names = self.value(depth + 1)?;
        if depth > 0 {
            // Names of variables, of the source, and of the function; its line; tables.
            for _ in 0..5 {
                self.value(depth + 1)?;
            }
            self.skip(4)?;
            for _ in 0..self.version.tables {
                self.value(depth + 1)?;
            }
        }
        Some(Code { instructions, constants, names })
    }
}

/// What these instructions import. Before a module is imported, its level and a tuple of the names are put on the stack.
fn imported<'a>(
    instructions: &[u8],
    constants: &[Value<'a>],
    names: &[&'a [u8]],
    numbers: Numbers,
) -> Vec<Import<'a>> {
    let mut found: Vec<Import<'a>> = Vec::new();
    let mut high = 0_usize;
    let mut loaded = [None; 2];
    for [number, argument] in instructions.as_chunks().0 {
        let argument = high << 8 | usize::from(*argument);
        high = 0;
        match *number {
            number if number == numbers.extended => high = argument,
            number if number == numbers.load_const => {
                let [_, last] = loaded;
                loaded = [last, constants.get(argument)];
            }
            number if number == numbers.import_name => {
                let level = if let [Some(Value::Number(level)), _] = loaded { Some(*level) } else { None };
                let import = |module: &&'a [u8]| Import { level, module, names: Rc::default() };
                found.extend(names.get(argument).map(import));
            }
            number if number == numbers.import_from => {
                if let (Some(import), Some(name)) = (found.last_mut(), names.get(argument)) {
                    Rc::make_mut(&mut import.names).push(name);
                }
            }
            _ => {}
        }
    }
    found
}

/// Everything that may be an import: all names, and all that may be taken of them.
fn all<'a>(texts: impl Iterator<Item = &'a [u8]>, names: &[&'a [u8]]) -> Vec<Import<'a>> {
    let taken: Rc<Vec<&[u8]>> = Rc::new(texts.filter(|text| !text.is_empty()).collect());
    let own: &[u8] = &[];
    let modules = names.iter().copied().chain([own]);
    modules.map(|module| Import { level: None, module, names: Rc::clone(&taken) }).collect()
}

#[cfg(test)]
mod tests;
