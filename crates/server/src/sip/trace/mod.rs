//! Copies of SIP messages for administrators. They go to a ring in the memory of each worker, and as HEP packets to
//! collectors.
//!
//! A worker copies a message where it reads it from the network, and where it gives it to a socket or connection. So a
//! message that moves to another worker is copied once. Admission control drops some datagrams before this point: they
//! are not copied.

mod hep;
mod ring;

use super::advertise::source_address;
use super::counters::SipCounters;
use super::outgoing::Outgoing;
use super::settings::SipConfig;
use hep::Collectors;
use ring::Ring;
use sip::engine;
use sip::flow::{Flow, Transport};
use sip::{Limits, Scan};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// Messages that a worker examines per query, and bytes that it copies. Both together last less than 1 ms.
const MESSAGES_PER_QUERY: usize = 256;
const BYTES_PER_QUERY: usize = 64 << 10;

/// Where copies of SIP messages go.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceSettings {
    /// Bytes of memory of all workers together for the latest messages; 0: none. Each worker has at least space for two
    /// messages of the maximum size.
    pub memory: u32,
    /// Collectors that get each message in a HEP version 3 packet over UDP.
    pub collectors: Vec<SocketAddr>,
    /// The capture agent ID in these packets.
    pub capture_id: u32,
    /// The authenticate key in these packets; empty: none. Packets have it in the clear.
    pub password: String,
}

impl std::fmt::Debug for TraceSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the password.
        f.debug_struct("TraceSettings")
            .field("memory", &self.memory)
            .field("collectors", &self.collectors)
            .field("capture_id", &self.capture_id)
            .finish_non_exhaustive()
    }
}

/// A copy of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedMessage {
    /// When the worker read it, or gave it to a socket or connection: time since 1970.
    pub time: Duration,
    /// Whether the server has sent it. Otherwise the server has received it.
    pub is_sent: bool,
    /// The transport.
    pub transport: Transport,
    /// The address of this server.
    pub local: SocketAddr,
    /// The address of the other side.
    pub remote: SocketAddr,
    /// The message.
    pub bytes: Vec<u8>,
    /// The number of the worker.
    pub worker: usize,
    /// The number of the message at this worker. Later messages have greater numbers.
    pub number: u64,
}

/// An address as IPv6: an IPv4 address is mapped (RFC 4291 §2.5.5.2). For formats in which both addresses of a message
/// have one family.
#[must_use]
pub const fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// The time, direction and addresses of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessagePath {
    unix_ns: u64,
    is_sent: bool,
    transport: Transport,
    local: SocketAddr,
    remote: SocketAddr,
}

/// The trace of one worker.
#[derive(Debug)]
pub(super) struct Trace {
    settings: TraceSettings,
    ring: Option<Ring>,
    collectors: Option<Collectors>,
}

impl Trace {
    /// `None` if the settings ask for no copies.
    pub(super) fn new(sip_config: &SipConfig) -> Option<Box<Trace>> {
        let settings = &sip_config.settings.trace;
        let least = 2 * sip_config.message_bytes();
        let memory = sip_config.share(settings.memory).max(least);
        let ring = (settings.memory > 0).then(|| Ring::new(memory));
        let collectors = Collectors::new(settings);
        (ring.is_some() || collectors.is_some()).then(|| {
            Box::new(Trace {
                settings: settings.clone(),
                ring,
                collectors,
            })
        })
    }

    /// New settings. The copies in memory are lost if the settings of the trace change.
    pub(super) fn apply_settings(trace: &mut Option<Box<Trace>>, sip_config: &SipConfig) {
        let is_same = trace
            .as_ref()
            .is_some_and(|trace| trace.settings == sip_config.settings.trace);
        if !is_same {
            *trace = Trace::new(sip_config);
        }
    }

    /// Copies a message that came by this flow.
    pub(super) fn copy_received(&mut self, flow: &Flow, bytes: &[u8], counters: &mut SipCounters) {
        let ends = (flow.transport, flow.local, flow.remote);
        self.copy(false, ends, bytes, counters);
    }

    /// Copies a message that is sent by this flow.
    pub(super) fn copy_sent_back(&mut self, flow: &Flow, bytes: &[u8], counters: &mut SipCounters) {
        let ends = (flow.transport, flow.local, flow.remote);
        self.copy(true, ends, bytes, counters);
    }

    /// Copies a message that the engine sends.
    pub(super) fn copy_sent(
        &mut self,
        to: &engine::SendTo,
        bytes: &[u8],
        outgoing: &mut Outgoing<'_, '_, '_>,
        counters: &mut SipCounters,
    ) {
        if let Some(ends) = outgoing.ends_of(to) {
            self.copy(true, ends, bytes, counters);
        }
    }

    fn copy(
        &mut self,
        is_sent: bool,
        (transport, mut local, remote): (Transport, SocketAddr, SocketAddr),
        bytes: &[u8],
        counters: &mut SipCounters,
    ) {
        // The kernel chooses the source address later.
        if local.ip().is_unspecified()
            && let Some(source) = source_address(remote.ip())
        {
            local.set_ip(source);
        }
        let path = MessagePath {
            unix_ns: io::clock::realtime_ns(),
            is_sent,
            transport,
            local: canonical(local),
            remote: canonical(remote),
        };
        if let Some(ring) = &mut self.ring {
            ring.push(path, bytes);
        }
        if let Some(collectors) = &mut self.collectors {
            collectors.push(&path, bytes, counters);
        }
    }

    /// Sends the packets that wait. Called at the end of each turn of the worker.
    pub(super) fn flush(&mut self, counters: &mut SipCounters) {
        if let Some(collectors) = &mut self.collectors {
            collectors.flush(counters);
        }
    }

    /// Whether messages are kept in memory.
    pub(super) fn keeps(&self) -> bool {
        self.ring.is_some()
    }

    /// Messages with this Call-ID from a number on, and the number at which the next query goes on.
    pub(super) fn of_call(
        &self,
        call_id: &[u8],
        first: u64,
        limits: &Limits,
    ) -> (Vec<TracedMessage>, Option<u64>) {
        let (mut messages, mut bytes) = (Vec::new(), 0);
        let Some(ring) = &self.ring else {
            return (messages, None);
        };
        let mut message = Vec::new();
        let mut number = first.max(ring.first());
        let end = number.saturating_add(MESSAGES_PER_QUERY as u64);
        while number < end && bytes < BYTES_PER_QUERY {
            let Some(path) = ring.get(number, &mut message) else {
                return (messages, None);
            };
            let found = Scan::of(&message, limits).ok().and_then(|it| it.call_id);
            if found == Some(call_id) {
                bytes += message.len();
                messages.push(TracedMessage {
                    time: Duration::from_nanos(path.unix_ns),
                    is_sent: path.is_sent,
                    transport: path.transport,
                    local: path.local,
                    remote: path.remote,
                    bytes: message.clone(),
                    worker: 0,
                    number,
                });
            }
            number += 1;
        }
        (messages, Some(number))
    }
}

/// IPv4 addresses of a dual-stack socket in the form of IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
