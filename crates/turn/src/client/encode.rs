//! Requests as bytes.

use std::net::SocketAddr;

use stun::{
    BuildError, Builder, Class, Lifetime, MobilityTicket, RequestedAddressFamily, Software,
    TransactionId, XorPeerAddress,
};

use super::Client;
use super::error::RequestError;
use super::transaction::Operation;

/// A request with the longest user name, realm and nonce that are seen in the field has a quarter of this.
const MAX_REQUEST: usize = 2048;

impl Client {
    /// The request of `operation`, signed if the server has asked for it.
    pub(super) fn encode(
        &self,
        operation: &Operation,
        id: &TransactionId,
        sign: bool,
    ) -> Result<Box<[u8]>, RequestError> {
        let mut buffer = [0; MAX_REQUEST];
        let request =
            self.write(&mut buffer, operation, id, sign)
                .map_err(|error| match error {
                    BuildError::BufferFull => RequestError::TooLong,
                    _ => RequestError::UnusableCredentials,
                })?;
        Ok(request.into())
    }

    fn write<'b>(
        &self,
        buffer: &'b mut [u8],
        operation: &Operation,
        id: &TransactionId,
        sign: bool,
    ) -> Result<&'b [u8], BuildError> {
        let mut request = Builder::new(buffer, Class::Request, operation.method(), id)?;
        self.write_attributes(&mut request, operation)?;
        if let (true, Some(challenge)) = (sign, &self.challenge) {
            challenge.sign(&mut request)?;
        }
        if self.config.fingerprint {
            request.fingerprint()?;
        }
        Ok(request.finish())
    }

    fn write_attributes(
        &self,
        request: &mut Builder<'_>,
        operation: &Operation,
    ) -> Result<(), BuildError> {
        match operation {
            Operation::Binding => self.write_software(request),
            Operation::Allocate(options) => {
                self.write_software(request)?;
                options.write(request)
            }
            Operation::Refresh { lifetime_s, family } => {
                self.write_software(request)?;
                if let Some(seconds) = lifetime_s {
                    request.push(&Lifetime(*seconds))?;
                }
                if let Some(family) = family {
                    request.push(&RequestedAddressFamily(*family))?;
                }
                Ok(())
            }
            Operation::Move => {
                self.write_software(request)?;
                let allocation = self.allocation.as_ref();
                if let Some(seconds) = allocation.and_then(|of| of.options.lifetime_s) {
                    request.push(&Lifetime(seconds))?;
                }
                let ticket = allocation.and_then(|of| of.ticket.as_deref());
                request
                    .push(&MobilityTicket(ticket.unwrap_or_default()))
                    .map(drop)
            }
            Operation::CreatePermission(peers) => {
                for peer in peers {
                    // RFC 8656 §10.1: the port is ignored.
                    request.push(&XorPeerAddress(SocketAddr::new(*peer, 0)))?;
                }
                Ok(())
            }
            Operation::ChannelBind { channel, peer } => {
                request.push(channel)?.push(&XorPeerAddress(*peer))?;
                Ok(())
            }
            Operation::Connect { peer } => request.push(&XorPeerAddress(*peer)).map(drop),
            Operation::ConnectionBind { id } => request.push(id).map(drop),
        }
    }

    /// RFC 8656 §5: SHOULD be in Allocate and Refresh requests; RFC 8489 §6.1 wants it in every request, which is a
    /// waste.
    fn write_software(&self, request: &mut Builder<'_>) -> Result<(), BuildError> {
        if !self.config.software.is_empty() {
            request.push(&Software(&self.config.software))?;
        }
        Ok(())
    }
}
