//! Where the called party of a dialog is, so that no BYE ends a call without that party.
//!
//! The caller knows the Call-ID, both tags and the Route values of the dialog. With these, the caller can send a BYE
//! that goes back to the caller, and respond to it. If a call stopped counting against the limits after such a BYE, it
//! could continue uncounted. So a BYE ends a call that counts in two cases only:
//!
//! 1. It was sent from where the called party is. The sender of a BYE regards its session as terminated (RFC 3261
//!    §15.1.1).
//! 2. The caller has sent it, and it went to where the called party is. There it got a 2xx, a 481 or a 408, or no
//!    response at all (RFC 3261 §12.2.1.2). Without a response, it must have gone to a phone, by a flow, or to the next hop
//!    from the 2xx. Otherwise the caller could send it to a closed port of the called party.
//!
//! Otherwise, the call counts until its session expires (RFC 4028) or its longest time is over.
//!
//! A phone is recognized by the address of its flow with the port, because several users may share an IP address. If
//! the phone has another flow meanwhile, its address of record is enough. Another worker may have the bindings of that
//! phone. Then a Route value that names the phone is taken as proof that the phone has sent the BYE.
//!
//! A trunk or another server may have many addresses, and a BYE may reach another one than the INVITE. So another
//! address counts as that of the called party, too, if it has sent the BYE or a 2xx for it. If the called party is a
//! trunk, each address of any trunk counts. If it is another server, each IP address except that of the caller counts.

use std::net::SocketAddr;

use sip::HashKey;

use crate::AorKey;

/// What is known of an element at the other end of a flow, as keyed hashes; 0 for what is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElementHashes {
    ip: u32,
    /// The IP address and the port.
    address: u32,
    /// The name of a trunk.
    trunk: u32,
    /// The address of record of a phone.
    aor: u32,
}

impl ElementHashes {
    /// An element at this address.
    pub(crate) fn at(key: HashKey, remote: SocketAddr) -> ElementHashes {
        let ip = remote.ip().to_canonical().to_string();
        let address = format!("{ip} {}", remote.port());
        ElementHashes {
            ip: mark(key, b'i', ip.as_bytes()),
            address: mark(key, b'p', address.as_bytes()),
            ..ElementHashes::default()
        }
    }

    /// The same element, if it belongs to the trunk with this name. Without a name, it is no trunk.
    pub(crate) fn of_trunk(self, key: HashKey, name: &[u8]) -> ElementHashes {
        match name {
            b"" => self,
            name => ElementHashes {
                trunk: mark(key, b't', name),
                ..self
            },
        }
    }

    /// The same element. If its address belongs to no trunk, it is taken for one of the trunk with this name.
    pub(crate) fn or_trunk(self, key: HashKey, name: &[u8]) -> ElementHashes {
        match self.trunk {
            0 => self.of_trunk(key, name),
            _ => self,
        }
    }

    /// The same element, if it is a phone of this address of record.
    pub(crate) fn of_phone(self, key: HashKey, aor: Option<AorKey>) -> ElementHashes {
        ElementHashes {
            aor: aor.map_or(0, |aor| mark(key, b'a', &aor.0.to_be_bytes())),
            ..self
        }
    }
}

/// Keyed hash of `text`, 32 bits, never 0. 0 means unknown.
fn mark(key: HashKey, kind: u8, text: &[u8]) -> u32 {
    (key.derive(u64::from(kind) << 8).mac(text) as u32).max(1)
}

/// Both sides of a dialog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sides {
    /// The hash of the caller's tag.
    caller: u32,
    /// The called party: its address, and its trunk or address of record.
    called: [u32; 2],
    /// Hash of the IP address and port of the next hop to a called party that is no phone; 0 if unknown.
    next_hop: u32,
    kind: Kind,
}

/// What the called party is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Phone,
    Trunk,
    /// Another server.
    Server {
        /// The IP address of the caller.
        caller: u32,
    },
}

impl Sides {
    /// The called party is a server: a trunk, if it belongs to one.
    pub(crate) const fn to_server(
        caller_tag: u64,
        caller: &ElementHashes,
        called: &ElementHashes,
    ) -> Sides {
        Sides {
            kind: match called.trunk {
                0 => Kind::Server { caller: caller.ip },
                _ => Kind::Trunk,
            },
            caller: caller_tag as u32,
            called: [
                called.ip,
                match called.trunk {
                    0 => called.aor,
                    trunk => trunk,
                },
            ],
            next_hop: 0,
        }
    }

