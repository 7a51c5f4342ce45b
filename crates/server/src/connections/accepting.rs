//! New connections: limits, and room for them at the cost of others.

use super::connection::Connection;
use super::{CONNECTION_BIT, Connections, EndReason, MAX_UNSENT_BYTES, Slot, UNPROVEN_NS};
use crate::worker::Token;
use io::{Interest, Poller, TcpConnection};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;
use turn::{ClientPath, FiveTuple, ListenerKey, Mono, Transport};

/// The maximum number of connections accepted per listener and wake-up.
const MAX_ACCEPTS: usize = 64;

/// Time for which a listener is not polled after file descriptors or memory have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The number of table entries that the search for a connection to evict examines. A full search of many thousands
/// takes too long.
const EVICTION_SAMPLE: usize = 256;

impl Connections {
    pub(crate) fn watch(&self, poller: &Poller) -> std::io::Result<()> {
        for (number, listener) in (0..).zip(&self.listeners) {
            poller.add(
                &listener.socket,
                Token::Accept(number).as_u64(),
                Interest::Read,
            )?;
        }
        Ok(())
    }

    /// Accepts connections, or leaves them to another process that has the same listeners.
    pub(crate) fn set_listening(&mut self, listens: bool, poller: &Poller) -> std::io::Result<()> {
        self.accept_again = None;
        for listener in &self.listeners {
            // It may have been removed already: when descriptors ran out.
            let _ = poller.remove(&listener.socket);
        }
        if listens {
            self.watch(poller)?;
        }
        Ok(())
    }

    /// Accepts a bounded number of connections, as long as there is time for them.
    pub(crate) fn accept(&mut self, number: u16, poller: &Poller, now: Mono) {
        for _ in 0..MAX_ACCEPTS {
            if self.unproven_ns > UNPROVEN_NS {
                return;
            }
            let begun = io::clock::monotonic_ns();
            let more = self.accept_one(number, poller, now);
            self.unproven_ns += io::clock::monotonic_ns() - begun;
            if !more {
                return;
            }
        }
    }

