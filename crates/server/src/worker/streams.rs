//! The data path of connections. Received bytes become messages, and relayed datagrams become queued messages.

use super::Worker;
use super::batches::each_datagram;
use super::session::Session;
use super::sockets::Token;
use crate::connections::{EndReason, KeptBytes, Slot};
use io::Events;
use std::net::SocketAddr;
use streams::Content;
use stun::ChannelNumber;
use stun::stream::{Frame, frame_rfc5766};
use turn::{ClientPath, Run, Transport};

/// Padding after a message on a stream, up to a multiple of four bytes (RFC 8656 §12.5).
const PADDING: [u8; 3] = [0; 3];

impl Worker {
    /// Accepts connections and reads from them, both within limits.
    #[inline(never)]
    pub(super) fn receive_from_connections(&mut self, events: &Events) {
        let now = self.core.now.mono;
        self.core
            .connections
            .take_resumed(&mut self.arena, &self.core.poller);
        // Kept bytes must be handled before new bytes of the same connection, to preserve their order.
        self.handle_arena();
        for event in events.iter() {
            match Token::from_u64(event.token) {
                Token::Accept(number) => {
                    self.core.connections.accept(number, &self.core.poller, now);
                }
                Token::Connection(slot) => {
                    if self.arena.is_full() {
                        self.handle_arena();
                    }
                    self.core.connections.handle_event(
                        slot,
                        event,
                        &mut self.arena,
                        &self.core.poller,
                        now,
                    );
                }
                _ => {}
            }
        }
        self.handle_arena();
        self.core.connections.end(&self.core.poller, now);
        self.receive_from_peers(events);
    }

    /// Handles the data in the arena, and clears it.
    fn handle_arena(&mut self) {
        if self.arena.items.is_empty() {
            return;
        }
        // Before the first message of a connection, because the name chooses the realm.
        let core = &mut self.core;
        core.connections.report_server_names(&mut core.engine);
        let mut session = Session::new(&mut self.core, &self.sockets, &mut self.queue);
        for (slot, range) in &self.arena.items {
            session.connection_sent(*slot, &self.arena.bytes[range.clone()]);
        }
        drop(session);
        self.arena.clear();
        self.apply_changes();
    }

    /// At the end of a wake-up: closes connections whose deadline has passed, writes queued data, and reports ended
    /// connections to the engine.
    #[inline(never)]
    pub(super) fn finish_connections(&mut self) {
        let now = self.core.now;
        self.relay_streams();
        let core = &mut self.core;
        let engine = &core.engine;
        core.connections.expire(
            |five_tuple| engine.has_allocation(five_tuple),
            &core.poller,
            now.mono,
        );
        core.connections.flush(&core.poller, now.mono);
        core.connections.report_server_names(&mut core.engine);
        while let Some(five_tuple) = self.core.connections.next_ended() {
            self.core.engine.client_closed(now, &five_tuple);
            self.drain_and_update_sockets();
        }
        self.core.connections.release_memory();
    }
}

impl<'buf> Session<'_, '_, 'buf> {
    /// Handles the complete messages in received bytes, and keeps the rest.
    fn connection_sent(&mut self, slot: Slot, bytes: &'buf [u8]) {
        let Some(path) = self.core.connections.path(slot) else {
            return;
        };
        let now = self.core.now.mono;
        if let Some(reason) = self.core.connections.check_first_bytes(slot, bytes) {
            let poller = &self.core.poller;
            return self.core.connections.reject(slot, reason, poller, now);
        }
        let mut rest = bytes;
        let kept = loop {
            if rest.is_empty() {
                break KeptBytes::Nothing;
            }
            if !self.core.connections.may_handle_next(slot) {
                break KeptBytes::Messages;
            }
            match frame_rfc5766(rest) {
                Frame::Need(need) if rest.len() == bytes.len() => break KeptBytes::Same { need },
                Frame::Need(need) => break KeptBytes::New { need },
                Frame::Message { len, padded_len } => {
                    let (run, used) = equal_messages(rest, len, padded_len);
                    self.core.connections.count_messages(run.count());
                    self.handle_run(&path, run);
                    rest = &rest[used..];
                }
                Frame::Invalid => {
                    let poller = &self.core.poller;
                    let connections = &mut self.core.connections;
                    connections.reject(slot, EndReason::NotStun, poller, now);
                    return;
                }
            }
        };
        self.core.connections.keep(slot, rest, kept, now);
    }

