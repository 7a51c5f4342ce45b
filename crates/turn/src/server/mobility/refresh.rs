//! Refresh requests with MOBILITY-TICKET (RFC 8016 §3.2.2).

use std::sync::Arc;

use stun::{Class, ErrorCode, Lifetime, Message, Method, MobilityTicket};

use super::super::answer::Refusal;
use super::super::outputs::{PathChange, Queued};
use super::super::request_context::RequestContext;
use super::super::user::User;
use super::super::{DropReason, Server};
use super::{LEN, LastRefresh, Ticket};
use crate::{ClientPath, Now, Transport};

/// RFC 8016 §3.2.2: an old ticket is kept "for a period of at least 30 seconds", for retransmissions only.
const OLD_TICKET_S: u64 = 30;

/// Serial numbers have 24 bits.
const SERIALS: u32 = 1 << 24;

impl Server {
    /// Asks the embedder to move a request and its connection to the engine that the ticket names. It does so only if
    /// the ticket is genuine. That engine authenticates the request.
    pub(in super::super) fn follows_ticket(
        &mut self,
        path: &ClientPath,
        message: &Message<'_>,
    ) -> bool {
        let five_tuple = &path.five_tuple;
        let Some(keys) = &self.config.mobility else {
            return false;
        };
        if !matches!(five_tuple.transport, Transport::Tcp | Transport::Tls)
            || self.holder_of(five_tuple).is_some()
        {
            return false;
        }
        let sealed = message.get::<MobilityTicket<'_>>().ok().flatten();
        let ticket = sealed.and_then(|sealed| keys.open(sealed.0).ok());
        let elsewhere = ticket.filter(|ticket| ticket.worker != self.tokens.worker());
        if let Some(ticket) = elsewhere {
            let bytes = message.as_bytes();
            self.outputs
                .move_connection(ticket.worker.into(), *path, bytes);
        }
        elsewhere.is_some()
    }

    /// The engine that the ticket of a Refresh request names. The request belongs there, even if earlier requests of
    /// its 5-tuple went to another engine.
    pub(in super::super) fn leads_to(&self, message: &Message<'_>) -> Option<u16> {
        Some(self.ticket_of(message)?.worker.into())
    }

    /// The client whose allocation the ticket of a Refresh request names, if this engine has it.
    pub(in super::super) fn client_of_ticket(&self, message: &Message<'_>) -> Option<u32> {
        let ticket = self.ticket_of(message)?;
        let is_here = ticket.worker == self.tokens.worker()
            && self.clients.get(ticket.index).is_some()
            && self.clients.generation(ticket.index) == ticket.generation;
        is_here.then_some(ticket.index)
    }

