//! The client's copy of its allocation (RFC 8656 §7.3), and what may be asked of a new one (§7.1).

use std::net::SocketAddr;
use std::time::Duration;

use stun::{
    AdditionalAddressFamily, AddressErrorCode, AddressFamily, AttributeType, BuildError, Builder,
    Decode, DontFragment, EvenPort, Lifetime, Message, MobilityTicket, RequestedAddressFamily,
    RequestedTransport, ReservationToken, Software, XorMappedAddress, XorRelayedAddress,
};

use super::error::{Advice, Alternate, RequestError, Timing};
use super::event::Allocated;
use crate::Mono;

/// RFC 8656 §8: "refresh the allocation roughly 1 minute before it expires".
const REFRESH_MARGIN_S: u32 = 60;
/// RFC 8656 §7.4, for 486 and 508: wait at least 1 minute.
const BUSY_WAIT: Duration = Duration::from_secs(60);
/// RFC 8656 §7.4, for 437: try three client transport addresses, then leave the server alone for 2 minutes.
const MISMATCHES_MAX: u8 = 3;
const MISMATCH_WAIT: Duration = Duration::from_secs(120);

/// Which port of the relayed transport address is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestedPort {
    /// Any.
    #[default]
    Any,
    /// An even one (EVEN-PORT).
    Even,
    /// An even one, and the next higher one reserved (EVEN-PORT with the R bit).
    EvenAndNext,
}

/// Which relayed transport address is wanted. Combinations that RFC 8656 §7.1 forbids cannot be written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedRelays {
    /// One address.
    One {
        /// Its family (REQUESTED-ADDRESS-FAMILY); `None` leaves it to the server, which means IPv4.
        family: Option<AddressFamily>,
        /// Its port.
        port: RequestedPort,
    },
    /// One IPv4 and one IPv6 address (ADDITIONAL-ADDRESS-FAMILY).
    Both {
        /// Whether the ports shall be even.
        even_port: bool,
    },
    /// The address that an earlier allocation reserved (RESERVATION-TOKEN).
    Reserved([u8; 8]),
    /// One over TCP (RFC 6062), for a client over TCP or TLS: see
    /// [`Client::connect_peer`](super::Client::connect_peer).
    Tcp {
        /// Its family (REQUESTED-ADDRESS-FAMILY); `None` leaves it to the server, which means IPv4.
        family: Option<AddressFamily>,
    },
}

impl Default for RequestedRelays {
    fn default() -> RequestedRelays {
        RequestedRelays::One {
            family: None,
            port: RequestedPort::Any,
        }
    }
}

/// What to ask of an allocation; the default asks for nothing special.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocateOptions {
    /// Which relayed transport address.
    pub relay: RequestedRelays,
    /// Whether the server must be able to set DF towards peers (DONT-FRAGMENT).
    pub dont_fragment: bool,
    /// How long it shall last, in seconds (LIFETIME); also asked for in every Refresh. `None` means the server's
    /// default, usually 600; a server may shorten or lengthen it.
    pub lifetime_s: Option<u32>,
    /// Whether the allocation shall stay when the client's address changes (RFC 8016): see
    /// [`Client::moved`](super::Client::moved). A server that forbids it responds with 405; a server that does not
    /// support it allocates without.
    pub mobility: bool,
}

impl AllocateOptions {
    /// An allocation of this family.
    #[must_use]
    pub fn of_family(family: AddressFamily) -> AllocateOptions {
        let relay = RequestedRelays::One {
            family: Some(family),
            port: RequestedPort::Any,
        };
        AllocateOptions {
            relay,
            ..AllocateOptions::default()
        }
    }

