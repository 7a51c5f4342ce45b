//! Capabilities: which parts of root's power the calling thread has, and giving them up.
//!
//! Linux keeps them per thread. A thread starts with those of the thread that started it.

use std::io;

use crate::sys::capability::{capget, capset, set_no_new_privileges};

/// A capability of Linux that hairpin uses. The values are the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Capability {
    /// CAP_DAC_OVERRIDE: read and write any file.
    DacOverride = 1,
    /// CAP_DAC_READ_SEARCH: read any file.
    DacReadSearch = 2,
    /// CAP_NET_ADMIN: attach programs to interfaces, ask about neighbours, large socket buffers.
    NetAdmin = 12,
    /// CAP_SYS_ADMIN: nearly everything.
    SysAdmin = 21,
    /// CAP_PERFMON (Linux 5.8): let BPF programs calculate with pointers.
    Perfmon = 38,
    /// CAP_BPF (Linux 5.8): load BPF programs and make their tables.
    Bpf = 39,
}

impl Capability {
    /// Its name as setcap(8) spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Capability::DacOverride => "cap_dac_override",
            Capability::DacReadSearch => "cap_dac_read_search",
            Capability::NetAdmin => "cap_net_admin",
            Capability::SysAdmin => "cap_sys_admin",
            Capability::Perfmon => "cap_perfmon",
            Capability::Bpf => "cap_bpf",
        }
    }

    const fn bit(self) -> u64 {
        1 << self as u32
    }
}

/// Whether this capability of the calling thread is effective.
#[must_use]
pub fn has(capability: Capability) -> bool {
    held() & capability.bit() != 0
}

/// Whether any capability of the calling thread is effective.
#[must_use]
pub fn any() -> bool {
    held() != 0
}

fn held() -> u64 {
    capget().map_or(0, |[low, high]| {
        u64::from(high.effective) << 32 | u64::from(low.effective)
    })
}

/// Makes every permitted capability of the calling thread effective. A program file with permitted capabilities starts
/// without effective ones. Threads that exist keep theirs.
///
/// # Errors
/// What `capget` and `capset` return; a strict seccomp filter may refuse them.
pub fn use_permitted() -> io::Result<()> {
    let mut sets = capget()?;
    for half in &mut sets {
        half.effective |= half.permitted;
    }
    capset(&sets)
}

/// Permanently drops every capability of the calling thread except those in `kept`. Programs that it starts cannot gain
/// any. Other threads keep theirs, unless they are started by this one from now on.
///
/// # Errors
/// What `capset` and `prctl` return; a strict seccomp filter may refuse them.
pub fn keep_only(kept: &[Capability]) -> io::Result<()> {
    let kept = kept.iter().fold(0, |bits, one| bits | one.bit());
    let mut sets = capget()?;
    for (half, kept) in sets.iter_mut().zip([kept as u32, (kept >> 32) as u32]) {
        half.effective &= kept;
        half.permitted &= kept;
        half.inheritable = 0;
    }
    set_no_new_privileges()?;
    capset(&sets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permitted_capabilities_can_be_made_effective() {
        let work = move || {
            let before = held();
            let mut sets = capget().unwrap();
            sets.iter_mut().for_each(|half| half.effective = 0);
            capset(&sets).unwrap();
            assert!(!any());
            use_permitted().unwrap();
            assert_eq!(held(), before);
        };
        std::thread::spawn(work).join().unwrap();
    }

    #[test]
    fn a_thread_drops_capabilities_for_itself_and_its_children_only() {
        let before = held();
        let work = move || {
            keep_only(&[Capability::NetAdmin]).unwrap();
            assert_eq!(held() & !Capability::NetAdmin.bit(), 0);
            assert_eq!(
                has(Capability::NetAdmin),
                before & Capability::NetAdmin.bit() != 0
            );
            keep_only(&[]).unwrap();
            assert!(!any());
            std::thread::spawn(|| assert!(!any())).join().unwrap();
            assert!(
                keep_only(&[Capability::Bpf]).is_ok() && !any(),
                "nothing comes back"
            );
        };
        std::thread::spawn(work).join().unwrap();
        assert_eq!(held(), before);
    }
}