    /// Accepts a connection, if one waits. Returns whether another one may wait.
    fn accept_one(&mut self, number: u16, poller: &Poller, now: Mono) -> bool {
        let Some(listener) = self.listeners.get(usize::from(number)) else {
            return false;
        };
        match listener.socket.accept() {
            Ok((stream, remote)) => self.admit(stream, remote, number, poller, now),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) if is_exhausted(&error) => {
                if !self.evict(None, poller) {
                    self.pause_accepting(number, poller, now);
                    return false;
                }
            }
            // The connection failed before it was accepted.
            Err(_) => {}
        }
        true
    }

    /// Stops polling a listener. A connection still waits, so the poller would report the listener again and again.
    fn pause_accepting(&mut self, number: u16, poller: &Poller, now: Mono) {
        if let Some(listener) = self.listeners.get(usize::from(number))
            && poller.remove(&listener.socket).is_ok()
        {
            self.accept_again = Some(now.plus(ACCEPT_PAUSE));
        }
    }

    pub(super) fn accept_again(&mut self, poller: &Poller, now: Mono) {
        if self.accept_again.is_some_and(|at| at <= now) {
            self.accept_again = None;
            // The poller rejects listeners that it has already; this is harmless.
            self.listeners
                .iter()
                .enumerate()
                .for_each(|(number, listener)| {
                    let token = Token::Accept(number as u16).as_u64();
                    let _ = poller.add(&listener.socket, token, Interest::Read);
                });
        }
    }

    /// Admits an accepted connection within the limits, or closes it. `number` is the index of its listener.
    fn admit(
        &mut self,
        stream: TcpConnection,
        remote: SocketAddr,
        number: u16,
        poller: &Poller,
        now: Mono,
    ) {
        let is_full = |connections: &Connections| {
            connections.open >= connections.limits.connections
                || connections.unproven >= connections.limits.unproven
        };
        let has_descriptor = self.descriptors.may_have(&stream);
        if (is_full(self) || !has_descriptor) && !self.evict(Some(remote), poller) {
            self.counters.refused_limit += 1;
            return;
        }
        let Some(listener) = self.listeners.get(usize::from(number)) else {
            return;
        };
        let is_proxied = listener.is_proxy(remote);
        // A load balancer forwards connections of many sources. `follow_source` applies the limit once the client's
        // address is known.
        let most = if is_proxied {
            usize::MAX
        } else {
            self.limits.per_source
        };
        if !self.sources.enter(remote, most) {
            self.counters.refused_source += 1;
            return;
        }
        self.unproven_sources.enter(remote, usize::MAX);
        if self
            .enter(stream, remote, number, is_proxied, poller, now)
            .is_none()
        {
            self.sources.leave(remote);
            self.unproven_sources.leave(remote);
            self.counters.refused_limit += 1;
        }
    }

    /// Enters a connection into the table and into the poller. `None`: there is no free index, or the kernel refuses.
    pub(super) fn enter(
        &mut self,
        stream: TcpConnection,
        remote: SocketAddr,
        number: u16,
        is_proxied: bool,
        poller: &Poller,
        now: Mono,
    ) -> Option<Slot> {
        let local = stream.local_addr().ok()?;
        self.generation = self.generation.wrapping_add(1);
        let index = self.free.pop();
        let index = index.unwrap_or(u32::try_from(self.table.len()).ok()?);
        let slot = Slot {
            index,
            generation: self.generation,
        };
        let token = Token::Connection(slot).as_u64();
        if index >= Token::MAX_CONNECTIONS || poller.add(&stream, token, Interest::Read).is_err() {
            self.free.push(index);
            return None;
        }
        // Errors are harmless: the first call bounds the kernel's queue, the second detects dead clients sooner.
        let _ = stream.set_unsent_limit(MAX_UNSENT_BYTES);
        let _ = stream.set_user_timeout(self.limits.idle);
        let path = ClientPath {
            five_tuple: FiveTuple {
                transport: Transport::Tcp,
                local,
                remote,
            },
            listener: ListenerKey(CONNECTION_BIT | index),
        };
        let mut connection = Connection::new(stream, slot, path, number, is_proxied, now);
        let (deadline, _) = connection.deadline(&self.limits);
        connection.armed = deadline;
        self.timers.set(index, deadline);
        let place = index as usize;
        if place >= self.table.len() {
            self.table.resize_with(place + 1, || None);
        }
        self.table[place] = Some(Box::new(connection));
        self.open += 1;
        self.peak = self.peak.max(self.open);
        self.unproven += 1;
        self.counters.accepted += 1;
        self.counters.tcp_now += 1;
        Some(slot)
    }

    /// Makes room: closes an unproven connection of a source that has more of them than `for_source` has. `None` counts
    /// as a source without connections. Returns whether it has closed one.
    pub(super) fn evict(&mut self, for_source: Option<SocketAddr>, poller: &Poller) -> bool {
        let Connections {
            table,
            unproven_sources,
            cursor,
            ..
        } = self;
        let mut found: Option<(u32, Slot)> = None;
        for _ in 0..table.len().min(EVICTION_SAMPLE) {
            *cursor = (*cursor + 1) % table.len();
            if let Some(connection) = &table[*cursor]
                && !connection.is_proven
            {
                let count = unproven_sources.count(connection.source);
                if found.is_none_or(|(most, _)| count > most) {
                    found = Some((count, connection.slot));
                }
            }
        }
        let own = for_source.map_or(0, |source| unproven_sources.count(source));
        match found {
            // A new connection evicts another one only if its source has fewer unproven connections.
            Some((most, slot)) if most > own => {
                self.close(slot, EndReason::Evicted, None, poller);
                true
            }
            _ => false,
        }
    }
}

/// Whether file descriptors or memory have run out.
fn is_exhausted(error: &std::io::Error) -> bool {
    // EMFILE, ENFILE, ENOBUFS, ENOMEM. Not all of them have an `ErrorKind`.
    matches!(error.raw_os_error(), Some(24 | 23 | 105 | 12))
}
