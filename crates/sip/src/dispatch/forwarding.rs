//! What a proxy requires in addition. Its Record-Route for the outgoing side is known only when the server is chosen
//! (RFC 5658 §4.2). Some requests use a flow or fail (RFC 5626 §5.3).

use super::requests::Request;
use super::{DispatchError, Dispatcher, OutgoingRequest, RequestKey};
use crate::Mono;
use crate::build::{BuildError, Builder, Part};
use crate::engine::{ClientKey, Engine, Outgoing, RequestError, Signature};
use crate::flow::{Destination, ListenerKey, Transport};
use crate::header::HeaderKind;

/// Bytes of the longest Record-Route line: a token, a host of 255 bytes, and what belongs to them.
const LINE: usize = 640;

/// How a proxy's request is sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forwarding<'a> {
    /// The Record-Route or Path value that is put on top of the request.
    pub record_route: Option<RecordRoute<'a>>,
    /// The request fails if its flow has failed, regardless of its target.
    pub only_by_flow: bool,
    /// The request fails if its flow ends before the final response, also after a provisional response. The other side
    /// is a phone, which can only be reached by the flow.
    pub ends_with_flow: bool,
}

/// A Record-Route or Path value without its host, which is that of the socket the request leaves by.
#[derive(Clone, Copy, Debug)]
pub struct RecordRoute<'a> {
    /// Record-Route or Path.
    pub kind: HeaderKind,
    /// Parameters of the URI besides `transport` and `lr`, each with its semicolon.
    pub params: &'static [u8],
    /// The user of the URI.
    pub user: &'a [u8],
    /// The user if [`OutgoingRequest::flow`] has failed, so that the request leaves by another one.
    pub user_without_flow: &'a [u8],
    /// Whether its scheme is `sips`, as that of the Request-URI (RFC 3261 §16.6 step 4).
    pub is_sips: bool,
    /// No value is put on top if the request leaves by this socket: the value in the request serves for both sides.
    pub unless: Option<(ListenerKey, Transport)>,
}

/// The same, as it is kept.
#[derive(Debug)]
pub(super) struct StoredRoute {
    kind: HeaderKind,
    params: &'static [u8],
    user: Box<[u8]>,
    user_without_flow: Box<[u8]>,
    is_sips: bool,
    unless: Option<(ListenerKey, Transport)>,
}

impl StoredRoute {
    pub(super) fn of(route: &RecordRoute<'_>) -> Box<StoredRoute> {
        Box::new(StoredRoute {
            kind: route.kind,
            params: route.params,
            user: route.user.into(),
            user_without_flow: route.user_without_flow.into(),
            is_sips: route.is_sips,
            unless: route.unless,
        })
    }
}

/// Writes `<sip:user@host:port;transport=tcp;lr>` as a header field of this kind, Record-Route or Path, for this hop.
/// `params` are further parameters of the URI, each with its semicolon.
pub fn write_route(
    line: &mut Builder<'_>,
    kind: HeaderKind,
    user: &[u8],
    is_sips: bool,
    signature: &Signature<'_>,
    params: &[u8],
) {
    let transport: &[u8] = match (signature.transport, is_sips) {
        (Transport::Udp, _) | (Transport::Tls, true) => b"",
        (Transport::Tcp, _) => b";transport=tcp",
        (Transport::Tls, false) => b";transport=tls",
        (Transport::Wss, true) | (Transport::Ws, _) => b";transport=ws",
        (Transport::Wss, false) => b";transport=wss",
    };
    line.header_of(
        kind,
        &[
            Part::Bytes(if is_sips { b"<sips:" } else { b"<sip:" }),
            Part::Bytes(user),
            Part::Bytes(b"@"),
            signature.host_part(),
            Part::Bytes(b":"),
            Part::Number(signature.port.into()),
            Part::Bytes(transport),
            Part::Bytes(b";lr"),
            Part::Bytes(params),
            Part::Bytes(b">"),
        ],
    );
}

impl Dispatcher {
    /// Sends a request as [`Dispatcher::send`] does, for a proxy. An ACK is sent once, without a transaction: it has no
    /// result.
    ///
    /// # Errors
    /// [`DispatchError`]; nothing will be told of it then.
    pub fn forward(
        &mut self,
        now: Mono,
        engine: &mut Engine,
        order: &OutgoingRequest<'_>,
        forwarding: &Forwarding<'_>,
    ) -> Result<RequestKey, DispatchError> {
        if self.requests.len() >= self.config.most {
            return Err(DispatchError::Full);
        }
        let mut request = Request::new(order)?;
        request.record_route = forwarding.record_route.as_ref().map(StoredRoute::of);
        request.only_by_flow = forwarding.only_by_flow;
        request.ends_with_flow = forwarding.ends_with_flow;
        Ok(self.start(now, engine, request, order.flow))
    }
}

impl Request {
    /// Hands the request to the engine: by a flow, or to a server.
    pub(super) fn give(
        &self,
        now: Mono,
        engine: &mut Engine,
        out: Outgoing<'static>,
        by_flow: bool,
    ) -> Result<Option<ClientKey>, RequestError> {
        let mut line = [0; LINE];
        let line = self.record_route_line(engine, (&out.to, by_flow), &mut line);
        let line = line.map_err(|_| RequestError::Malformed)?;
        let first = memchr::memchr(b'\n', &self.bytes).map_or(0, |at| at + 1);
        let (start, rest) = self.bytes.split_at(first);
        let pieces = [start, line, rest];
        // Most requests have no such line.
        let all = [&self.bytes[..]];
        let out = Outgoing {
            pieces: if line.is_empty() { &all } else { &pieces },
            ..out
        };
        if self.is_ack {
            let number = engine.number_of(&self.bytes);
            return match by_flow {
                true => engine.send_stateless_by_flow(now, &out, number),
                false => engine.send_stateless(now, &out, number),
            }
            .map(|()| None);
        }
        match by_flow {
            true => engine.request_by_flow(now, &out),
            false => engine.request(now, &out),
        }
        .map(Some)
    }

    fn record_route_line<'b>(
        &self,
        engine: &Engine,
        (to, by_flow): (&Destination, bool),
        buffer: &'b mut [u8],
    ) -> Result<&'b [u8], BuildError> {
        let leaves_by = Some((to.listener, to.transport));
        let route = self.record_route.as_ref();
        let Some(route) = route.filter(|route| route.unless != leaves_by) else {
            return Ok(&[]);
        };
        // Without a signature the engine refuses the request.
        let Some(signature) = engine.signature(&to.into()) else {
            return Ok(&[]);
        };
        let mut line = Builder::fields(buffer);
        let user = match by_flow {
            true => &route.user,
            false => &route.user_without_flow,
        };
        let is_sips = route.is_sips;
        let params = route.params;
        write_route(&mut line, route.kind, user, is_sips, &signature, params);
        line.finish_fields()
    }
}
