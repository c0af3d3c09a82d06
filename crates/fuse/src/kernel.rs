//! Capabilities of a kernel, and a mask that makes a new kernel look like an old one.

use crate::abi::{self, InitIn, InitOut, init};
use crate::shared_memory::MAX_WRITE;

/// Hides capabilities newer than a given kernel, so that the code for old kernels can be tested on a new one (and
/// used, should a new feature misbehave).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelMask {
    minor: u32,
}

impl KernelMask {
    /// Linux 4.18 (RHEL 8): protocol 7.27, before cached listings and symlinks.
    pub const LINUX_4_18: Self = Self { minor: 27 };
    /// Linux 5.14 (RHEL 9): protocol 7.34.
    pub const LINUX_5_14: Self = Self { minor: 34 };
    /// Linux 6.18: protocol 7.45, the newest supported version.
    pub const LINUX_6_18: Self = Self { minor: abi::MINOR };

    /// Returns the newest protocol minor that is not hidden.
    pub const fn minor(self) -> u32 {
        self.minor
    }
}

impl Default for KernelMask {
    fn default() -> Self {
        Self::LINUX_6_18
    }
}

impl std::fmt::Display for KernelMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match *self {
            Self::LINUX_4_18 => "4.18",
            Self::LINUX_5_14 => "5.14",
            _ => "6.18",
        })
    }
}

impl std::str::FromStr for KernelMask {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "4.18" => Ok(Self::LINUX_4_18),
            "5.14" => Ok(Self::LINUX_5_14),
            "6.18" => Ok(Self::LINUX_6_18),
            other => Err(format!("unknown kernel {other:?}: 4.18, 5.14 and 6.18 are known")),
        }
    }
}

/// Flags to request where the kernel offers them, and their minor versions.
const WANTED: [(u64, u32); 14] = [
    (init::ASYNC_READ, 6),
    (init::EXPORT_SUPPORT, 10),
    (init::DO_READDIRPLUS, 21),
    (init::READDIRPLUS_AUTO, 21),
    (init::ASYNC_DIO, 22),
    (init::NO_OPEN_SUPPORT, 23),
    (init::PARALLEL_DIROPS, 25),
    (init::MAX_PAGES, 28),
    (init::CACHE_SYMLINKS, 28),
    (init::NO_OPENDIR_SUPPORT, 29),
    (init::EXPLICIT_INVAL_DATA, 30),
    (init::INIT_EXT, 36),
    (init::HAS_EXPIRE_ONLY, 38),
    (init::HAS_RESEND, 40),
];

/// First minor version with cached listings; there is no flag for it.
const CACHE_DIR_SINCE: u32 = 28;
/// First minor version with epochs; there is no flag for it.
const EPOCH_SINCE: u32 = 44;

/// Maximum value of the protocol's field. At the kernel's default of 12, twelve readahead requests that wait
/// for a dead server make every other read wait.
const MAX_BACKGROUND: u16 = u16::MAX;

/// The largest READ: the kernel's own limit of 256 pages of 4 KiB.
const MAX_READ: usize = 1 << 20;

/// Protocol version and flags negotiated with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Negotiated {
    pub(crate) minor: u32,
    pub(crate) flags: u64,
    pub(crate) max_pages: u16,
    max_readahead: u32,
}

impl Negotiated {
    /// Negotiates the flags that `offer` and the mask both allow. With `acls` the kernel enforces access control
    /// lists.
    pub(crate) fn reach(offer: &InitIn, flags2: u32, mask: KernelMask, acls: bool) -> Self {
        let minor = offer.minor.min(mask.minor);
        let extended = if offer.flags & init::INIT_EXT as u32 != 0 { flags2 } else { 0 };
        let offered = u64::from(offer.flags) | u64::from(extended) << 32;
        let wanted = WANTED.iter().filter(|(_, since)| *since <= minor).map(|(flag, _)| flag);
        let acls = if acls { init::POSIX_ACL } else { 0 };
        let flags = offered & wanted.fold(acls, |all, flag| all | flag);
        let pages = MAX_READ / rustix::param::page_size();
        // The kernel takes at most 256 pages and at least one; larger pages need fewer.
        let max_pages = if flags & init::MAX_PAGES != 0 { pages.clamp(1, 256) as u16 } else { 0 };
        Self { minor, flags, max_pages, max_readahead: offer.max_readahead }
    }