    /// Sets the next hop of requests to the called party. `None`: its address is unknown.
    pub(crate) fn with_next_hop(self, next_hop: Option<&ElementHashes>) -> Sides {
        Sides {
            next_hop: next_hop.map_or(0, |it| it.address),
            ..self
        }
    }

    /// The called party is a phone that is reached by its flow.
    pub(crate) const fn to_phone(caller_tag: u64, called: &ElementHashes) -> Sides {
        Sides {
            caller: caller_tag as u32,
            called: [called.address, called.aor],
            next_hop: 0,
            kind: Kind::Phone,
        }
    }

    /// Whether this is the called party.
    fn are_called_at(&self, seen: &ElementHashes) -> bool {
        let seen = [seen.ip, seen.address, seen.trunk, seen.aor];
        let mut known = self.called.iter().filter(|mark| **mark != 0);
        known.any(|mark| seen.contains(mark))
    }

    /// Whether a BYE without a response may end the call. One of three must hold: the called party is a phone, the BYE
    /// used a flow, or it went to the known next hop. The caller could otherwise choose a closed port.
    fn is_expected_destination(&self, sent_to: &ElementHashes, is_by_flow: bool) -> bool {
        let is_it = self.next_hop != 0 && self.next_hop == sent_to.address;
        is_it || is_by_flow || self.kind == Kind::Phone
    }

    /// Whether this may be another address of the called party, and is not the caller.
    const fn may_be_called_at(&self, seen: &ElementHashes) -> bool {
        match self.kind {
            Kind::Phone => false,
            Kind::Trunk => seen.trunk != 0,
            Kind::Server { caller } => caller != 0 && seen.ip != 0 && seen.ip != caller,
        }
    }
}

/// A BYE, its sender, and its destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bye {
    /// The hash of the tag in its From.
    pub(crate) tag: u64,
    /// The element that sent it.
    pub(crate) from: ElementHashes,
    /// The element that it was last sent to.
    pub(crate) sent_to: Option<ElementHashes>,
    /// It was sent there by a known flow of the target.
    pub(crate) is_by_flow: bool,
    /// The element that sent a response that ends the dialog, or that did not respond in time. `None`: neither
    /// happened.
    pub(crate) reached: Option<ElementHashes>,
    /// It got no response.
    pub(crate) has_no_response: bool,
    /// This response was a 2xx.
    pub(crate) is_accepted: bool,
}

