//! Clients that go to another server (RFC 8489 §10).

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;

use stun::{AlternateDomain, AlternateServer, BuildError, Builder, ErrorCode};

use super::Server;
use super::policy::ClientIdentity;
use super::request_context::RequestContext;
use crate::Transport;

/// Decides which clients are sent to another server.
pub trait Alternates: Debug + Send + Sync {
    /// The server that a client shall ask for its allocation instead; `None` if it gets one here. The engine asks for
    /// each Allocate request that is authenticated and well-formed, before it acquires anything. `random` is a
    /// uniformly distributed number.
    fn alternate(&self, client: &ClientIdentity<'_>, random: u32) -> Option<Alternate>;
}

/// Another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternate {
    /// Its address, of the family of the client's own (RFC 8489 §10).
    pub server: SocketAddr,
    /// Its address of the other family, if it has one.
    pub other_family: Option<SocketAddr>,
    /// The name in its certificate, if that is not this server's: ALTERNATE-DOMAIN, over TLS and DTLS only. Fewer than
    /// 256 bytes of ASCII.
    pub domain: Option<Arc<str>>,
}

impl Server {
    /// The server that this client shall ask instead. A request that another worker has sent here stays.
    pub(super) fn alternate_for(&mut self, context: &RequestContext) -> Option<Box<Alternate>> {
        let alternates = self.config.alternates.as_ref()?;
        let user = context.user.as_ref().filter(|_| context.may_move)?;
        let random = self.random.word() as u32;
        let client = user.identity(context.path.five_tuple);
        alternates.alternate(&client, random).map(Box::new)
    }
}

/// The attributes of a 300 response.
pub(super) fn write(
    message: &mut Builder<'_>,
    alternate: &Alternate,
    transport: Transport,
) -> Result<(), BuildError> {
    message
        .push(&ErrorCode::TRY_ALTERNATE)?
        .push(&AlternateServer(alternate.server))?;
    if let Some(other) = alternate.other_family {
        message.push(&AlternateServer(other))?;
    }
    let has_certificate = matches!(transport, Transport::Tls | Transport::Dtls);
    if let Some(domain) = alternate.domain.as_deref().filter(|_| has_certificate) {
        message.push(&AlternateDomain(domain))?;
    }
    Ok(())
}
