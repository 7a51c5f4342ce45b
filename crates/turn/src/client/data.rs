//! The data path: what peers send and what is sent to them. Nothing here allocates.

use std::net::SocketAddr;
use std::ops::Range;

use stun::channel_data::{self, ChannelData};
use stun::demux::Packet;
use stun::{
    Builder, ChannelNumber, Class, Data, DontFragment, FingerprintState, INDICATION_HEADER_MAX,
    Icmp, Message, Method, XorPeerAddress,
};

use super::Client;
use super::event::{Event, PeerError};
use crate::Now;
use crate::types::attribute::is_known;

/// What a datagram from the server was.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Received {
    /// A peer's data.
    Data {
        /// Who sent it to the relayed transport address.
        peer: SocketAddr,
        /// The channel it came on; `None` for a Data indication.
        channel: Option<ChannelNumber>,
        /// Where in the datagram it is; may be empty.
        payload: Range<usize>,
    },
    /// A response or an indication: look for events, and for something to transmit.
    Handled,
    /// Neither STUN nor ChannelData, or a STUN request: for another protocol on the same socket.
    NotMine,
    /// STUN or ChannelData, but of no use.
    Ignored(Ignored),
}

/// Why a datagram from the server was of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ignored {
    /// It breaks the rules of its format, lacks a required attribute or has an unknown one.
    Malformed,
    /// A response to no request of ours; often the second response to a request that was sent twice.
    UnknownTransaction,
    /// A response that cannot be trusted (RFC 8489 §9.2.5): the request goes on.
    Untrusted,
    /// Data on a channel that is not bound.
    UnboundChannel,
    /// Data from a peer for whom there is no permission.
    NotPermitted,
}

/// Why data cannot be sent to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The channel is not bound, not yet or not any more.
    #[error("the channel is not bound")]
    NotBound,
    /// There is no permission for the peer.
    #[error("there is no permission for this peer")]
    NotPermitted,
    /// The data does not fit into one message or into the buffer.
    #[error("the data does not fit into one message")]
    TooLong,
}

impl Client {
    /// Looks at one datagram that came from the server.
    ///
    /// After anything but [`Received::Data`] there may be events, and requests to transmit.
    pub fn handle_input(&mut self, now: Now, datagram: &[u8]) -> Received {
        match Packet::of(datagram) {
            Packet::TurnChannel => self.receive_channel_data(now, datagram),
            Packet::Stun => match Message::parse(datagram) {
                Ok(message) => self.receive_message(now, &message),
                Err(_) => Received::Ignored(Ignored::Malformed),
            },
            _ => Received::NotMine,
        }
    }

    /// The four bytes that go in front of data on a bound channel. Over TCP and TLS
    /// [`channel_padding`](Self::channel_padding) zero bytes follow the data.
    ///
    /// # Errors
    /// [`SendError::NotBound`] until the server has confirmed the binding, [`SendError::TooLong`] beyond 65,535 bytes.
    #[inline]
    pub fn channel_header(
        &self,
        now: Now,
        channel: ChannelNumber,
        payload_len: usize,
    ) -> Result<[u8; channel_data::HEADER_LEN], SendError> {
        if !self.channels.is_bound(channel, now.mono) {
            return Err(SendError::NotBound);
        }
        let len = u16::try_from(payload_len).map_err(|_| SendError::TooLong)?;
        Ok(channel_data::header(channel, len))
    }

    /// How many zero bytes follow data of this length (in bytes) on a channel. Over UDP and DTLS it is 0, over TCP and
    /// TLS 0 to 3 (RFC 8656 §12.5).
    #[inline]
    #[must_use]
    pub fn channel_padding(&self, payload_len: usize) -> usize {
        if self.config.transport.is_stream() {
            stun::padding(payload_len)
        } else {
            0
        }
    }

    /// Writes what goes in front of the data in a Send indication and returns how many bytes that is. The data and
    /// [`stun::padding`] zero bytes must follow.
    ///
    /// # Errors
    /// [`SendError::NotPermitted`], [`SendError::TooLong`].
    #[inline]
    pub fn send_indication_header(
        &mut self,
        now: Now,
        peer: SocketAddr,
        payload_len: usize,
        header: &mut [u8; INDICATION_HEADER_MAX],
    ) -> Result<usize, SendError> {
        if !self.permissions.is_active(&peer.ip(), now.mono) {
            return Err(SendError::NotPermitted);
        }
        let id = self.random.transaction_id();
        stun::send_indication_header(header, &id, &peer, payload_len).ok_or(SendError::TooLong)
    }

