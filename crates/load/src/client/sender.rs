//! Data on its way out.

use std::net::SocketAddr;
use std::sync::Arc;

use client::Endpoint;
use io::{Flushed, Outbox, SendTo, UdpSocket};
use stun::{ChannelNumber, INDICATION_HEADER_MAX};
use turn::Now;
use turn::client::SendError;

use super::slot::ClientId;

/// A session of sending; made by [`Driver::sender`](super::Driver::sender). What is pushed leaves when the queue is full, at
/// [`flush`](Sender::flush), or when the session is dropped. Payloads are not copied.
#[derive(Debug)]
pub struct Sender<'a> {
    pub(super) clients: &'a mut [Option<Endpoint>],
    pub(super) sockets: &'a [Option<Arc<UdpSocket>>],
    pub(super) outbox: Outbox<'a, 'a>,
    pub(super) now: Now,
}

impl<'a> Sender<'a> {
    /// Queues `payload` on a channel of a client.
    ///
    /// # Errors
    /// [`SendError`]; `NotBound` also if the client has left.
    #[inline]
    pub fn channel(
        &mut self,
        id: ClientId,
        channel: ChannelNumber,
        payload: &'a [u8],
    ) -> Result<(), SendError> {
        let now = self.now;
        let (endpoint, socket) = self.parts(id).ok_or(SendError::NotBound)?;
        let to = SendTo::new(socket, endpoint.server());
        let header = endpoint
            .data()
            .channel_header(now, channel, payload.len())?;
        self.outbox.push_prefixed(&to, &header, payload, 0);
        Ok(())
    }

    /// Queues `payload` in a Send indication.
    ///
    /// # Errors
    /// [`SendError`]; `NotPermitted` also if the client has left.
    #[inline]
    pub fn indication(
        &mut self,
        id: ClientId,
        peer: SocketAddr,
        payload: &'a [u8],
    ) -> Result<(), SendError> {
        let now = self.now;
        let (endpoint, socket) = self.parts(id).ok_or(SendError::NotPermitted)?;
        let to = SendTo::new(socket, endpoint.server());
        let mut header = [0; INDICATION_HEADER_MAX];
        let len = endpoint
            .data()
            .send_indication_header(now, peer, payload.len(), &mut header)?;
        self.outbox
            .push_prefixed(&to, &header[..len], payload, stun::padding(payload.len()));
        Ok(())
    }

    /// Sends what waits, and says what became of it and of what left since the last flush.
    pub fn flush(&mut self) -> Flushed {
        self.outbox.flush()
    }

    #[inline]
    fn parts(&mut self, id: ClientId) -> Option<(&mut Endpoint, &'a UdpSocket)> {
        let socket = self.sockets.get(id.index())?.as_deref()?;
        Some((self.clients.get_mut(id.index())?.as_mut()?, socket))
    }
}
