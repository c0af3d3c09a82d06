//! LZO1X decoder, written from the description of its stream.
//!
//! A stream is a sequence of instructions. The value of an instruction's first byte gives the length and the
//! distance of a copy from earlier output; its last bits, or those of its operand, give the number of literal
//! bytes (0 to 3) that follow. The meaning of an instruction below 16 depends on this number of the
//! instruction before, which is the only state.

/// Reasons why an LZO stream can't be decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LzoError {
    #[error("the LZO stream is cut short")]
    Short,
    #[error("the LZO stream is longer than the block may be")]
    Long,
    #[error("the LZO stream points before its beginning")]
    Distance,
    #[error("bytes follow the end of the LZO stream")]
    Rest,
}

/// Kind of the preceding instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// A match followed by this many literal bytes.
    Match(usize),
    /// A run of four or more literal bytes.
    Run,
}

/// A copy of earlier output.
struct Match {
    distance: usize,
    len: usize,
    /// Number of literal bytes that follow the match.
    trailing: usize,
}

struct Stream<'a> {
    input: &'a [u8],
    output: &'a mut [u8],
    filled: usize,
}

/// Decompresses a whole stream and returns the length of the output.
pub(super) fn decompress(input: &[u8], output: &mut [u8]) -> Result<usize, LzoError> {
    let mut stream = Stream { input, output, filled: 0 };
    let mut before = stream.beginning()?;
    loop {
        let instruction = stream.byte()?;
        if instruction < 16 && before == Before::Match(0) {
            let run = stream.length(instruction, 15)? + 3;
            stream.plain(run)?;
            before = Before::Run;
            continue;
        }
        let Some(found) = stream.found(instruction, before)? else { break };
        stream.repeat(found.distance, found.len)?;
        stream.plain(found.trailing)?;
        before = Before::Match(found.trailing);
    }
    if !stream.input.is_empty() {
        return Err(LzoError::Rest);
    }
    Ok(stream.filled)
}

impl Stream<'_> {
    /// Decodes the first instruction. A first byte above 17 starts a literal run, because there is nothing to copy
    /// yet.
    fn beginning(&mut self) -> Result<Before, LzoError> {
        let Some(first @ 18..) = self.input.first().copied() else { return Ok(Before::Match(0)) };
        self.byte()?;
        let run = usize::from(first - 17);
        self.plain(run)?;
        Ok(if run < 4 { Before::Match(run) } else { Before::Run })
    }

    /// Returns the match that an instruction encodes; none at the end of the stream.
    fn found(&mut self, instruction: u8, before: Before) -> Result<Option<Match>, LzoError> {
        let bits = usize::from(instruction);
        Ok(Some(match instruction {
            64.. => {
                let distance = (bits >> 2 & 7) + (usize::from(self.byte()?) << 3) + 1;
                Match { distance, len: (bits >> 5) + 1, trailing: bits & 3 }
            }
            32.. => {
                let len = self.length(instruction & 31, 31)? + 2;
                let (distance, trailing) = self.operand()?;
                Match { distance: distance + 1, len, trailing }
            }
            16.. => {
                let len = self.length(instruction & 7, 7)? + 2;
                let (distance, trailing) = self.operand()?;
                let distance = distance + ((bits & 8) << 11);
                if distance == 0 {
                    return Ok(None);
                }
                Match { distance: distance + 0x4000, len, trailing }
            }
            _ => {
                let near = (bits >> 2) + (usize::from(self.byte()?) << 2) + 1;
                let (distance, len) = if before == Before::Run { (near + 0x800, 3) } else { (near, 2) };
                Match { distance, len, trailing: bits & 3 }
            }
        }))
    }

    fn byte(&mut self) -> Result<u8, LzoError> {
        let (first, rest) = self.input.split_first().ok_or(LzoError::Short)?;
        self.input = rest;
        Ok(*first)
    }

    /// Returns a length, which continues in further bytes if its bits are all zero.
    fn length(&mut self, bits: u8, most: usize) -> Result<usize, LzoError> {
        if bits != 0 {
            return Ok(usize::from(bits));
        }
        let zeros = self.input.iter().take_while(|byte| **byte == 0).count();
        self.input = self.input.get(zeros..).ok_or(LzoError::Short)?;
        Ok(zeros * 255 + most + usize::from(self.byte()?))
    }

    /// Reads two bytes that hold a distance and the number of literal bytes that follow.
    fn operand(&mut self) -> Result<(usize, usize), LzoError> {
        let word = usize::from(u16::from_le_bytes([self.byte()?, self.byte()?]));
        Ok((word >> 2, word & 3))
    }

    fn plain(&mut self, len: usize) -> Result<(), LzoError> {
        let (bytes, rest) = self.input.split_at_checked(len).ok_or(LzoError::Short)?;
        let to = self.output.get_mut(self.filled..self.filled + len).ok_or(LzoError::Long)?;
        to.copy_from_slice(bytes);
        self.input = rest;
        self.filled += len;
        Ok(())
    }

    /// Copies `len` bytes from `distance` bytes back. Source and target may overlap, which repeats a pattern.
    fn repeat(&mut self, distance: usize, len: usize) -> Result<(), LzoError> {
        let from = self.filled.checked_sub(distance).ok_or(LzoError::Distance)?;
        if len > self.output.len() - self.filled {
            return Err(LzoError::Long);
        }
        let end = self.filled + len;
        while self.filled < end {
            // Each round doubles the length of the pattern that can be copied.
            let piece = (self.filled - from).min(end - self.filled);
            self.output.copy_within(from..from + piece, self.filled);
            self.filled += piece;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decompressed(input: &[u8]) -> Result<Vec<u8>, LzoError> {
        let mut output = [0; 64];
        decompress(input, &mut output).map(|len| output[..len].to_vec())
    }

    const END: [u8; 3] = [17, 0, 0];

    #[test]
    fn each_kind_of_instruction_is_decoded() {
        // Four literal bytes, then three bytes copied from four bytes back, then the end.
        let stream = [&[17 + 4][..], b"abcd", &[0b0100_1100, 0], &END].concat();
        assert_eq!(decompressed(&stream).unwrap(), b"abcdabc");
        // A pattern: one literal byte, repeated twelve times.
        let stream = [&[17 + 1][..], b"x", &[32 + 10, 0, 0], &END].concat();
        assert_eq!(decompressed(&stream).unwrap(), b"xxxxxxxxxxxxx");
        // A match followed by literal bytes.
        let stream = [&[17 + 4][..], b"abcd", &[0b0100_1110, 0], b"yz", &END].concat();
        assert_eq!(decompressed(&stream).unwrap(), b"abcdabcyz");
    }

    #[test]
    fn each_kind_of_damage_has_its_own_error() {
        assert_eq!(decompressed(&[]), Err(LzoError::Short));
        assert_eq!(decompressed(&[17 + 4, b'a']), Err(LzoError::Short));
        assert_eq!(decompressed(&[17 + 1, b'x', 32 + 10, 4, 0]), Err(LzoError::Distance));
        assert_eq!(decompressed(&[17 + 1, b'x', 32, 200, 0, 0]), Err(LzoError::Long));
        assert_eq!(decompressed(&[17, 0, 0, 9]), Err(LzoError::Rest));
        assert_eq!(decompressed(&[32, 0, 0, 0, 0]), Err(LzoError::Short));
    }
}
