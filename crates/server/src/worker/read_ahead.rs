//! Prefetch: the state that the next datagrams of a batch need is loaded into the caches at the same time.

use super::session::Session;
use super::sockets::Token;
use io::{Datagrams, RecvBatch};
use std::net::SocketAddr;
use std::ops::Range;
use turn::server::{Arrival, Server};
use turn::{FiveTuple, Transport};

/// Fewer messages than this have too few cache misses to wait for together.
const MIN_MESSAGES: usize = 4;

impl Session<'_, '_, '_> {
    /// Reads what the messages from number `first` on need, if that is worth the while. Returns up to which number they
    /// may be handled now.
    pub(super) fn read_ahead(&self, batch: &RecvBatch, first: usize) -> usize {
        let end = batch.len();
        if end < first + MIN_MESSAGES || !self.core.engine.reads_ahead() {
            return end;
        }
        self.read(batch, first..end.min(first + Server::READ_AHEAD))
    }

    #[inline(never)]
    fn read(&self, batch: &RecvBatch, numbers: Range<usize>) -> usize {
        let end = numbers.end;
        let messages = batch.range(numbers);
        let arrivals = messages.map(|received| self.arrival(&received));
        for relay in self.core.engine.read_ahead(arrivals) {
            self.sockets.relays.touch(relay);
        }
        end
    }

    fn arrival(&self, received: &Datagrams<'_>) -> Arrival {
        match Token::from_u64(received.tag) {
            Token::Relay(key) => Arrival::Peer(key),
            // ChannelData (RFC 8656 §12); what else clients send is rare.
            Token::Listener(number) if matches!(received.bytes.first(), Some(64..=127)) => self
                .five_tuple(number, received)
                .map_or(Arrival::Other, Arrival::Client),
            _ => Arrival::Other,
        }
    }

    /// The 5-tuple of what a listener received.
    #[inline]
    pub(super) fn five_tuple(&self, listener: u32, received: &Datagrams<'_>) -> Option<FiveTuple> {
        let local = self.sockets.listeners.get(listener as usize)?.local;
        let local_ip = received.local_ip.unwrap_or(local.ip());
        Some(FiveTuple {
            transport: Transport::Udp,
            local: SocketAddr::new(local_ip, local.port()),
            remote: received.from,
        })
    }
}
