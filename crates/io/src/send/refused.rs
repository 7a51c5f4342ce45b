//! Destinations towards which GSO was refused: of some size, or altogether.
//!
//! A segment larger than the path's MTU cannot be sent with UDP_SEGMENT (EINVAL or EMSGSIZE), but a single datagram
//! can: it is fragmented. On some paths it fails with EIO: those that IPsec protects, and before Linux 6.12 those
//! of a device that leaves checksums to the kernel. The path is remembered, so that such a client costs other clients
//! nothing, and costs itself no failing system call per batch. The table has a fixed size; a new entry replaces the one
//! with which it collides.

use std::io;
use std::net::IpAddr;

use super::index::mix;

/// Why the kernel refused a send with UDP_SEGMENT, which it may take as single datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoRefusal {
    /// EINVAL, EMSGSIZE: the path does not take segments of this size.
    Size,
    /// EIO, ENOPROTOOPT, EOPNOTSUPP: the path takes none at all.
    Path,
}

impl GsoRefusal {
    /// What an error of a send with UDP_SEGMENT says; `None` if single datagrams would fail as well.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<GsoRefusal> {
        match error.raw_os_error() {
            Some(libc::EMSGSIZE) => Some(GsoRefusal::Size),
            Some(libc::EIO | libc::ENOPROTOOPT | libc::EOPNOTSUPP) => Some(GsoRefusal::Path),
            // EINVAL, and what `UdpSocket::send_train` refuses by itself.
            _ => (error.kind() == io::ErrorKind::InvalidInput).then_some(GsoRefusal::Size),
        }
    }
}

/// Colliding destinations only cost each other a failing call now and then.
const SLOTS: usize = 64;

/// Runs sent as single datagrams before GSO is tried again, since routes change.
const RETRY_AFTER: u32 = 4096;

/// The limit of consecutive paths that accepted no run. Beyond it, the device is the cause. Without the limit, each
/// destination would cost a failing call per batch if there are more destinations than slots.
const EVERY_PATH: u32 = SLOTS as u32;

#[derive(Clone, Copy, Debug)]
struct Refusal {
    to: IpAddr,
    /// Smallest size refused; 0 if GSO is refused altogether.
    size: usize,
    /// Runs until it is tried again.
    retry_after: u32,
}

#[derive(Debug)]
pub(crate) struct Refused {
    slots: [Option<Refusal>; SLOTS],
    any: bool,
    /// Paths refused since a run was last sent.
    in_a_row: u32,
    /// Runs to anywhere until GSO is tried again.
    retry_all_after: u32,
}

impl Refused {
    pub(crate) fn new() -> Refused {
        Refused {
            slots: [None; SLOTS],
            any: false,
            in_a_row: 0,
            retry_all_after: 0,
        }
    }

    /// A run of datagrams of `size` bytes to `to` may be tried.
    #[inline]
    pub(crate) fn allows(&mut self, to: IpAddr, size: usize) -> bool {
        !self.any || self.allows_known(to, size)
    }

    fn allows_known(&mut self, to: IpAddr, size: usize) -> bool {
        if self.retry_all_after > 0 {
            self.retry_all_after -= 1;
            return false;
        }
        let slot = &mut self.slots[slot_of(to)];
        let Some(refusal) = slot else { return true };
        if refusal.to != to || size < refusal.size {
            return true;
        }
        refusal.retry_after -= 1;
        if refusal.retry_after == 0 {
            *slot = None;
        }
        false
    }

    /// A run of datagrams of `size` bytes to `to` was refused.
    pub(crate) fn remember(&mut self, to: IpAddr, size: usize, refusal: GsoRefusal) {
        let size = match refusal {
            GsoRefusal::Size => size,
            GsoRefusal::Path => 0,
        };
        let slot = &mut self.slots[slot_of(to)];
        let known = slot
            .filter(|refusal| refusal.to == to)
            .map_or(size, |refusal| refusal.size);
        *slot = Some(Refusal {
            to,
            size: size.min(known),
            retry_after: RETRY_AFTER,
        });
        self.any = true;
        if refusal == GsoRefusal::Path {
            self.in_a_row += 1;
            if self.in_a_row == EVERY_PATH {
                self.in_a_row = 0;
                self.retry_all_after = RETRY_AFTER * EVERY_PATH;
            }
        }
    }

    /// A run was sent.
    #[inline]
    pub(crate) fn note_success(&mut self) {
        self.in_a_row = 0;
    }
}

fn slot_of(to: IpAddr) -> usize {
    let bits = match to {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64 ^ ip.to_bits() as u64,
    };
    mix(bits | 1 << 63, 0x9e37_79b9_7f4a_7c15) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn only_this_destination_and_sizes_as_large_are_refused() {
        let mut refused = Refused::new();
        assert!(refused.allows(A, 9000));
        refused.remember(A, 1600, GsoRefusal::Size);
        refused.remember(A, 9000, GsoRefusal::Size);
        assert!(!refused.allows(A, 1600) && !refused.allows(A, 9000));
        assert!(refused.allows(A, 1599));
        assert!(refused.allows(B, 9000));
    }

    #[test]
    fn a_path_without_gso_is_refused_every_size() {
        let mut refused = Refused::new();
        refused.remember(A, 1600, GsoRefusal::Path);
        assert!(!refused.allows(A, 1) && !refused.allows(A, 9000));
        assert!(refused.allows(B, 1));
    }

    #[test]
    fn a_refusal_is_forgotten_after_a_while() {
        let mut refused = Refused::new();
        refused.remember(A, 1600, GsoRefusal::Size);
        let singles = (0..2 * RETRY_AFTER)
            .take_while(|_| !refused.allows(A, 1600))
            .count();
        assert_eq!(singles, RETRY_AFTER as usize);
    }

    #[test]
    fn any_number_of_destinations_fits() {
        let mut refused = Refused::new();
        for n in 0..100_000u32 {
            refused.remember(IpAddr::V4(n.into()), 1500, GsoRefusal::Size);
        }
        assert!(!refused.allows(IpAddr::V4(99_999.into()), 1500));
        assert!(refused.allows(A, 1500));
    }

    /// How many of `batches` to each of 4,096 destinations fail; `one_works` if one destination is not behind that
    /// device.
    fn failing_calls(one_works: bool) -> (u32, Refused) {
        let mut refused = Refused::new();
        let mut failed = 0;
        for _ in 0..100 {
            for n in 0..4096u32 {
                let to = IpAddr::V4(n.into());
                if !refused.allows(to, 1000) {
                    continue;
                }
                if one_works && n % 32 == 0 {
                    refused.note_success();
                } else {
                    failed += 1;
                    refused.remember(to, 1000, GsoRefusal::Path);
                }
            }
        }
        (failed, refused)
    }

    #[test]
    fn where_no_path_takes_runs_hardly_any_is_tried() {
        let (failed, mut refused) = failing_calls(false);
        assert_eq!(failed, 2 * EVERY_PATH, "of 409,600 runs");
        assert!(!refused.allows(A, 1));
        // Routes change: later it is tried again.
        let again = (0..RETRY_AFTER * EVERY_PATH + 1).any(|_| refused.allows(A, 1));
        assert!(again);
    }

    #[test]
    fn where_some_paths_take_runs_they_go_on_taking_them() {
        let (_, mut refused) = failing_calls(true);
        assert!(refused.allows(A, 1000));
    }
}
