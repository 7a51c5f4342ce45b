//! Queues data of clients and sends it.

use std::net::SocketAddr;

use client::Endpoint;
use io::{Flushed, Outbox, SendTo};
use stun::{ChannelNumber, INDICATION_HEADER_MAX};
use turn::Now;
use turn::client::SendError;

use super::slot::ClientId;
use crate::Socket;
use crate::gather::Gather;

/// A session of sending; made by [`Driver::sender`](super::Driver::sender). What is pushed leaves when the queue is
/// full, at [`flush`](Sender::flush), or when the session is dropped. Payloads are not copied.
#[derive(Debug)]
pub struct Sender<'a> {
    pub(super) clients: &'a mut [Option<Endpoint>],
    pub(super) sockets: &'a [Option<Socket>],
    pub(super) outbox: Outbox<'a, 'a>,
    pub(super) gather: &'a mut Gather,
    pub(super) now: Now,
}

impl<'a> Sender<'a> {
    /// Queues `payload` on a channel of a client.
    ///
    /// # Errors
    /// [`SendError`]; `NotBound` also if the client has ended.
    #[inline]
    pub fn channel(
        &mut self,
        id: ClientId,
        channel: ChannelNumber,
        payload: &'a [u8],
    ) -> Result<(), SendError> {
        let now = self.now;
        let (endpoint, socket) = self.parts(id).ok_or(SendError::NotBound)?;
        let server = endpoint.server();
        let client = endpoint.data();
        let header = client.channel_header(now, channel, payload.len())?;
        let padding = client.channel_padding(payload.len());
        self.push(socket, server, &header, payload, padding);
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
        let server = endpoint.server();
        let mut header = [0; INDICATION_HEADER_MAX];
        let len = endpoint
            .data()
            .send_indication_header(now, peer, payload.len(), &mut header)?;
        let padding = stun::padding(payload.len());
        self.push(socket, server, &header[..len], payload, padding);
        Ok(())
    }

    /// Sends what waits, and says what became of it and of what left since the last flush.
    pub fn flush(&mut self) -> Flushed {
        let mut flushed = self.outbox.flush();
        flushed += self.gather.flush();
        flushed
    }

    fn push(
        &mut self,
        socket: &'a Socket,
        server: SocketAddr,
        header: &[u8],
        payload: &'a [u8],
        padding: usize,
    ) {
        match socket {
            Socket::Udp(socket) => {
                let to = SendTo::new(socket, server);
                self.outbox.push_prefixed(&to, header, payload, padding);
            }
            Socket::Connection(connection) => {
                let padding = &[0; 3][..padding];
                self.gather.queue(connection, &[header, payload, padding]);
            }
        }
    }

    #[inline]
    fn parts(&mut self, id: ClientId) -> Option<(&mut Endpoint, &'a Socket)> {
        let socket = self.sockets.get(id.index())?.as_ref()?;
        Some((self.clients.get_mut(id.index())?.as_mut()?, socket))
    }
}

impl Drop for Sender<'_> {
    fn drop(&mut self) {
        // The outbox does the same by itself.
        self.gather.flush();
    }
}
