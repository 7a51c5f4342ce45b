//! Allocate requests (RFC 8656 §7.2): the checks in the order of the RFC, then the request for sockets.

use std::net::IpAddr;
use std::sync::Arc;

use stun::{ErrorCode, Lifetime, Message};

use super::Server;
use super::allocation::{Client, Opening, Plan, RelayIndex, Stage};
use super::answer::Refusal;
use super::config::Config;
use super::output::{RelayRequest, RelayTransport};
use super::outputs::Queued;
use super::packed::PackedPath;
use super::relay::Relay;
use super::request_context::RequestContext;
use super::requested_relay::RequestedRelay;
use super::user::User;
use crate::{Now, RelayKey, RequestKey};

/// How long the embedder may take to open a socket, in seconds. Clients give up after 40 (RFC 8489 §6.2.1).
const OPENING_S: u64 = 5;

impl Server {
    /// RFC 8656 §7.2; steps 1 (authentication) and 2 (the 5-tuple is not in use) are behind us.
    pub(super) fn allocate(
        &mut self,
        now: Now,
        context: &RequestContext,
        message: &Message<'_>,
    ) -> Result<(), Refusal> {
        // RFC 8656 §21.4: "a TURN server MUST NOT accept Teredo or 6to4 addresses in these requests".
        if is_tunnelled(context.path.five_tuple.remote.ip()) {
            return Err(ErrorCode::FORBIDDEN.into());
        }
        let transport = context.path.five_tuple.transport;
        let requested_relay = RequestedRelay::read(message, transport, &self.config)?;
        self.check_requested_ticket(message)?;
        let Some(user) = context.user.clone() else {
            return Err(ErrorCode::SERVER_ERROR.into());
        };
        let reserved = match requested_relay {
            RequestedRelay::Reserved(token) if self.is_own_token(token) => {
                let client = Self::identity(&user, context.path);
                let relay = self.reserved_relay(now, token, &client);
                Some(relay.ok_or(ErrorCode::INSUFFICIENT_CAPACITY)?)
            }
            // The server that made the token would have to be another one.
            RequestedRelay::Reserved(_) if !context.may_move => {
                return Err(ErrorCode::INSUFFICIENT_CAPACITY.into());
            }
            _ => None,
        };
        let lifetime_s = lifetime(now, context, message, &self.config)?;
        // A reservation is at this server only.
        let may_leave = !matches!(requested_relay, RequestedRelay::Reserved(_));
        if may_leave && let Some(server) = self.alternate_for(context) {
            return Err(Refusal::Alternate(server));
        }
        if self.stats.allocations + self.stats.pending >= self.config.max_allocations as u64 {
            return Err(ErrorCode::INSUFFICIENT_CAPACITY.into());
        }
        if let Some(relay) = reserved {
            return Ok(self.use_reservation(now, context, user, relay, lifetime_s)?);
        }
        Ok(self.ask_for_relays(now, context, message, user, requested_relay, lifetime_s)?)
    }

    /// Takes quota and hands the request for sockets, or for another worker's reservation, to the embedder.
    fn ask_for_relays(
        &mut self,
        now: Now,
        context: &RequestContext,
        message: &Message<'_>,
        user: Arc<User>,
        requested_relay: RequestedRelay,
        lifetime_s: u32,
    ) -> Result<(), ErrorCode<'static>> {
        let is_full = self.stats.pending >= self.config.max_pending as u64;
        if is_full || requested_relay.plan() == Plan::Pair && !self.may_reserve() {
            return Err(ErrorCode::INSUFFICIENT_CAPACITY);
        }
        // The worker that holds a reservation also holds its quota: it is taken over when the claim succeeds.
        if requested_relay.plan() != Plan::Claim {
            let units = requested_relay.sockets().iter().flatten().count();
            self.acquire(&user, context.path, units)?;
        }
        let (request, relays) = self.add_opening(now, context, &user, requested_relay, lifetime_s);
        let [Some(first), second] = relays else {
            return Err(ErrorCode::SERVER_ERROR);
        };
        if let RequestedRelay::Reserved(token) = requested_relay {
            self.outputs.push(Queued::ClaimReservation {
                request,
                token,
                user,
                path: context.path,
                key: first.key,
            });
        } else {
            let message = context.may_move.then_some(message.as_bytes());
            self.outputs
                .open_relays(request, context.path, (first, second), message, user);
        }
        Ok(())
    }

    /// Makes a client that waits for its relays.
    fn add_opening(
        &mut self,
        now: Now,
        context: &RequestContext,
        user: &Arc<User>,
        requested_relay: RequestedRelay,
        lifetime_s: u32,
    ) -> (RequestKey, [Option<RelayRequest>; 2]) {
        let opening = Opening {
            context: context.clone(),
            lifetime_s,
            plan: requested_relay.plan(),
            is_tcp: requested_relay.transport() == RelayTransport::Tcp,
            relays: [None; 2],
        };
        let stage = Stage::Opening(Box::new(opening));
        let client = Client {
            path: PackedPath::of(&context.path),
            user: Arc::clone(user),
            stage,
        };
        let (place, generation) = self.clients.insert(client);
        self.stats.pending += 1;
        let relays = requested_relay.sockets().map(|wish| {
            let (family, port) = wish?;
            let (index, generation) = self.relays.insert(Relay::Opening(place));
            self.deadlines.set(index, now.mono.plus_secs(OPENING_S));
            Some(RelayRequest {
                key: RelayKey { index, generation },
                transport: requested_relay.transport(),
                family,
                port,
            })
        });
        if let Some(Client {
            stage: Stage::Opening(opening),
            ..
        }) = self.clients.get_mut(place)
        {
            opening.relays =
                relays.map(|relay| relay.map(|relay| RelayIndex::new(relay.key.index)));
        }
        (
            RequestKey {
                index: place,
                generation,
            },
            relays,
        )
    }
}

/// The time-to-expiry for an Allocate or Refresh request: RFC 8656 §7.2, §8.2. A Refresh to zero is seen to
/// before.
pub(super) fn lifetime(
    now: Now,
    context: &RequestContext,
    message: &Message<'_>,
    config: &Config,
) -> Result<u32, ErrorCode<'static>> {
    let requested_relay = message
        .get::<Lifetime>()
        .map_err(|_| ErrorCode::BAD_REQUEST)?;
    let requested_relay = requested_relay.map_or(0, |lifetime| lifetime.0);
    let granted = requested_relay
        .min(config.max_lifetime_s)
        .max(config.default_lifetime_s);
    let ends_with_it = |user: &&Arc<User>| config.strict_expiry || user.is_by_token();
    let user = context.user.as_ref().filter(ends_with_it);
    let longest = user.map_or(u64::MAX, |user| user.remaining_s(now.unix_s));
    Ok(granted.min(u32::try_from(longest).unwrap_or(u32::MAX)))
}

/// Whether an address is one of a tunnel that RFC 8656 §21.4 names: Teredo (RFC 4380) or 6to4 (RFC 3056).
pub(super) fn is_tunnelled(address: IpAddr) -> bool {
    match address {
        IpAddr::V6(v6) => matches!(v6.segments(), [0x2001, 0, ..] | [0x2002, ..]),
        IpAddr::V4(_) => false,
    }
}
