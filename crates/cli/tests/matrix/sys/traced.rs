//! Makes system calls in a thread of another process, as code that was brought into it would.
#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// Bytes of the instruction `syscall`, at which a thread that waits in a call has stopped.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Room below the stack that no code of the thread uses.
const BELOW: u64 = 8 << 10;
/// Largest errno of a returned number.
const ERRNO_MAX: i64 = 4095;

/// Argument of a system call.
pub(crate) enum Argument<'a> {
    Number(i64),
    /// Bytes that are copied to the memory of the thread.
    Bytes(&'a [u8]),
}

/// A thread that is stopped in a system call. It goes on with that call when this is dropped.
pub(crate) struct Traced {
    thread: i32,
    memory: File,
    registers: libc::user_regs_struct,
}

impl Traced {
    /// Stops a thread; an error if this process may not do that.
    pub(crate) fn stop(thread: i32) -> io::Result<Self> {
        trace(libc::PTRACE_SEIZE, thread, 0)?;
        trace(libc::PTRACE_INTERRUPT, thread, 0)?;
        wait(thread)?;
        let memory = File::options().read(true).write(true).open(format!("/proc/{thread}/mem"))?;
        // SAFETY: a structure of plain numbers, which may be zero.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        trace(libc::PTRACE_GETREGS, thread, (&raw mut registers) as usize)?;
        let traced = Self { thread, memory, registers };
        let mut code = [0; 2];
        traced.memory.read_exact_at(&mut code, registers.rip - 2)?;
        if code == SYSCALL { Ok(traced) } else { Err(io::Error::other("the thread waits in no system call")) }
    }

    /// Makes the thread call the kernel.
    pub(crate) fn call(&self, number: i64, arguments: &[Argument<'_>]) -> io::Result<i64> {
        let mut registers = self.registers;
        registers.rip -= 2;
        registers.rax = number.cast_unsigned();
        // The interrupted call is not started again in between.
        registers.orig_rax = u64::MAX;
        let mut at = (self.registers.rsp - BELOW) & !63;
        let mut values = [0_u64; 6];
        for (value, argument) in values.iter_mut().zip(arguments) {
            *value = match argument {
                Argument::Number(number) => number.cast_unsigned(),
                Argument::Bytes(bytes) => {
                    self.memory.write_all_at(bytes, at)?;
                    let place = at;
                    at += (bytes.len() as u64).next_multiple_of(64);
                    place
                }
            };
        }
        [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9] = values;
        trace(libc::PTRACE_SETREGS, self.thread, (&raw const registers) as usize)?;
        trace(libc::PTRACE_SINGLESTEP, self.thread, 0)?;
        wait(self.thread)?;
        trace(libc::PTRACE_GETREGS, self.thread, (&raw mut registers) as usize)?;
        let returned = registers.rax.cast_signed();
        match i32::try_from(-returned) {
            Ok(errno) if (1..=ERRNO_MAX).contains(&i64::from(errno)) => {
                Err(io::Error::from_raw_os_error(errno))
            }
            _ => Ok(returned),
        }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let _ = trace(libc::PTRACE_SETREGS, self.thread, (&raw const self.registers) as usize);
        let _ = trace(libc::PTRACE_DETACH, self.thread, 0);
    }
}

fn trace(request: libc::c_uint, thread: i32, data: usize) -> io::Result<()> {
    // SAFETY: the data is zero, or the address of registers of ours, which live until this returns.
    let done = unsafe { libc::ptrace(request, thread, 0_usize, data) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn wait(thread: i32) -> io::Result<()> {
    let mut status = 0;
    // SAFETY: the status is ours.
    let waited = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
    if waited != thread {
        return Err(io::Error::last_os_error());
    }
    if libc::WIFSTOPPED(status) { Ok(()) } else { Err(io::Error::other("the thread has ended")) }
}
