//! Requests without a transaction, and what a proxy asks of the engine: loops, and its sent-by.

use super::client::{Outgoing, datagram};
use super::connections::Waiting;
use super::error::RequestError;
use super::output::{Origin, SendTo};
use super::sent_by::{Hop, Signature};
use super::{Engine, compose};
use crate::Mono;
use crate::branch::LoopCheck;
use crate::flow::Destination;
use crate::message::Message;

impl Engine {
    /// What a proxy makes its decision of, to go along where it forks (RFC 5393 §4.2.1); `others` is what its location service looks at
    /// besides the Request-URI and Route.
    #[must_use]
    pub fn loop_check(&self, request: &Message<'_>, others: &[u8]) -> LoopCheck {
        self.codec.loop_check(request, others)
    }

    /// Whether a request was here already, and the decision was made of the same (RFC 5393 §4.2.2): it gets 482. Whoever comes back
    /// with something changed spirals, and goes on.
    #[must_use]
    pub fn has_looped(&self, request: &Message<'_>, check: LoopCheck) -> bool {
        // What cannot be read is not ours.
        request.vias().filter_map(Result::ok).any(|via| {
            via.branch.and_then(LoopCheck::of) == Some(check)
                && self.config.is_ours(via.host, via.port_or_default())
        })
    }

    /// A number for [`Engine::send_stateless`]: the same for a message that comes again byte by byte.
    #[must_use]
    pub fn number_of(&self, message: &[u8]) -> u128 {
        self.codec.number_of(message)
    }

    /// What this server calls itself on a hop, in Via, Record-Route and Contact; `None` if its socket has no such transport, or nobody
    /// knows the address.
    #[must_use]
    pub fn signature(&self, hop: &Hop) -> Option<Signature<'_>> {
        self.config.signature(hop)
    }

    /// Sends a request that has no transaction: the ACK for a 2xx, or one forwarded statelessly. Its branch is made from
    /// `number`: the same for a retransmission, another for anything else.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn send_stateless(
        &mut self,
        now: Mono,
        out: &Outgoing<'_>,
        number: u128,
    ) -> Result<(), RequestError> {
        let (to, _) = self.choose_carrier(out);
        self.send_stateless_to(now, out, to, number)
    }

    /// The same by a flow that the other end has opened, whatever the size: see [`Engine::request_by_flow`].
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn send_stateless_by_flow(
        &mut self,
        now: Mono,
        out: &Outgoing<'_>,
        number: u128,
    ) -> Result<(), RequestError> {
        self.send_stateless_to(now, out, out.to.clone(), number)
    }

    fn send_stateless_to(
        &mut self,
        now: Mono,
        out: &Outgoing<'_>,
        to: Destination,
        number: u128,
    ) -> Result<(), RequestError> {
        let connection = self.named_connection(out)?;
        let signature = self.config.signature(&Hop::from(&to));
        let signature = signature.ok_or(RequestError::NoSentBy)?;
        let branch = self.codec.write_stateless(number);
        let oc = self.config.overload_offer();
        let branch = (&branch, out.loop_check);
        let built = compose::request(&mut self.scratch, out.pieces, &signature, branch, oc);
        let length = built.map_err(|_| RequestError::Malformed)?.len();
        let bytes = self.scratch.get(..length).unwrap_or_default();
        if let Some(connection) = connection {
            self.connections.touch(now, connection);
            let to = SendTo::Stream(connection);
            self.outputs.send(to, Origin::Nobody, bytes);
        } else if to.carrier.is_reliable() {
            let cell = self.store.keep(bytes).ok_or(RequestError::Malformed)?;
            self.send_over_stream(now, to, Waiting::Response(None, cell));
        } else {
            self.outputs.send(datagram(&to), Origin::Nobody, bytes);
        }
        Ok(())
    }
}
