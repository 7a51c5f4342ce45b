//! Allocations that are made in unusual ways: with reserved ports, and with sockets that open late or never.

use hairpin_turn::RequestKey;
use hairpin_turn::server::{ClientVerdict, DropReason, OpenError, RelayRequest};
use stun::{
    AdditionalAddressFamily, AddressFamily, Builder, EvenPort, Lifetime, Method, Nonce,
    RequestedAddressFamily, RequestedTransport, ReservationToken,
};

use super::beside::Beside;
use super::{Family, Op};
use crate::world::Event;

/// An Allocate request that waits for its sockets.
pub struct Opening {
    user: usize,
    family: Family,
    lifetime: Option<u32>,
    message: Vec<u8>,
    request: RequestKey,
    relays: Vec<RelayRequest>,
    /// When the server gives it up: 508.
    ends: u64,
}

/// How long the embedder may take.
const LIMIT_S: u64 = 5;

impl Family {
    /// The attributes of an Allocate request.
    pub fn write(self, lifetime: Option<u32>, request: &mut Builder<'_>) {
        request.push(&RequestedTransport::UDP).unwrap();
        let one = |family| RequestedAddressFamily(family);
        match self {
            Family::Default => {}
            Family::V4 => drop(request.push(&one(AddressFamily::V4)).unwrap()),
            Family::V6 => drop(request.push(&one(AddressFamily::V6)).unwrap()),
            Family::Both => {
                let both = AdditionalAddressFamily(AddressFamily::V6);
                request.push(&both).unwrap();
            }
        }
        if let Some(lifetime) = lifetime {
            request.push(&Lifetime(lifetime)).unwrap();
        }
    }

    /// The families of the relays.
    pub fn wanted(self) -> Vec<AddressFamily> {
        match self {
            Family::Default | Family::V4 => vec![AddressFamily::V4],
            Family::V6 => vec![AddressFamily::V6],
            Family::Both => vec![AddressFamily::V4, AddressFamily::V6],
        }
    }
}

impl Beside {
    /// Whether the client of this step waits for the response to an Allocate request, and does nothing else meanwhile.
    pub(super) fn has_to_wait(&self, op: &Op) -> bool {
        let (Op::Allocate { client, .. }
        | Op::Refresh { client, .. }
        | Op::Permit { client, .. }
        | Op::Bind { client, .. }
        | Op::Reserve { client, .. }
        | Op::Claim { client, .. }
        | Op::FailToOpen { client, .. }
        | Op::BeginToOpen { client, .. }) = op
        else {
            return false;
        };
        self.opening[*client].is_some()
    }

    pub(super) fn open(&mut self, op: Op) {
        match op {
            Op::Reserve {
                client,
                user,
                next_taken,
            } => self.reserve(client, user, next_taken),
            Op::Claim {
                client,
                user,
                token,
            } => self.claim(client, user, token),
            Op::FailToOpen { client, user } => self.fail_to_open(client, user),
            Op::BeginToOpen {
                client,
                user,
                family,
                lifetime,
            } => self.begin_to_open(client, user, family, lifetime),
            Op::Retransmit { client } => self.retransmit(client),
            Op::Opened { client, success } => self.opened(client, success),
            other => panic!("{other:?}"),
        }
    }

    fn reserve(&mut self, client: usize, user: usize, next_taken: bool) {
        self.world.next_port_taken = next_taken;
        let signer = &mut self.clients[client][user];
        let build = |request: &mut Builder<'_>| {
            Family::Default.write(None, request);
            request.push(&EvenPort { reserve: true }).unwrap();
        };
        let mut reply = signer.ask(&mut self.world, Method::ALLOCATE, build);
        if reply.code() == 438 {
            signer.signing.nonce = Some(reply.get::<Nonce<'_>>().unwrap().0.to_vec());
            reply = signer.ask(&mut self.world, Method::ALLOCATE, build);
        }
        self.world.next_port_taken = false;
        self.world.events.clear();
        let has_allocation = self.model.allocations[client].is_some();
        let expected = match (has_allocation, next_taken) {
            (true, _) => 437,
            (false, true) => 508,
            (false, false) => 0,
        };
        assert_eq!(reply.code(), expected);
        if expected == 0 {
            let relayed = reply.relayed();
            let token: ReservationToken = reply.get().expect("a token");
            self.allocated(client, user, Family::Default, None, &relayed);
            self.model.reserve(user, relayed[0], token.0);
            self.tokens.push(token.0);
        }
    }