    pub(super) fn write(&self, request: &mut Builder<'_>) -> Result<(), BuildError> {
        let is_tcp = matches!(self.relay, RequestedRelays::Tcp { .. });
        request.push(if is_tcp {
            &RequestedTransport::TCP
        } else {
            &RequestedTransport::UDP
        })?;
        if let Some(seconds) = self.lifetime_s {
            request.push(&Lifetime(seconds))?;
        }
        // RFC 6062 §4.1: not in a request for a TCP address.
        if self.dont_fragment && !is_tcp {
            request.push(&DontFragment)?;
        }
        if self.mobility {
            request.push(&MobilityTicket(&[]))?;
        }
        match self.relay {
            RequestedRelays::One { family, port } => {
                if let Some(family) = family {
                    request.push(&RequestedAddressFamily(family))?;
                }
                if port != RequestedPort::Any {
                    request.push(&EvenPort {
                        reserve: port == RequestedPort::EvenAndNext,
                    })?;
                }
            }
            RequestedRelays::Both { even_port } => {
                // RFC 8656 §7.1: the value MUST be IPv6.
                request.push(&AdditionalAddressFamily(AddressFamily::V6))?;
                if even_port {
                    request.push(&EvenPort { reserve: false })?;
                }
            }
            RequestedRelays::Reserved(token) => {
                request.push(&ReservationToken(token))?;
            }
            RequestedRelays::Tcp { family } => {
                if let Some(family) = family {
                    request.push(&RequestedAddressFamily(family))?;
                }
            }
        }
        Ok(())
    }

    /// Whether an allocation of these addresses is what was asked for.
    fn accepts(&self, relayed: &SocketAddr, additional: Option<&SocketAddr>) -> bool {
        match self.relay {
            RequestedRelays::One { family, .. } | RequestedRelays::Tcp { family } => {
                additional.is_none()
                    && family.is_none_or(|family| family == AddressFamily::of(&relayed.ip()))
            }
            RequestedRelays::Both { .. } => {
                additional.is_none_or(|other| other.is_ipv4() != relayed.is_ipv4())
            }
            RequestedRelays::Reserved(_) => additional.is_none(),
        }
    }

    /// What RFC 8656 §7.4 advises after this error. `mismatches` counts the 437 responses in a row, this one included.
    pub(super) fn advice(&self, error: &RequestError, mismatches: u8) -> Advice {
        let refusal = match error {
            RequestError::Refused(refusal) => refusal,
            RequestError::TimedOut(_) | RequestError::Unreachable => {
                return Advice::ChangeTransport;
            }
            _ => return Advice::GiveUp,
        };
        let requested_port = !matches!(
            self.relay,
            RequestedRelays::One {
                port: RequestedPort::Any,
                ..
            } | RequestedRelays::Both { even_port: false }
                | RequestedRelays::Tcp { .. }
        );
        match refusal.code {
            300 => refusal
                .alternate
                .clone()
                .map_or(Advice::GiveUp, Advice::TryAlternate),
            405 if self.mobility => Advice::OmitMobility,
            408 => Advice::ChangeTransport,
            420 if self.dont_fragment
                && refusal.unknown.contains(&AttributeType::DONT_FRAGMENT) =>
            {
                Advice::OmitDontFragment
            }
            437 if mismatches < MISMATCHES_MAX => Advice::ChangePort,
            437 => Advice::Wait(MISMATCH_WAIT),
            508 if requested_port => Advice::OmitPortRequest,
            486 | 508 => Advice::Wait(BUSY_WAIT),
            // RFC 8489 §6.3.4: any other 5xx may be asked again.
            500..=599 => Advice::Wait(BUSY_WAIT),
            _ => Advice::GiveUp,
        }
    }
}

/// An allocation that exists on the server, by the last response.
#[derive(Debug)]
pub(super) struct Allocation {
    pub(super) relayed: SocketAddr,
    pub(super) additional: Option<SocketAddr>,
    pub(super) mapped: SocketAddr,
    pub(super) options: AllocateOptions,
    pub(super) expires_at: Mono,
    pub(super) refresh_at: Mono,
    /// What proves to the server, from another address, that it is this client's (RFC 8016).
    pub(super) ticket: Option<Box<[u8]>>,
}

impl Allocation {
    pub(super) fn new(
        started: Mono,
        allocated: &Allocated,
        options: AllocateOptions,
        keep_alive: bool,
    ) -> Allocation {
        let mut allocation = Allocation {
            relayed: allocated.relayed,
            additional: allocated.additional,
            mapped: allocated.mapped,
            options,
            expires_at: Mono::NEVER,
            refresh_at: Mono::NEVER,
            ticket: None,
        };
        allocation.prolong(started, allocated.lifetime_s, keep_alive);
        allocation
    }

