//! The filter of system calls of a contained command: it types nothing into the caller's terminal, and uses no keys.
//!
//! All other calls are allowed. Programs of all machine types that a kernel runs are covered.

use libc::sock_filter;

/// Requests by which a program types into its terminal: `TIOCSTI`, and `TIOCLINUX` of the console.
const TYPING: [u32; 2] = [0x5412, 0x541c];
/// Bit of the numbers of x32 programs, which the kernel reports with those of x86-64.
const X32: u32 = 0x4000_0000;

/// A machine type, with its numbers of system calls.
struct Machine {
    /// Number of the type (`AUDIT_ARCH_*`).
    arch: u32,
    ioctl: &'static [u32],
    /// `add_key`, `request_key`, `keyctl`.
    keys: [u32; 3],
}

const MACHINES: [Machine; 6] = [
    // x86-64 and x32, i386.
    Machine { arch: 0xc000_003e, ioctl: &[16, X32 | 514], keys: [248, 249, 250] },
    Machine { arch: 0x4000_0003, ioctl: &[54], keys: [286, 287, 288] },
    // AArch64, ARM.
    Machine { arch: 0xc000_00b7, ioctl: &[29], keys: [217, 218, 219] },
    Machine { arch: 0x4000_0028, ioctl: &[54], keys: [309, 310, 311] },
    // RISC-V of 64 and 32 bits.
    Machine { arch: 0xc000_00f3, ioctl: &[29], keys: [217, 218, 219] },
    Machine { arch: 0x4000_00f3, ioctl: &[29], keys: [217, 218, 219] },
];

/// Offsets in the kernel's description of a call; of the second argument the lower half, which is all that the kernel uses.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const REQUEST: u32 = 24;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

/// Returns the filter.
pub(super) fn program(may_type: bool, may_use_keys: bool) -> Vec<sock_filter> {
    let mut program = vec![load(ARCH)];
    for machine in &MACHINES {
        let block = block(machine, may_type, may_use_keys);
        program.push(if_equal(machine.arch, 0, block.len()));
        program.extend(block);
    }
    program.push(answer(ALLOW));
    program
}

/// Returns the part for one machine type, which decides about each call.
fn block(machine: &Machine, may_type: bool, may_use_keys: bool) -> Vec<sock_filter> {
    let mut block = vec![load(NUMBER)];
    if !may_use_keys {
        // Programs of x32 have the same ones, with their bit.
        for key in machine.keys.into_iter().flat_map(|key| [key, X32 | key]) {
            block.extend([if_equal(key, 0, 1), answer(REFUSE)]);
        }
    }
    if !may_type {
        for ioctl in machine.ioctl {
            let mut request = vec![load(REQUEST)];
            for typing in TYPING {
                request.extend([if_equal(typing, 0, 1), answer(REFUSE)]);
            }
            request.push(answer(ALLOW));
            block.push(if_equal(*ioctl, 0, request.len()));
            block.extend(request);
        }
    }
    block.push(answer(ALLOW));
    block
}

fn load(offset: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: offset }
}

/// Goes on after `yes` instructions if the loaded word is `value`, otherwise after `no`.
fn if_equal(value: u32, yes: usize, no: usize) -> sock_filter {
    let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    // A block has a few dozen instructions.
    sock_filter { code, jt: yes as u8, jf: no as u8, k: value }
}

fn answer(answer: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: answer }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel does.
    fn answer_to(program: &[sock_filter], arch: u32, number: u32, request: u32) -> u32 {
        let (mut at, mut loaded) = (0usize, 0u32);
        loop {
            let step = program[at];
            at += 1;
            match u32::from(step.code) & 7 {
                libc::BPF_LD => {
                    loaded = match step.k {
                        NUMBER => number,
                        ARCH => arch,
                        REQUEST => request,
                        other => panic!("no word at {other}"),
                    }
                }
                libc::BPF_JMP => at += usize::from(if loaded == step.k { step.jt } else { step.jf }),
                _ => return step.k,
            }
        }
    }

    #[test]
    fn typing_and_keys_are_refused_on_all_machines_unless_they_are_shared() {
        for (may_type, may_use_keys) in [(false, false), (true, false), (false, true), (true, true)] {
            let program = program(may_type, may_use_keys);
            assert!(program.len() < 4096, "the kernel's limit");
            for machine in &MACHINES {
                let answers = |number, request| answer_to(&program, machine.arch, number, request) == ALLOW;
                for ioctl in machine.ioctl {
                    assert_eq!(answers(*ioctl, 0x5412), may_type);
                    assert_eq!(answers(*ioctl, 0x541c), may_type);
                    assert!(answers(*ioctl, 0x5401), "TCGETS");
                }
                for key in machine.keys {
                    assert_eq!(answers(key, 0x5412), may_use_keys);
                }
                assert!(answers(1, 0x5412));
            }
        }
    }
}
