//! Serves again what a killed process had read and not answered.
//!
//! Every request is in a slot of the memory file from the moment on at which the kernel has handed it out, and all of
//! them may be served twice: trees are read-only, and the kernel refuses a second reply with `ENOENT`.
//!
//! * Lookups are counted before their reply is written. A process killed in between leaves a node with one lookup more
//!   than the kernel knows of, which is kept until it is unmounted; never one with less, which the kernel would still use.
//! * A FORGET is marked as served before anything is subtracted, for the same reason.
//!
//! Kernels since 6.9 are asked to send all unanswered requests again instead. Older kernels accept a reply only on the
//! descriptor that the request was read from, so the descriptors of all workers outlive their process.

use std::sync::Arc;

use crate::abi::{InHeader, notify, opcode};
use crate::connection::Connection;
use crate::shared_memory::Slot;
use crate::sys::read_plain;

impl Connection {
    /// Takes the requests that a previous process left. To be called before any worker reads.
    pub(crate) fn take_left_over(&self) -> Vec<(Slot, usize)> {
        let mut left_over = self.table.memory().left_over();
        let is_forget = |slot: &Slot| {
            let header = read_plain::<InHeader>(slot.request()).unwrap_or_default();
            matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET)
        };
        if self.negotiated.resends() && self.channels[0].notify_bare(notify::RESEND).is_ok() {
            // The kernel doesn't wait for these, so it doesn't send them again.
            left_over.retain(|(slot, _)| is_forget(slot));
        }
        left_over
    }

    /// Serves the requests that a previous process left.
    pub(crate) fn serve_all_left_over(self: &Arc<Self>, left_over: Vec<(Slot, usize)>) {
        for (slot, channel) in left_over {
            if let Some(channel) = self.channels.get(channel) {
                self.serve_left_over(channel, slot);
            }
        }
    }
}
