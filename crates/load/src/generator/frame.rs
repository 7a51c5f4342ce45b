//! Frames of relayed data, complete but for their stamps.

use std::net::SocketAddr;
use std::sync::Arc;

use io::UdpSocket;
use stun::{ChannelNumber, INDICATION_HEADER_MAX, TransactionId, channel_data};

use super::setup::Framing;
use super::{Lane, Stamping};
use crate::client::ClientParts;
use crate::measure::Payload;

/// Makes frames of one kind and size.
pub(super) struct Frames {
    payload: Payload,
    framing: Framing,
    size: usize,
}

impl Frames {
    /// Frames with `size` bytes of payload, which must be in the range of [`Payload`].
    pub(super) fn new(framing: Framing, size: usize) -> Frames {
        Frames {
            payload: Payload::new(),
            framing,
            size,
        }
    }

    /// From a client by its server to a peer. Without a channel it is indications whatever was requested.
    pub(super) fn lane(
        &self,
        client: &ClientParts,
        flow: u32,
        peer: SocketAddr,
        channel: Option<ChannelNumber>,
    ) -> Lane {
        let (frame, stamping) = match (self.framing, channel) {
            (Framing::Channels, Some(channel)) => {
                let padding = client.client.channel_padding(self.size);
                self.channel_data(flow, channel, padding)
            }
            _ => self.indication(flow, peer),
        };
        Lane::new(client.socket.clone(), client.server, flow, stamping, &frame)
    }

    /// From a peer to a relayed transport address.
    pub(super) fn peer_lane(&self, socket: Arc<UdpSocket>, flow: u32, relayed: SocketAddr) -> Lane {
        let mut frame = vec![0; self.size];
        self.payload.fill(&mut frame, flow);
        let stamping = Stamping::Payload { at: 0, padding: 0 };
        Lane::new(socket, relayed, flow, stamping, &frame)
    }

    /// RFC 8656 §12.4, and §12.5 for the padding.
    fn channel_data(
        &self,
        flow: u32,
        channel: ChannelNumber,
        padding: usize,
    ) -> (Vec<u8>, Stamping) {
        // `Payload::MAX` is below 2^16.
        let header = channel_data::header(channel, self.size as u16);
        let at = header.len();
        let mut frame = vec![0; at + self.size + padding];
        frame[..at].copy_from_slice(&header);
        self.payload.fill(&mut frame[at..at + self.size], flow);
        (frame, Stamping::Payload { at, padding })
    }

    /// RFC 8656 §11.1.
    fn indication(&self, flow: u32, peer: SocketAddr) -> (Vec<u8>, Stamping) {
        let mut header = [0; INDICATION_HEADER_MAX];
        let id = TransactionId([0; 12]);
        let at = stun::send_indication_header(&mut header, &id, &peer, self.size)
            .expect("Payload::MAX leaves room for the header in a message");
        let padding = stun::padding(self.size);
        let mut frame = vec![0; at + self.size + padding];
        frame[..at].copy_from_slice(&header[..at]);
        self.payload.fill(&mut frame[at..at + self.size], flow);
        let v6 = peer.is_ipv6();
        (frame, Stamping::Indication { at, padding, v6 })
    }
}