    /// The ticket of a Refresh request, if it is genuine.
    fn ticket_of(&self, message: &Message<'_>) -> Option<Ticket> {
        let keys = self.config.mobility.as_ref()?;
        let sealed = (message.method() == Method::REFRESH)
            .then(|| message.get::<MobilityTicket<'_>>().ok().flatten())
            .flatten()?;
        keys.open(sealed.0).ok()
    }

    /// Passes a Refresh request that this engine cannot authenticate to the engine that the ticket names. That engine
    /// has the session key of the allocation. Returns whether it has passed the request. It does so only over UDP, and
    /// only if the ticket is genuine.
    ///
    /// # Errors
    /// The source has sent too many such requests. Anybody who has captured a ticket can send it again, and must not
    /// fill the mailbox of the other worker.
    pub(in super::super) fn pass_unverified(
        &mut self,
        now: Now,
        context: &RequestContext,
        message: &Message<'_>,
    ) -> Result<bool, DropReason> {
        let five_tuple = &context.path.five_tuple;
        let is_movable = context.may_move
            && five_tuple.transport == Transport::Udp
            && self.holder_of(five_tuple).is_none();
        let elsewhere = self
            .ticket_of(message)
            .filter(|ticket| is_movable && ticket.worker != self.tokens.worker());
        let Some(ticket) = elsewhere else {
            return Ok(false);
        };
        self.take_unverified(now.mono, &context.path)?;
        let bytes = message.as_bytes();
        self.outputs
            .move_client(ticket.worker.into(), context.path, bytes, None);
        Ok(true)
    }

    /// A Refresh request with MOBILITY-TICKET, whose sender has proven its user's key.
    pub(in super::super) fn refresh_by_ticket(
        &mut self,
        now: Now,
        context: &RequestContext,
        message: &Message<'_>,
    ) -> Result<(), Refusal> {
        let keys = self.config.mobility.as_ref();
        let keys = keys.ok_or(ErrorCode::MOBILITY_FORBIDDEN)?;
        let sealed = message.get::<MobilityTicket<'_>>().ok().flatten();
        let sealed = sealed.ok_or(ErrorCode::BAD_REQUEST)?;
        let ticket = keys.open(sealed.0)?;
        if ticket.worker != self.tokens.worker() {
            return self.send_after_ticket(now, context, message, &ticket);
        }
        let client = self
            .clients
            .get_of_generation(ticket.index, ticket.generation)
            .map(|client| client.path.five_tuple());
        let first = client.ok_or(ErrorCode::ALLOCATION_MISMATCH)?;
        // Ends what has expired.
        self.client_at(now, &first)
            .filter(|index| *index == ticket.index)
            .ok_or(ErrorCode::ALLOCATION_MISMATCH)?;
        self.check_owner(context, ticket.index)?;
        if self.answer_refresh_again(now, context, &ticket) {
            return Ok(());
        }
        let mobile = self.mobility.mobile.get(&ticket.index);
        let mobile = mobile.filter(|mobile| mobile.serial == ticket.serial);
        let is_disconnected = mobile.ok_or(ErrorCode::BAD_REQUEST)?.is_disconnected;
        match self.holder_of(&context.path.five_tuple) {
            // RFC 8016 §3.2.2: "If the source IP address and port [...] is the same as the stored 5-tuple allocation".
            // A new connection may have the port of the one that is closed.
            Some(holder) if holder == ticket.index && !is_disconnected => {
                Err(ErrorCode::BAD_REQUEST.into())
            }
            Some(holder) if holder != ticket.index => Err(ErrorCode::ALLOCATION_MISMATCH.into()),
            _ => {
                self.check_transport(context, ticket.index)?;
                self.refresh(now, context, message, ticket.index)
            }
        }
    }

    /// Asks the embedder to move the request and its client's 5-tuple to the engine that the ticket names.
    fn send_after_ticket(
        &mut self,
        now: Now,
        context: &RequestContext,
        message: &Message<'_>,
        ticket: &Ticket,
    ) -> Result<(), Refusal> {
        let five_tuple = &context.path.five_tuple;
        // A DTLS session stays where it is. A stream would have been moved before, if that were possible.
        if !context.may_move || five_tuple.transport != Transport::Udp {
            return Err(ErrorCode::MOBILITY_FORBIDDEN.into());
        }
        if self.holder_of(five_tuple).is_some() {
            return Err(ErrorCode::ALLOCATION_MISMATCH.into());
        }
        let Some(user) = context.user.clone() else {
            return Err(ErrorCode::SERVER_ERROR.into());
        };
        let to = ticket.worker.into();
        self.moved
            .remember(five_tuple, context.transaction_id, to, now.mono);
        self.outputs
            .move_client(to, context.path, message.as_bytes(), Some(user));
        Ok(())
    }

    /// 441 for anybody but the user who made the allocation.
    pub(in super::super) fn check_owner(
        &self,
        context: &RequestContext,
        index: u32,
    ) -> Result<(), ErrorCode<'static>> {
        let owner = self.clients.get(index).map(|client| &client.user);
        let is_owner = |user: &Arc<User>| owner.is_some_and(|owner| owner.is_same_as(user));
        let is_owner = context.user.as_ref().is_some_and(is_owner);
        is_owner.then_some(()).ok_or(ErrorCode::WRONG_CREDENTIALS)
    }