    /// Returns what a previous process negotiated on the same connection.
    pub(crate) const fn again(minor: u32, flags: u64, max_pages: u16) -> Self {
        Self { minor, flags, max_pages, max_readahead: 0 }
    }

    /// Returns the reply to INIT.
    pub(crate) fn answer(&self) -> InitOut {
        InitOut {
            major: abi::MAJOR,
            minor: self.minor,
            max_readahead: self.max_readahead,
            flags: self.flags as u32,
            max_background: MAX_BACKGROUND,
            congestion_threshold: MAX_BACKGROUND,
            max_write: MAX_WRITE,
            time_gran: 1,
            max_pages: self.max_pages,
            flags2: (self.flags >> 32) as u32,
            ..InitOut::default()
        }
    }

    const fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    /// Returns true if OPEN may be replied to with ENOSYS, which the kernel remembers.
    pub(crate) const fn no_open(&self) -> bool {
        self.has(init::NO_OPEN_SUPPORT)
    }

    /// Returns true if OPENDIR may be replied to with ENOSYS, which the kernel remembers.
    pub(crate) const fn no_opendir(&self) -> bool {
        self.has(init::NO_OPENDIR_SUPPORT)
    }

    /// Returns true if listings may be cached.
    pub(crate) const fn caches_listings(&self) -> bool {
        self.minor >= CACHE_DIR_SINCE
    }

    /// Returns true if the kernel can expire all names at once.
    pub(crate) const fn has_epochs(&self) -> bool {
        self.minor >= EPOCH_SINCE
    }

    /// Returns true if the kernel enforces access control lists.
    pub(crate) const fn enforces_acls(&self) -> bool {
        self.has(init::POSIX_ACL)
    }

    /// Returns true if the kernel can send again all requests that are not answered.
    pub(crate) const fn resends(&self) -> bool {
        self.has(init::HAS_RESEND)
    }

    /// Returns whether a name can be expired without being removed.
    pub(crate) const fn can_expire(&self) -> bool {
        self.has(init::HAS_EXPIRE_ONLY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(minor: u32) -> InitIn {
        InitIn { major: 7, minor, max_readahead: 131_072, flags: u32::MAX }
    }

    #[test]
    fn a_mask_hides_what_its_kernel_did_not_have() {
        let old = Negotiated::reach(&offer(45), u32::MAX, KernelMask::LINUX_4_18, false);
        assert!(old.no_open() && !old.no_opendir() && !old.caches_listings() && !old.has_epochs());
        assert!(!old.has(init::CACHE_SYMLINKS) && old.max_pages == 0 && old.answer().flags2 == 0);
        let middle = Negotiated::reach(&offer(45), u32::MAX, KernelMask::LINUX_5_14, false);
        assert!(middle.no_opendir() && middle.caches_listings() && middle.has(init::CACHE_SYMLINKS));
        assert!(!middle.has_epochs() && !middle.can_expire());
        let new = Negotiated::reach(&offer(45), u32::MAX, KernelMask::LINUX_6_18, false);
        assert!(new.has_epochs() && new.can_expire() && new.answer().minor == 45);
    }

    #[test]
    fn access_control_lists_are_enforced_if_requested_and_offered() {
        let reach =
            |offer: &InitIn, acls| Negotiated::reach(offer, 0, KernelMask::LINUX_4_18, acls).enforces_acls();
        let without = InitIn { flags: !(init::POSIX_ACL as u32), ..offer(45) };
        assert_eq!(
            (reach(&offer(45), true), reach(&offer(45), false), reach(&without, true)),
            (true, false, false)
        );
    }

    #[test]
    fn only_offered_capabilities_are_negotiated() {
        let bare = InitIn { flags: init::PARALLEL_DIROPS as u32, ..offer(27) };
        let agreed = Negotiated::reach(&bare, u32::MAX, KernelMask::LINUX_6_18, false);
        assert_eq!(agreed.flags, init::PARALLEL_DIROPS, "flags2 counts only with INIT_EXT");
        assert!(!agreed.no_open() && agreed.minor == 27);
        assert_eq!(agreed.answer().max_background, 65_535);
    }
}