    /// Queues relayed datagrams for a client that has a channel for the peer. It is `cold`, so that it is not inlined
    /// into the path of UDP: inlined, it cost UDP 4 % more instructions.
    #[cold]
    pub(super) fn queue_channel_data(
        &mut self,
        path: &ClientPath,
        channel: ChannelNumber,
        run: Run<'_>,
    ) {
        if path.five_tuple.transport == Transport::Dtls {
            return self.send_channel_data_dtls(path, channel, run);
        }
        each_datagram(run.bytes, run.stride, |datagram| {
            // The engine has dropped datagrams whose length does not fit into 16 bits.
            let length = u16::try_from(datagram.len()).unwrap_or(u16::MAX);
            let head = stun::channel_data::header(channel, length);
            self.queue_padded(path, &head, datagram);
        });
    }

    /// Queues relayed datagrams for a client that has no channel for the peer.
    #[cold]
    pub(super) fn queue_data_indications(
        &mut self,
        path: &ClientPath,
        from: SocketAddr,
        run: Run<'_>,
    ) {
        if path.five_tuple.transport == Transport::Dtls {
            return self.send_data_indications_dtls(path, from, run);
        }
        let mut head = [0; 64];
        each_datagram(run.bytes, run.stride, |datagram| {
            let engine = &mut self.core.engine;
            let length = engine.write_data_indication(from, datagram.len(), &mut head);
            self.queue_padded(path, &head[..length], datagram);
        });
    }

    fn queue_padded(&mut self, path: &ClientPath, head: &[u8], datagram: &[u8]) {
        let padding = &PADDING[..stun::padding(datagram.len())];
        let (now, poller) = (self.core.now.mono, &self.core.poller);
        let parts = [head, datagram, padding];
        let connections = &mut self.core.connections;
        connections.queue(path, &parts, Content::Data, poller, now);
    }
}

/// The messages at the start of `bytes` that can be relayed together: ChannelData messages of one channel and length,
/// or one message of any kind. Also returns their length in bytes.
fn equal_messages(bytes: &[u8], len: usize, padded_len: usize) -> (Run<'_>, usize) {
    let first = &bytes[..len];
    let is_channel_data = matches!(first.first(), Some(64..));
    let header = bytes.first_chunk::<4>();
    let alike = |message: &&[u8]| message.first_chunk::<4>() == header;
    let count = if is_channel_data {
        bytes.chunks_exact(padded_len).take_while(alike).count()
    } else {
        1
    };
    if count == 1 {
        return (Run::single(first), padded_len);
    }
    let used = count * padded_len;
    let run = Run {
        bytes: &bytes[..used],
        stride: padded_len,
        tos: 0,
    };
    (run, used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_channel_data_goes_together() {
        let message = |number: u8, length: u8| {
            let mut bytes = vec![0x40, number, 0, length];
            bytes.resize(4 + usize::from(length).next_multiple_of(4), length);
            bytes
        };
        let stream = [message(0, 5), message(0, 5), message(0, 6), message(1, 5)].concat();
        let (run, used) = equal_messages(&stream, 9, 12);
        assert_eq!((run.count(), run.stride, used), (2, 12, 24));
        let (run, used) = equal_messages(&stream[24..], 10, 12);
        assert_eq!((run.count(), run.bytes.len(), used), (1, 10, 12));
        // The last message is incomplete.
        let (run, used) = equal_messages(&stream[..20], 9, 12);
        assert_eq!((run.count(), run.bytes.len(), used), (1, 9, 12));
    }
}