    /// Writes a whole Send indication into `out` and returns its length: `payload` and at most 72 bytes.
    ///
    /// `dont_fragment` asks the server to send the data with DF set; a server that does not support it drops the data.
    ///
    /// # Errors
    /// [`SendError::NotPermitted`], [`SendError::TooLong`].
    pub fn write_send_indication(
        &mut self,
        now: Now,
        peer: SocketAddr,
        payload: &[u8],
        dont_fragment: bool,
        out: &mut [u8],
    ) -> Result<usize, SendError> {
        if !self.permissions.is_active(&peer.ip(), now.mono) {
            return Err(SendError::NotPermitted);
        }
        let id = self.random.transaction_id();
        let too_long = |_| SendError::TooLong;
        let mut message =
            Builder::new(out, Class::Indication, Method::SEND, &id).map_err(too_long)?;
        message.push(&XorPeerAddress(peer)).map_err(too_long)?;
        if dont_fragment {
            message.push(&DontFragment).map_err(too_long)?;
        }
        message.push(&Data(payload)).map_err(too_long)?;
        if self.config.fingerprint {
            message.fingerprint().map_err(too_long)?;
        }
        Ok(message.finish().len())
    }

    #[inline]
    fn receive_channel_data(&self, now: Now, datagram: &[u8]) -> Received {
        let Ok(ChannelData { number, payload }) = ChannelData::parse_datagram(datagram) else {
            return Received::Ignored(Ignored::Malformed);
        };
        let Some((peer, pending)) = self.channels.peer(number, now.mono) else {
            return Received::Ignored(Ignored::UnboundChannel);
        };
        // RFC 8656 §12.6: RECOMMENDED to discard data for whose sender no permission is believed to be active. While
        // the ChannelBind that installs it is in progress, it is.
        if !pending && !self.permissions.accepts_data_from(&peer.ip(), now.mono) {
            return Received::Ignored(Ignored::NotPermitted);
        }
        let start = channel_data::HEADER_LEN;
        Received::Data {
            peer,
            channel: Some(number),
            payload: start..start + payload.len(),
        }
    }

    fn receive_message(&mut self, now: Now, message: &Message<'_>) -> Received {
        if message.fingerprint() == FingerprintState::Invalid {
            return Received::Ignored(Ignored::Malformed);
        }
        match (message.class(), message.method()) {
            (Class::Success | Class::Error, _) => self.handle_response(now, message),
            (Class::Indication, Method::DATA) => self.receive_data_indication(now, message),
            (Class::Indication, Method::CONNECTION_ATTEMPT) => {
                self.receive_connection_attempt(now, message)
            }
            // RFC 8489 §6.3.2: its arrival has refreshed the NAT bindings on the way; that is all there is to do.
            (Class::Indication, Method::BINDING) => Received::Handled,
            (Class::Indication, _) => Received::Ignored(Ignored::Malformed),
            (Class::Request, _) => Received::NotMine,
        }
    }

    /// RFC 8656 §11.4 and §11.6.
    fn receive_data_indication(&mut self, now: Now, message: &Message<'_>) -> Received {
        // RFC 8489 §6.3.2: discarded with unknown comprehension-required attributes.
        if message.unknown_required(is_known).next().is_some() {
            return Received::Ignored(Ignored::Malformed);
        }
        let Ok(Some(XorPeerAddress(peer))) = message.get() else {
            return Received::Ignored(Ignored::Malformed);
        };
        if !self.permissions.accepts_data_from(&peer.ip(), now.mono) {
            return Received::Ignored(Ignored::NotPermitted);
        }
        if let Ok(Some(Data(payload))) = message.get() {
            let start = payload.as_ptr().addr() - message.as_bytes().as_ptr().addr();
            return Received::Data {
                peer,
                channel: None,
                payload: start..start + payload.len(),
            };
        }
        let Ok(Some(Icmp {
            icmp_type,
            icmp_code,
            error_data,
        })) = message.get()
        else {
            return Received::Ignored(Ignored::Malformed);
        };
        self.events.push_back(Event::PeerUnreachable(PeerError {
            peer,
            icmp_type,
            icmp_code,
            mtu: error_data,
        }));
        Received::Handled
    }
}
