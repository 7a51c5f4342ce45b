//! Writing responses (RFC 8489 §6.3.1.1).

use std::net::SocketAddr;

use stun::{BuildError, Builder, Class, ErrorCode, Software, UnknownAttributes};

use super::alternate::{self, Alternate};
use super::config::Config;
use super::request_context::RequestContext;
use super::{DropReason, Server};
use crate::{ClientPath, Transport};

/// Room for the largest response: REALM, SOFTWARE and the reason phrase have at most 127 characters each,
/// that is 508 bytes.
pub(super) const RESPONSE_MAX: usize = 2048;

/// Why a request is refused.
#[derive(Debug)]
pub(super) enum Refusal {
    /// With this code.
    Code(ErrorCode<'static>),
    /// With 420 and the types that are not known.
    Unknown(Box<UnknownAttributes>),
    /// With 300 and another server.
    Alternate(Box<Alternate>),
}

impl From<ErrorCode<'static>> for Refusal {
    fn from(error: ErrorCode<'static>) -> Refusal {
        Refusal::Code(error)
    }
}

impl Server {
    /// Responds with success. `attributes` adds those of the method.
    pub(super) fn succeed(
        &mut self,
        context: &RequestContext,
        attributes: impl FnOnce(&mut Builder<'_>) -> Result<(), BuildError>,
    ) {
        self.stats.count_success(context.method);
        self.answer(context, Class::Success, attributes);
    }

    /// Responds with an error.
    pub(super) fn refuse(&mut self, context: &RequestContext, refusal: &Refusal) {
        match refusal {
            Refusal::Code(error) => {
                self.stats.count_error(context.method, error.code);
                self.answer(context, Class::Error, |message| {
                    message.push(error).map(drop)
                });
            }
            Refusal::Alternate(server) => {
                self.stats
                    .count_error(context.method, ErrorCode::TRY_ALTERNATE.code);
                let transport = context.path.five_tuple.transport;
                self.answer(context, Class::Error, |message| {
                    alternate::write(message, server, transport)
                });
            }
            Refusal::Unknown(types) => {
                self.stats
                    .count_error(context.method, ErrorCode::UNKNOWN_ATTRIBUTE.code);
                self.answer(context, Class::Error, |message| {
                    message
                        .push(&ErrorCode::UNKNOWN_ATTRIBUTE)?
                        .push(&**types)
                        .map(drop)
                });
            }
        }
    }

    /// Writes and queues the response.
    pub(super) fn answer(
        &mut self,
        context: &RequestContext,
        class: Class,
        attributes: impl FnOnce(&mut Builder<'_>) -> Result<(), BuildError>,
    ) {
        let mut buffer = [0; RESPONSE_MAX];
        let software = self.config.software.as_deref();
        // It fits: the attributes of responses are few, and all texts are bounded (`Config::validate`).
        let Ok(message) = write(&mut buffer, context, class, software, attributes) else {
            return;
        };
        if context.user.is_none()
            && !self
                .config
                .may_answer(&context.path, context.length, message.len())
        {
            self.stats.count_drops(DropReason::Amplification, 1);
            return;
        }
        self.outputs.send(context.path, message);
    }
}

impl Config {
    /// Whether a response of this length may go to an unproven address.
    pub(super) fn may_answer(&self, path: &ClientPath, request: usize, answer: usize) -> bool {
        // The headers of IP and UDP are the same for both.
        let is_proven = path.five_tuple.transport != Transport::Udp;
        !self.strict_amplification || is_proven || answer <= request
    }
}

/// Writes a response.
fn write<'b>(
    buffer: &'b mut [u8],
    context: &RequestContext,
    class: Class,
    software: Option<&str>,
    attributes: impl FnOnce(&mut Builder<'_>) -> Result<(), BuildError>,
) -> Result<&'b [u8], BuildError> {
    let mut message = Builder::new(buffer, class, context.method, &context.transaction_id)?;
    attributes(&mut message)?;
    // Only in responses to authenticated requests, because it makes responses larger (RFC 8656 §5: in all Allocate and
    // Refresh responses).
    if let Some(software) = software.filter(|_| context.user.is_some()) {
        message.push(&Software(software))?;
    }
    if let Some(user) = &context.user {
        for key in user.answer_keys() {
            message.integrity(key)?;
        }
    }
    if context.fingerprint {
        message.fingerprint()?;
    }
    Ok(message.finish())
}

/// The most bytes of a response to an unproven address, so that the server is no amplifier. It is `times` the size of
/// the request; both sizes include the IP and UDP headers.
pub(super) fn amplification_limit(
    transport: Transport,
    client: &SocketAddr,
    request_len: usize,
    times: usize,
) -> usize {
    // Everything but plain UDP has proven its return path in a handshake.
    if transport != Transport::Udp {
        return usize::MAX;
    }
    let headers = if client.is_ipv4() { 20 + 8 } else { 40 + 8 };
    times * (request_len + headers) - headers
}
