//! Destinations towards which GSO of some size was refused.
//!
//! A segment larger than the path's MTU cannot be sent with UDP_SEGMENT (EINVAL or EMSGSIZE), but well as a single
//! datagram that is fragmented. So that one such client costs nobody else anything, and itself no failing system call per
//! batch, its size is remembered: in a table of fixed size, where a newcomer displaces whom it collides with.

use std::net::IpAddr;

use super::index::mix;

/// Colliding destinations only cost each other a failing call now and then.
const SLOTS: usize = 64;

/// Runs sent as single datagrams before GSO is tried again, since routes change.
const PATIENCE: u32 = 4096;

#[derive(Clone, Copy, Debug)]
struct Refusal {
    to: IpAddr,
    /// Smallest size refused.
    size: usize,
    /// Runs until it is tried again.
    patience: u32,
}

#[derive(Debug)]
pub(crate) struct Refused {
    slots: [Option<Refusal>; SLOTS],
    any: bool,
}

impl Refused {
    pub(crate) fn new() -> Refused {
        Refused {
            slots: [None; SLOTS],
            any: false,
        }
    }

    /// A run of datagrams of `size` bytes to `to` may be tried.
    #[inline]
    pub(crate) fn allows(&mut self, to: IpAddr, size: usize) -> bool {
        !self.any || self.allows_known(to, size)
    }

    fn allows_known(&mut self, to: IpAddr, size: usize) -> bool {
        let slot = &mut self.slots[slot_of(to)];
        let Some(refusal) = slot else { return true };
        if refusal.to != to || size < refusal.size {
            return true;
        }
        refusal.patience -= 1;
        if refusal.patience == 0 {
            *slot = None;
        }
        false
    }

    pub(crate) fn remember(&mut self, to: IpAddr, size: usize) {
        let slot = &mut self.slots[slot_of(to)];
        let known = slot
            .filter(|refusal| refusal.to == to)
            .map_or(size, |refusal| refusal.size);
        *slot = Some(Refusal {
            to,
            size: size.min(known),
            patience: PATIENCE,
        });
        self.any = true;
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
    fn only_this_destination_and_sizes_as_large_are_held_back() {
        let mut refused = Refused::new();
        assert!(refused.allows(A, 9000));
        refused.remember(A, 1600);
        refused.remember(A, 9000);
        assert!(!refused.allows(A, 1600) && !refused.allows(A, 9000));
        assert!(refused.allows(A, 1599));
        assert!(refused.allows(B, 9000));
    }

    #[test]
    fn a_refusal_is_forgotten_after_a_while() {
        let mut refused = Refused::new();
        refused.remember(A, 1600);
        let held_back = (0..2 * PATIENCE)
            .take_while(|_| !refused.allows(A, 1600))
            .count();
        assert_eq!(held_back, PATIENCE as usize);
    }

    #[test]
    fn any_number_of_destinations_fits() {
        let mut refused = Refused::new();
        for n in 0..100_000u32 {
            refused.remember(IpAddr::V4(n.into()), 1500);
        }
        assert!(!refused.allows(IpAddr::V4(99_999.into()), 1500));
    }
}