    /// The server has granted `lifetime_s` to a request first sent at `started`. The lifetime cannot have begun
    /// earlier.
    pub(super) fn prolong(&mut self, started: Mono, lifetime_s: u32, keep_alive: bool) {
        self.expires_at = started.plus_secs(u64::from(lifetime_s));
        let margin = REFRESH_MARGIN_S.min(lifetime_s / 4);
        self.refresh_at = match keep_alive {
            true => started.plus_secs(u64::from(lifetime_s - margin)),
            false => Mono::NEVER,
        };
    }

    /// Whether it has a relayed transport address of this family.
    pub(super) fn has_family(&self, family: AddressFamily) -> bool {
        let is_of = |relayed: &SocketAddr| AddressFamily::of(&relayed.ip()) == family;
        is_of(&self.relayed) || self.additional.as_ref().is_some_and(is_of)
    }

    /// Takes the address of `family` away; false if that was the last one.
    pub(super) fn remove_family(&mut self, family: Option<AddressFamily>) -> bool {
        let Some(family) = family else { return false };
        let goes = |address: &SocketAddr| AddressFamily::of(&address.ip()) == family;
        if self.additional.as_ref().is_some_and(goes) {
            self.additional = None;
            return true;
        }
        match (goes(&self.relayed), self.additional.take()) {
            (true, Some(other)) => self.relayed = other,
            (true, None) => return false,
            (false, other) => self.additional = other,
        }
        true
    }
}

/// Reads an Allocate success response (RFC 8656 §7.3).
///
/// [`RequestError::WrongFamily`] means that there is an allocation, which must be deleted.
pub(super) fn read_success(
    response: &Message<'_>,
    options: &AllocateOptions,
    timing: Timing,
) -> Result<Allocated, RequestError> {
    let malformed = |_| RequestError::Malformed;
    let mut relayed = [None; 2];
    let found = response
        .attributes()
        .filter(|attribute| attribute.attribute_type == AttributeType::XOR_RELAYED_ADDRESS);
    for (slot, attribute) in relayed.iter_mut().zip(found) {
        let XorRelayedAddress(address) =
            XorRelayedAddress::decode(attribute.value, &response.transaction_id())
                .map_err(malformed)?;
        *slot = Some(address);
    }
    let [Some(relayed), additional] = relayed else {
        return Err(RequestError::Malformed);
    };
    let XorMappedAddress(mapped) = response
        .get()
        .map_err(malformed)?
        .ok_or(RequestError::Malformed)?;
    let Lifetime(lifetime_s) = response
        .get()
        .map_err(malformed)?
        .ok_or(RequestError::Malformed)?;
    if !options.accepts(&relayed, additional.as_ref()) {
        return Err(RequestError::WrongFamily);
    }
    let refused = response.get::<AddressErrorCode<'_>>().map_err(malformed)?;
    let reservation = response
        .get()
        .map_err(malformed)?
        .map(|ReservationToken(token)| token);
    Ok(Allocated {
        relayed,
        additional,
        refused_family: refused.map(|refused| (refused.family, refused.code)),
        mapped,
        lifetime_s,
        reservation,
        software: software(response),
        timing,
    })
}

/// The SOFTWARE of the server; `None` if it is absent or malformed.
pub(super) fn software(response: &Message<'_>) -> Option<Box<str>> {
    response
        .get()
        .ok()
        .flatten()
        .map(|Software(name)| name.into())
}

/// The ticket of a success response.
pub(super) fn ticket(response: &Message<'_>) -> Option<Box<[u8]>> {
    let ticket = response.get::<MobilityTicket<'_>>().ok().flatten();
    ticket.map(|ticket| ticket.0.into())
}

