//! The data path of DTLS. Received datagrams become messages, and messages become encrypted datagrams.

use super::Worker;
use super::batches::each_datagram;
use super::session::Session;
use crate::dtls::{five_tuple, marked, unmarked};
use io::Datagrams;
use std::net::SocketAddr;
use stun::ChannelNumber;
use turn::{ClientPath, Run};

/// Time for TLS and DTLS handshakes together, per wake-up.
const MAX_HANDSHAKES_NS: u64 = 1_000_000;

/// Zeros up to a multiple of four bytes: after the value of a DATA attribute (RFC 8489 §14), and after ChannelData.
const PADDING: [u8; 3] = [0; 3];

impl Worker {
    /// Handles the decrypted messages.
    pub(super) fn handle_dtls_messages(&mut self) {
        let Some(dtls) = &mut self.core.dtls else {
            return;
        };
        if dtls.arena.bytes.is_empty() {
            return;
        }
        // Before the first message of a connection, because the name chooses the realm.
        dtls.report_server_names(&mut self.core.engine);
        let mut arena = std::mem::take(&mut dtls.arena);
        let mut session = Session::new(&mut self.core, &self.sockets, &mut self.queue);
        for (path, range) in &arena.messages {
            session.handle_run(path, Run::single(&arena.bytes[range.clone()]));
        }
        drop(session);
        arena.clear();
        if let Some(dtls) = &mut self.core.dtls {
            // Reuses the memory of the arena.
            dtls.arena = arena;
        }
        self.apply_changes();
    }

    /// At the end of a wake-up: continues handshakes for a limited time, and reports ended connections to the engine.
    pub(super) fn serve_dtls(&mut self) {
        let Some(dtls) = &mut self.core.dtls else {
            return;
        };
        let now = self.core.now;
        let engine = &self.core.engine;
        dtls.expire(now.mono, |client| engine.has_allocation(client));
        if dtls.has_work() {
            let used = self.core.connections.unproven_ns();
            let end = io::clock::monotonic_ns() + MAX_HANDSHAKES_NS.saturating_sub(used);
            dtls.step(now.mono, || io::clock::monotonic_ns() >= end);
        }
        dtls.report_server_names(&mut self.core.engine);
        self.send_dtls_handshakes();
        while let Some(path) = self.core.dtls.as_mut().and_then(|dtls| dtls.next_ended()) {
            self.core.engine.client_closed(now, &path.five_tuple);
            self.core.placement.left(now.mono, &path);
            self.drain_and_update_sockets();
        }
    }

    fn send_dtls_handshakes(&mut self) {
        let mut session = Session::new(&mut self.core, &self.sockets, &mut self.queue);
        let sockets = session.sockets;
        if let Some(dtls) = &mut session.core.dtls {
            while let Some((path, bytes)) = dtls.poll_transmit() {
                if let Some(to) = sockets.client_at(&unmarked(&path), 0) {
                    session.out.push_copied(&to, bytes);
                }
            }
        }
    }

    /// Closes all connections when the server shuts down. Each client gets a close_notify alert.
    pub(super) fn close_dtls(&mut self) {
        let now = self.core.now.mono;
        if let Some(dtls) = &mut self.core.dtls {
            dtls.close_all(now);
            self.send_dtls_handshakes();
        }
    }
}

impl Session<'_, '_, '_> {
    /// Decrypts datagrams that a listener has received. Their messages wait in the arena until the whole batch is
    /// decrypted.
    pub(super) fn client_sent_dtls(&mut self, listener: u32, received: &Datagrams<'_>) {
        let Some(client) = self.five_tuple(listener, received) else {
            return;
        };
        let path = ClientPath {
            five_tuple: five_tuple(client.local, client.remote),
            listener: marked(listener),
        };
        let core = &mut *self.core;
        let Some(dtls) = &mut core.dtls else { return };
        core.counters.client_bytes += received.bytes.len() as u64;
        each_datagram(received.bytes, received.stride, |datagram| {
            core.counters.client_datagrams += 1;
            dtls.receive(core.now.mono, &path, datagram);
        });
    }

    /// Encrypts and sends one message, given in parts, to a client.
    pub(super) fn send_dtls(&mut self, path: &ClientPath, parts: &[&[u8]], tos: u8) {
        let Some(to) = self.sockets.client_at(&unmarked(path), tos) else {
            return;
        };
        let dtls = self.core.dtls.as_mut();
        if let Some(sealed) = dtls.and_then(|dtls| dtls.seal(path, parts)) {
            self.out.push_copied(&to, sealed);
        }
    }

    /// Sends relayed datagrams to a client that has a channel for the peer.
    pub(super) fn send_channel_data_dtls(
        &mut self,
        path: &ClientPath,
        channel: ChannelNumber,
        run: Run<'_>,
    ) {
        each_datagram(run.bytes, run.stride, |datagram| {
            // The engine has dropped datagrams whose length does not fit into 16 bits.
            let length = u16::try_from(datagram.len()).unwrap_or(u16::MAX);
            let head = stun::channel_data::header(channel, length);
            // RFC 8656 §12.5 allows padding over datagrams. pion's client requires it over DTLS, because it reads DTLS
            // like a stream.
            let padding = &PADDING[..stun::padding(datagram.len())];
            self.send_dtls(path, &[&head, datagram, padding], run.tos);
        });
    }

    /// Sends relayed datagrams to a client that has no channel for the peer.
    pub(super) fn send_data_indications_dtls(
        &mut self,
        path: &ClientPath,
        from: SocketAddr,
        run: Run<'_>,
    ) {
        let mut head = [0; 64];
        each_datagram(run.bytes, run.stride, |datagram| {
            let engine = &mut self.core.engine;
            let length = engine.write_data_indication(from, datagram.len(), &mut head);
            let padding = &PADDING[..stun::padding(datagram.len())];
            self.send_dtls(path, &[&head[..length], datagram, padding], run.tos);
        });
    }
}