impl Bye {
    /// Whether it ends the dialog with these sides.
    pub(crate) fn ends(&self, sides: &Sides) -> bool {
        if sides.are_called_at(&self.from) {
            return true;
        }
        // A BYE of the caller with the tag of the called party in From gets a 481 from that party.
        match (self.tag as u32 == sides.caller, &self.reached) {
            (true, Some(it)) => {
                let may_be_it =
                    !self.has_no_response || sides.is_expected_destination(it, self.is_by_flow);
                (may_be_it && sides.are_called_at(it))
                    || (self.is_accepted && sides.may_be_called_at(it))
            }
            (true, None) => false,
            (false, _) => sides.may_be_called_at(&self.from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: u64 = 7;

    fn key() -> HashKey {
        HashKey::new([1; 16])
    }

    fn at(address: &str) -> ElementHashes {
        ElementHashes::at(key(), address.parse().expect("an address"))
    }

    fn bye(tag: u64, from: ElementHashes, reached: Option<ElementHashes>) -> Bye {
        Bye {
            tag,
            from,
            reached,
            ..Bye::default()
        }
    }

    fn accepted(tag: u64, from: ElementHashes, reached: ElementHashes) -> Bye {
        Bye {
            is_accepted: true,
            ..bye(tag, from, Some(reached))
        }
    }

    #[test]
    fn a_bye_needs_the_called_party_at_one_of_its_ends() {
        let trunk = at("192.0.2.1:5060").of_trunk(key(), b"carrier");
        let (caller, other) = (at("192.0.2.9:5060"), at("192.0.2.8:5060"));
        let sides = Sides::to_server(CALLER, &caller, &trunk);
        // The trunk has another address, or another port of the same address.
        let sibling = at("192.0.2.2:5060").of_trunk(key(), b"carrier");
        for place in [trunk, sibling, at("192.0.2.1:40000")] {
            assert!(bye(CALLER, caller, Some(place)).ends(&sides));
            assert!(bye(1, place, None).ends(&sides));
            // With the tags exchanged, the called party knows no such dialog.
            assert!(!bye(1, caller, Some(place)).ends(&sides));
        }
        assert!(!bye(CALLER, caller, None).ends(&sides));
        for place in [caller, other] {
            assert!(!bye(CALLER, caller, Some(place)).ends(&sides));
            assert!(!accepted(CALLER, caller, place).ends(&sides));
            assert!(!bye(1, place, Some(caller)).ends(&sides));
        }
        // A carrier may be several trunks. One that does not know the dialog proves nothing.
        let another = other.of_trunk(key(), b"another");
        assert!(bye(1, another, None).ends(&sides));
        assert!(accepted(CALLER, caller, another).ends(&sides));
        assert!(!bye(CALLER, caller, Some(another)).ends(&sides));
    }

    #[test]
    fn a_bye_without_a_response_must_have_gone_to_the_next_hop() {
        let trunk = at("192.0.2.1:5060").of_trunk(key(), b"carrier");
        let caller = at("192.0.2.9:5060");
        let next_hop = at("192.0.2.2:5070");
        let sides = Sides::to_server(CALLER, &caller, &trunk).with_next_hop(Some(&next_hop));
        let ends = |place: ElementHashes, is_by_flow| {
            let bye = Bye {
                has_no_response: true,
                is_by_flow,
                ..bye(CALLER, caller, Some(place))
            };
            bye.ends(&sides)
        };
        assert!(ends(next_hop.of_trunk(key(), b"carrier"), false));
        // A closed port of the trunk, or an address of it that nobody has.
        for place in ["192.0.2.1:9", "192.0.2.1:5060", "192.0.2.7:5070"] {
            let place = at(place).of_trunk(key(), b"carrier");
            assert!(!ends(place, false));
            assert!(ends(place, true));
        }
    }

    #[test]
    fn a_server_may_have_any_address_but_that_of_the_caller() {
        let (caller, server) = (at("192.0.2.9:5060"), at("192.0.2.1:5060"));
        let sides = Sides::to_server(CALLER, &caller, &server);
        let sibling = at("192.0.2.2:5060");
        assert!(bye(1, sibling, None).ends(&sides));
        assert!(accepted(CALLER, caller, sibling).ends(&sides));
        assert!(bye(CALLER, caller, Some(server)).ends(&sides));
        assert!(!bye(CALLER, caller, Some(sibling)).ends(&sides), "a 481");
        let own = at("192.0.2.9:40000");
        assert!(!bye(1, own, None).ends(&sides));
        assert!(!accepted(CALLER, caller, own).ends(&sides));
    }

    #[test]
    fn a_phone_is_known_by_its_port_or_its_address_of_record() {
        let (bob, alice) = (Some(AorKey(1)), Some(AorKey(2)));
        let phone = at("192.0.2.1:40000").of_phone(key(), bob);
        let sides = Sides::to_phone(CALLER, &phone);
        let ends =
            |place: ElementHashes| bye(CALLER, at("192.0.2.1:40001"), Some(place)).ends(&sides);
        assert!(ends(at("192.0.2.1:40000")));
        assert!(ends(at("192.0.2.7:1").of_phone(key(), bob)));
        assert!(!ends(at("192.0.2.1:40001")), "another phone behind its NAT");
        assert!(!ends(at("192.0.2.7:1").of_phone(key(), alice)));
    }

    #[test]
    fn nothing_that_is_unknown_is_equal() {
        let none = ElementHashes::default();
        let sides = Sides::to_server(CALLER, &none, &none);
        assert!(!bye(CALLER, none, Some(none)).ends(&sides));
        assert!(!accepted(CALLER, none, none).ends(&sides));
        assert!(!bye(1, none, None).ends(&Sides::default()));
    }
}