/// The servers of a 300 response (RFC 8489 §10); `None` if it names none.
pub(super) fn alternate(response: &Message<'_>) -> Option<Alternate> {
    let servers: Box<[SocketAddr]> = response
        .attributes()
        .filter(|attribute| attribute.attribute_type == AttributeType::ALTERNATE_SERVER)
        .filter_map(|attribute| {
            stun::AlternateServer::decode(attribute.value, &response.transaction_id()).ok()
        })
        .map(|stun::AlternateServer(address)| address)
        .collect();
    let domain = response
        .get()
        .ok()
        .flatten()
        .map(|stun::AlternateDomain(name)| name.into());
    (!servers.is_empty()).then_some(Alternate { servers, domain })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::error::Refusal;

    fn refused(code: u16) -> RequestError {
        let unknown = if code == 420 {
            [AttributeType::DONT_FRAGMENT].into()
        } else {
            [].into()
        };
        RequestError::Refused(Box::new(Refusal {
            code,
            reason: "".into(),
            unknown,
            alternate: None,
        }))
    }

    #[test]
    fn advice_follows_rfc_8656() {
        let plain = AllocateOptions::default();
        let picky = AllocateOptions {
            relay: RequestedRelays::One {
                family: None,
                port: RequestedPort::Even,
            },
            dont_fragment: true,
            lifetime_s: None,
            mobility: true,
        };
        for (options, code, mismatches, advice) in [
            (plain, 403, 0, Advice::GiveUp),
            (plain, 405, 0, Advice::GiveUp),
            (picky, 405, 0, Advice::OmitMobility),
            (plain, 408, 0, Advice::ChangeTransport),
            (plain, 420, 0, Advice::GiveUp),
            (picky, 420, 0, Advice::OmitDontFragment),
            (plain, 437, 1, Advice::ChangePort),
            (plain, 437, 2, Advice::ChangePort),
            (plain, 437, 3, Advice::Wait(MISMATCH_WAIT)),
            (plain, 440, 0, Advice::GiveUp),
            (plain, 486, 0, Advice::Wait(BUSY_WAIT)),
            (plain, 508, 0, Advice::Wait(BUSY_WAIT)),
            (picky, 508, 0, Advice::OmitPortRequest),
            (plain, 500, 0, Advice::Wait(BUSY_WAIT)),
        ] {
            assert_eq!(options.advice(&refused(code), mismatches), advice, "{code}");
        }
        assert_eq!(
            plain.advice(&RequestError::TimedOut(Timing::default()), 0),
            Advice::ChangeTransport
        );
        assert_eq!(plain.advice(&RequestError::BidDown, 0), Advice::GiveUp);
    }

    #[test]
    fn a_refresh_comes_a_minute_early_or_after_three_quarters() {
        let v4: SocketAddr = ([192, 0, 2, 1], 50_000).into();
        let mut allocation = Allocation {
            relayed: v4,
            additional: None,
            mapped: v4,
            options: AllocateOptions::default(),
            expires_at: Mono(0),
            refresh_at: Mono(0),
            ticket: None,
        };
        for (lifetime_s, refresh_s) in [
            (600, 540),
            (3600, 3540),
            (240, 180),
            (100, 75),
            (1, 1),
            (0, 0),
        ] {
            allocation.prolong(Mono(0), lifetime_s, true);
            assert_eq!(
                allocation.refresh_at,
                Mono(0).plus_secs(refresh_s),
                "{lifetime_s}"
            );
        }
    }

    #[test]
    fn either_family_of_a_dual_allocation_can_go_first() {
        let v4: SocketAddr = ([192, 0, 2, 1], 50_000).into();
        let v6: SocketAddr = ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 50_000).into();
        let dual = || Allocation {
            relayed: v4,
            additional: Some(v6),
            mapped: v4,
            options: AllocateOptions::default(),
            expires_at: Mono(0),
            refresh_at: Mono(0),
            ticket: None,
        };
        let mut one = dual();
        assert!(one.remove_family(Some(AddressFamily::V4)));
        assert_eq!((one.relayed, one.additional), (v6, None));
        assert!(one.has_family(AddressFamily::V6) && !one.has_family(AddressFamily::V4));
        assert!(
            one.remove_family(Some(AddressFamily::V4)),
            "it is gone already"
        );
        assert!(!one.remove_family(Some(AddressFamily::V6)));
        let mut other = dual();
        assert!(other.remove_family(Some(AddressFamily::V6)));
        assert_eq!((other.relayed, other.additional), (v4, None));
        assert!(!dual().remove_family(None));
    }
}