    /// RFC 6062 §4.1: the client of a TCP allocation uses TCP or TLS.
    fn check_transport(
        &self,
        context: &RequestContext,
        index: u32,
    ) -> Result<(), ErrorCode<'static>> {
        let allocation = self.clients.allocation(index);
        let mut relays = allocation.into_iter().flat_map(|found| found.relays());
        let is_tcp = relays.any(|relay| self.tcp.has_relay(relay));
        let is_stream = matches!(
            context.path.five_tuple.transport,
            Transport::Tcp | Transport::Tls
        );
        if is_tcp && !is_stream {
            return Err(ErrorCode::BAD_REQUEST);
        }
        Ok(())
    }

    /// Answers the Refresh request that used up this ticket once more. `false` if this is another request.
    fn answer_refresh_again(
        &mut self,
        now: Now,
        context: &RequestContext,
        ticket: &Ticket,
    ) -> bool {
        let Some(mobile) = self.mobility.mobile.get(&ticket.index) else {
            return false;
        };
        let serial = mobile.serial;
        let is_before = (ticket.serial + 1) % SERIALS == serial;
        let is_same = |last: &LastRefresh| {
            last.five_tuple == context.path.five_tuple
                && last.transaction_id == context.transaction_id
                && now.mono <= last.at.plus_secs(OLD_TICKET_S)
        };
        let Some(last) = mobile.last.filter(|last| is_before && is_same(last)) else {
            return false;
        };
        let Some(next) = self.ticket(ticket.index, serial) else {
            return false;
        };
        self.stats.retransmissions += 1;
        self.respond_refreshed(context, last.lifetime_s, Some(&next));
        true
    }

    /// Makes where this request came from the second 5-tuple of the allocation. Returns the new ticket.
    pub(in super::super) fn begin_move(
        &mut self,
        now: Now,
        context: &RequestContext,
        index: u32,
        lifetime_s: u32,
    ) -> Result<[u8; LEN], ErrorCode<'static>> {
        self.transfer_quota(context, index)?;
        let mobile = self.mobility.mobile.get_mut(&index);
        let mobile = mobile.ok_or(ErrorCode::BAD_REQUEST)?;
        mobile.serial = (mobile.serial + 1) % SERIALS;
        let serial = mobile.serial;
        mobile.last = Some(LastRefresh {
            five_tuple: context.path.five_tuple,
            transaction_id: context.transaction_id,
            lifetime_s,
            at: now.mono,
        });
        mobile.counted_at = Some(context.path);
        if let Some(before) = self.mobility.set_second(index, context.path) {
            self.outputs.push(Queued::Path(PathChange::Removed(before)));
        }
        self.outputs
            .push(Queued::Path(PathChange::Added(context.path)));
        self.ticket(index, serial).ok_or(ErrorCode::SERVER_ERROR)
    }

    /// Counts the allocation for where its client is now.
    fn transfer_quota(
        &self,
        context: &RequestContext,
        index: u32,
    ) -> Result<(), ErrorCode<'static>> {
        let (Some(client), Some(allocation)) =
            (self.clients.get(index), self.clients.allocation(index))
        else {
            return Err(ErrorCode::ALLOCATION_MISMATCH);
        };
        let counted_at = self.mobility.counted_at(index);
        let from = counted_at.unwrap_or_else(|| client.path.path());
        let [from, to] = [from, context.path].map(|path| Server::identity(&client.user, path));
        for done in 0..allocation.relays().count() {
            if let Err(exceeded) = self.quota.transfer(&from, &to) {
                for _ in 0..done {
                    // The unit was just counted there.
                    let _ = self.quota.transfer(&to, &from);
                }
                return Err(exceeded.code());
            }
        }
        Ok(())
    }

    /// The success response to a Refresh request.
    pub(in super::super) fn respond_refreshed(
        &mut self,
        context: &RequestContext,
        lifetime_s: u32,
        ticket: Option<&[u8; LEN]>,
    ) {
        self.answer(context, Class::Success, |message| {
            message.push(&Lifetime(lifetime_s))?;
            match ticket {
                Some(ticket) => message.push(&MobilityTicket(ticket)).map(drop),
                None => Ok(()),
            }
        });
    }
}
