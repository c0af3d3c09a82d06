//! Privileges of the supervisor of a mount of root.
//!
//! A supervisor keeps descriptors, passes messages and starts programs; none of it needs a capability. Its bounding set is that of a
//! mount, so the daemons that it starts as root have those of a mount again: execve(2) gives them to root.

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::process::geteuid;
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, capabilities_secure_bits,
    no_new_privs, set_capabilities,
};

use super::privileges::{OF_A_MOUNT, bound};

/// Gives up the capabilities of this process, which starts daemons. It keeps them all where its children would have none
/// either: `no_new_privs`, or root without the privileges of root.
pub(crate) fn give_up() -> rustix::io::Result<()> {
    let keeps = no_new_privs()? || capabilities_secure_bits()?.contains(CapabilitiesSecureBits::NO_ROOT);
    if !geteuid().is_root() || keeps {
        return Ok(());
    }
    let before = capabilities(None)?;
    bound(before.effective, OF_A_MOUNT)?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, inheritable: none, ..before })?;
    let kept = needed() & before.permitted;
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: none })
}

/// Returns the capabilities without which this process can't do its work on this machine; called without any.
fn needed() -> CapabilitySet {
    let mut needed = CapabilitySet::empty();
    // The processes that send requests are looked at, and may be hidden (`hidepid`). Process 1 is always there.
    needed.set(CapabilitySet::SYS_PTRACE, !std::path::Path::new("/proc/1").exists());
    // The program may be executable for its owner alone, which need not be root.
    let may_run = accessat(CWD, "/proc/self/exe", Access::EXEC_OK, AtFlags::EACCESS);
    needed.set(CapabilitySet::DAC_OVERRIDE, may_run.is_err());
    needed
}