    fn claim(&mut self, client: usize, user: usize, token: usize) {
        if self.tokens.is_empty() {
            return;
        }
        let token = self.tokens[token % self.tokens.len()];
        let (code, relayed) = self.ask(client, user, Method::ALLOCATE, |request| {
            request.push(&RequestedTransport::UDP).unwrap();
            request.push(&ReservationToken(token)).unwrap();
        });
        if self.model.allocations[client].is_some() {
            assert_eq!(code, 437);
        } else if let Some(address) = self.model.claim(user, token) {
            assert_eq!((code, &relayed[..]), (0, &[address][..]));
            self.allocated(client, user, Family::Default, None, &relayed);
        } else {
            assert_eq!(code, 508);
        }
    }

    fn fail_to_open(&mut self, client: usize, user: usize) {
        let has_allocation = self.model.allocations[client].is_some();
        self.world.refuse_v4 = Some(OpenError::NoPort);
        let (code, _) = self.ask(client, user, Method::ALLOCATE, |request| {
            Family::Default.write(None, request);
        });
        self.world.refuse_v4 = None;
        assert_eq!(code, if has_allocation { 437 } else { 508 });
    }

    fn begin_to_open(&mut self, client: usize, user: usize, family: Family, lifetime: Option<u32>) {
        if self.model.allocations[client].is_some() {
            return;
        }
        // Gets a nonce that is not stale.
        let (code, _) = self.ask(client, user, Method::REFRESH, |_| {});
        assert_eq!(code, 437);
        self.world.auto_open = false;
        let signer = &mut self.clients[client][user];
        let message = signer.request(Method::ALLOCATE, |request| family.write(lifetime, request));
        let path = signer.path;
        let verdict = self.world.client(&path, &message);
        assert_eq!(verdict, ClientVerdict::Handled { covers: 1 });
        self.world.auto_open = true;
        let is_wanted = |event: &Event| matches!(event, Event::OpenRelays { .. });
        let place = self.world.events.iter().position(is_wanted);
        let event = place.and_then(|place| self.world.events.remove(place));
        let Some(Event::OpenRelays {
            request, relays, ..
        }) = event
        else {
            panic!("no relays wanted: {event:?}")
        };
        self.world.events.clear();
        self.opening[client] = Some(Opening {
            user,
            family,
            lifetime,
            message,
            request,
            relays,
            ends: self.model.now + LIMIT_S,
        });
    }

    /// Ends the requests whose sockets have taken too long. The server has done so, or does so when it is asked.
    pub(super) fn give_up(&mut self) {
        for opening in &mut self.opening {
            opening.take_if(|opening| opening.ends <= self.model.now);
        }
    }

    fn retransmit(&mut self, client: usize) {
        if let Some(opening) = &self.opening[client] {
            let path = self.clients[client][opening.user].path;
            let reason = self.world.dropped(&path, &opening.message);
            assert_eq!(reason, DropReason::RequestPending);
        }
    }

    pub(super) fn opened(&mut self, client: usize, success: bool) {
        let Some(opening) = self.opening[client].take() else {
            return;
        };
        let results = match success {
            true => self.world.open(&opening.relays),
            false => vec![Err(OpenError::NoPort); opening.relays.len()],
        };
        let (server, now) = (&mut self.world.server, self.world.now);
        assert!(server.relays_opened(now, opening.request, &results));
        self.world.drain();
        let path = self.clients[client][opening.user].path;
        let reply = self.world.reply(&path);
        self.world.events.clear();
        assert_eq!(reply.code(), if success { 0 } else { 508 });
        if success {
            let Opening {
                user,
                family,
                lifetime,
                ..
            } = opening;
            self.allocated(client, user, family, lifetime, &reply.relayed());
        }
    }
}
