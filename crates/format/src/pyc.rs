//! Finds the imports of a compiled Python module.
//!
//! A `.pyc` file has a magic number of the interpreter's version, twelve bytes about its source, and a code
//! object in the format of the module `marshal` (CPython, `Python/marshal.c`; PEP 552 describes the twelve
//! bytes). Only code that runs at import time matters, so code of functions is only skipped. Instructions
//! show which of a code object's names are imported; their numbers change between versions. For a version
//! with unknown numbers, all names may be those of modules.

use std::rc::Rc;

/// Length of the header in bytes: the magic number and the twelve bytes about the source.
const HEADER_LEN: usize = 16;
/// Maximum nesting of code in code, and of tuples in tuples.
const DEPTH_MAX: usize = 48;
/// Type bit of objects that later objects may refer to.
const REF_FLAG: u8 = 0x80;

/// An import of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import<'a> {
    /// Number of package levels above the importer, with 1 for the importer's own package; 0 for an absolute
    /// import, none if unknown.
    pub level: Option<u32>,
    /// Dotted name of the module; empty for the package itself, as in `from . import names`.
    pub module: &'a [u8],
    /// Imported names, which may be modules as well.
    pub names: Rc<Vec<&'a [u8]>>,
}

/// Returns the imports of a compiled module in order; none if the file has another or an unknown format.
pub fn imports(file: &[u8]) -> Option<Vec<Import<'_>>> {
    let (header, body) = file.split_at_checked(HEADER_LEN)?;
    let [low, high, b'\r', b'\n', ..] = *header else { return None };
    let version = Version::of(u16::from_le_bytes([low, high]))?;
    let mut reader = Reader { rest: body, version, items: Vec::new(), referable: Vec::new() };
    let kind = reader.byte()?;
    if kind & !REF_FLAG != b'c' {
        return None;
    }
    if kind & REF_FLAG != 0 {
        reader.reserve_reference();
    }
    let Code { instructions, constants, names } = reader.code(0)?;
    let names: Vec<&[u8]> = reader.texts(names).collect();
    let constants = reader.items(constants);
    Some(match version.numbers {
        Some(numbers) => imported(instructions, constants, &names, numbers),
        None => {
            // The same tuple may occur in any number of constants, so the total is limited to what the file
            // could hold.
            let texts = constants.iter().flat_map(|constant| reader.texts(*constant)).take(file.len());
            all(texts, &names)
        }
    })
}

/// Format differences between versions of the interpreter.
#[derive(Clone, Copy, Debug)]
struct Version {
    /// Number of integers at the start of a code object.
    counts: usize,
    /// Number of tables of lines and exceptions at its end.
    tables: usize,
    numbers: Option<Numbers>,
}

/// Numbers of instructions.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    load_const: u8,
    import_name: u8,
    import_from: u8,
    extended: u8,
}

impl Version {
    /// Returns the format of a magic number. Sources: CPython's `Lib/importlib/_bootstrap_external.py` for
    /// magic numbers, its `Lib/opcode.py` for instructions.
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

/// Parts of a marshalled object that are needed.
#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    Bytes(&'a [u8]),
    Text(&'a [u8]),
    Number(u32),
    /// Index and number of the tuple's items in the reader's list.
    Tuple(usize, usize),
    Other,
}

/// A code object.
struct Code<'a> {
    instructions: &'a [u8],
    constants: Value<'a>,
    names: Value<'a>,
}

/// Parser of marshalled objects.
struct Reader<'a> {
    rest: &'a [u8],
    version: Version,
    /// Items of all tuples. Tuples may refer to each other in chains of any length, so none owns another.
    items: Vec<Value<'a>>,
    /// Objects that later objects can refer to, by number.
    referable: Vec<Value<'a>>,
}

impl<'a> Reader<'a> {
    fn items(&self, value: Value<'a>) -> &[Value<'a>] {
        let Value::Tuple(start, len) = value else { return &[] };
        self.items.get(start..start + len).unwrap_or_default()
    }

    /// Returns the texts of a tuple. Other items become empty texts, so that positions stay the same.
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

    /// Reserves the number of a referable object, which is assigned before its content is read.
    fn reserve_reference(&mut self) -> usize {
        self.referable.push(Value::Other);
        self.referable.len() - 1
    }

    fn value(&mut self, depth: usize) -> Option<Value<'a>> {
        if depth > DEPTH_MAX {
            return None;
        }
        let kind = self.byte()?;
        let place = (kind & REF_FLAG != 0).then(|| self.reserve_reference());
        let value = match kind & !REF_FLAG {
            b'0' | b'N' | b'F' | b'T' | b'S' | b'.' => Value::Other,
            b'i' => Value::Number(self.number()?),
            b'I' | b'g' => self.skip(8)?,
            b'y' => self.skip(16)?,
            b'l' => {
                // 15-bit digits; the sign of their count is the sign of the number.
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
                *self.referable.get(number)?
            }
            _ => return None,
        };
        if let Some(place) = place {
            *self.referable.get_mut(place)? = value;
        }
        Some(value)
    }

    fn skip(&mut self, len: usize) -> Option<Value<'a>> {
        self.take(len).map(|_| Value::Other)
    }

    fn tuple(&mut self, len: usize, depth: usize) -> Option<Value<'a>> {
        // Each item takes at least a byte.
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

/// Returns the imports of these instructions. Before an import, its level and a tuple of names are pushed on
/// the stack.
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

/// Returns all possible imports: all names, and all texts that may be imported names.
fn all<'a>(texts: impl Iterator<Item = &'a [u8]>, names: &[&'a [u8]]) -> Vec<Import<'a>> {
    let taken: Rc<Vec<&[u8]>> = Rc::new(texts.filter(|text| !text.is_empty()).collect());
    let own: &[u8] = &[];
    let modules = names.iter().copied().chain([own]);
    modules.map(|module| Import { level: None, module, names: Rc::clone(&taken) }).collect()
}

#[cfg(test)]
mod tests;
