//! What a kernel offers, and a mask that makes a new kernel look like an old one.

/// Hides what kernels newer than a given one brought, so that the paths of an old kernel can be tested on a
/// new one (and used, should a new feature misbehave).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelMask {
    minor: u32,
}

impl KernelMask {
    /// Linux 4.18 (RHEL 8): protocol 7.27, before cached listings and symlinks.
    pub const LINUX_4_18: Self = Self { minor: 27 };
    /// Linux 5.14 (RHEL 9): protocol 7.34.
    pub const LINUX_5_14: Self = Self { minor: 34 };
    /// Linux 6.18: protocol 7.45, everything this crate knows.
    pub const LINUX_6_18: Self = Self { minor: 45 };

    /// The newest protocol minor that is not hidden.
    pub const fn minor(self) -> u32 {
        self.minor
    }
}

impl Default for KernelMask {
    fn default() -> Self {
        Self::LINUX_6_18
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
