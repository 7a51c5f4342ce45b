//! Binding requests and what comes back.

use std::net::SocketAddr;

use stun::{
    BuildError, Builder, ChangeRequest, Class, ErrorCode, MappedAddress, Message, Method,
    OtherAddress, ResponseOrigin, ResponsePort, Software, TransactionId, XorMappedAddress,
};

use super::Received;

/// Room for a request: it has two short attributes at most.
const REQUEST_MAX: usize = 64;

/// What a request asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestedTest {
    pub(super) change: Option<ChangeRequest>,
    pub(super) response_port: Option<u16>,
}

/// A Binding request.
pub(super) fn request(
    id: &TransactionId,
    requested_test: RequestedTest,
) -> Result<Vec<u8>, BuildError> {
    let mut buffer = [0; REQUEST_MAX];
    let mut message = Builder::new(&mut buffer, Class::Request, Method::BINDING, id)?;
    if let Some(change) = requested_test.change {
        message.push(&change)?;
    }
    if let Some(port) = requested_test.response_port {
        message.push(&ResponsePort(port))?;
    }
    Ok(message.finish().to_vec())
}

/// A response to one of our requests.
#[derive(Clone, Debug)]
pub(super) struct Response {
    /// The socket that received it.
    pub(super) socket: usize,
    /// Where it came from.
    pub(super) from: SocketAddr,
    pub(super) outcome: Outcome,
}

#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Mapped(Box<Mapped>),
    /// The code and the server's words.
    Refused(u16, String),
}

/// A success.
#[derive(Clone, Debug)]
pub(super) struct Mapped {
    pub(super) address: SocketAddr,
    pub(super) origin: Option<SocketAddr>,
    pub(super) other: Option<SocketAddr>,
    pub(super) software: Option<String>,
}

/// The response in a datagram; `None` if it is something else.
pub(super) fn response(received: &Received, id: &TransactionId) -> Option<Response> {
    let message = Message::parse(&received.bytes).ok()?;
    if message.transaction_id() != *id || message.method() != Method::BINDING {
        return None;
    }
    let outcome = match message.class() {
        Class::Success => Outcome::Mapped(Box::new(mapped(&message)?)),
        Class::Error => {
            let error: ErrorCode<'_> = message.get().ok()??;
            Outcome::Refused(error.code, error.reason.to_owned())
        }
        _ => return None,
    };
    Some(Response {
        socket: received.socket,
        from: received.from,
        outcome,
    })
}

fn mapped(message: &Message<'_>) -> Option<Mapped> {
    let xored = message
        .get::<XorMappedAddress>()
        .ok()?
        .map(|address| address.0);
    let plain = message
        .get::<MappedAddress>()
        .ok()?
        .map(|address| address.0);
    let software = message.get::<Software<'_>>().ok()?;
    Some(Mapped {
        address: xored.or(plain)?,
        origin: message
            .get::<ResponseOrigin>()
            .ok()?
            .map(|address| address.0),
        other: message.get::<OtherAddress>().ok()?.map(|address| address.0),
        software: software.map(|software| software.0.to_owned()),
    })
}

/// Whether this is the request itself, as a hairpin returns it.
pub(super) fn is_request(received: &Received, id: &TransactionId) -> bool {
    let message = Message::parse(&received.bytes);
    message
        .is_ok_and(|message| message.class() == Class::Request && message.transaction_id() == *id)
}
