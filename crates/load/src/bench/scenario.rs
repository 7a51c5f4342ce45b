//! What is measured: the loads.

use std::fmt;

use serde::Serialize;

use crate::sip::Transport as SipTransport;

/// Which way the payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// ChannelData in, datagrams out.
    ClientToPeer,
    /// Datagrams in, ChannelData out.
    PeerToClient,
    /// Half of the load each way, datagram by datagram.
    Both,
}

/// In which order flows take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowOrder {
    /// As they were allocated. Neighbours in time are neighbours in the server's memory, so caches and prefetchers
    /// help.
    InTurn,
    /// In a random permutation, the same in every run. This is how independent clients send.
    Random,
}

/// Where Binding requests come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sources {
    /// Each client has an address in a prefix (/24) of its own.
    OwnPrefixes,
    /// All clients are ports of one address: above what a server answers to one source, if it has such a limit.
    OneAddress,
    /// Every request comes from another of a million addresses, as in a flood with spoofed sources.
    Spoofed,
}

/// The transport of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// TLS over TCP.
    Tls,
}

/// A unit of work of a SIP load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SipWork {
    /// OPTIONS, answered by the server itself.
    Options,
    /// REGISTER, challenged with a digest, and kept in memory: two requests.
    Register,
    /// INVITE, 180, 200, ACK, BYE, 200 with the server as the UAS.
    Call,
    /// INVITE, 100, 180, 200, ACK, BYE, 200 through the server, which looks the callee up and records its route.
    ProxiedCall,
}

/// One load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Scenario {
    /// Datagrams through the relay.
    Relay {
        /// Allocations that take turns.
        flows: u16,
        /// Datagrams of one flow in a row.
        train: u16,
        /// In which order flows take turns.
        order: FlowOrder,
        /// Which way.
        direction: Direction,
        /// Payload in bytes, without the ChannelData header.
        payload: u16,
    },
    /// ChannelData between connections of clients and peers.
    Connections {
        /// What carries the ChannelData.
        transport: Transport,
        /// Connections with an allocation each; they take turns.
        connections: u16,
        /// Which way.
        direction: Direction,
        /// Payload in bytes, without the ChannelData header.
        payload: u16,
    },
    /// STUN Binding requests without attributes.
    Binding {
        /// Source ports that take turns.
        clients: u16,
        /// Their addresses.
        sources: Sources,
    },
    /// TLS connections that are opened, answer one Binding request and are closed.
    Handshakes {
        /// Whether clients resume an earlier session.
        resumed: bool,
        /// Connections at any time.
        in_flight: u16,
    },
    /// Allocations made and deleted: Allocate (answered with 401), Allocate, Refresh 0, from a
    /// fresh port each time.
    Churn {
        /// Clients at work at any time.
        in_flight: u16,
    },
    /// SIP transactions, registrations or calls.
    Sip {
        /// The requests of the scenario.
        work: SipWork,
        /// What carries the messages.
        over: SipTransport,
    },
    /// What a SIP server does with several times the load that it can hold, and how soon it recovers.
    SipOverload {
        /// What its clients want.
        work: SipWork,
        /// Microseconds of work that the server adds to each INVITE and BYE, as an application would. A generator on
        /// one processor cannot offer many times what a server without such work holds.
        service_us: u16,
    },
    /// Memory held per registration binding, per call in progress or per finished call.
    SipMemory {
        /// Which of them: registrations, proxied calls, or calls at a UAS.
        work: SipWork,
        /// How many.
        count: u16,
    },
    /// How evenly a server spreads allocations over its workers, a few at a time.
    Spread {
        /// Allocations at a time.
        at_once: u16,
    },
    /// Memory held per allocation with one channel.
    Memory {
        /// Allocations.
        allocations: u16,
    },
}

impl fmt::Display for Scenario {
    /// The scenario's name, such as `relay-64x8-c2p-120B`: flows, datagrams in a row, direction,
    /// payload. It begins with `random` if the flows take turns in random order.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scenario::Relay {
                flows,
                train,
                order,
                direction,
                payload,
            } => {
                let order = match order {
                    FlowOrder::InTurn => "relay",
                    FlowOrder::Random => "random",
                };
                let direction = direction.name();
                write!(f, "{order}-{flows}x{train}-{direction}-{payload}B")
            }
            Scenario::Connections {
                transport,
                connections,
                direction,
                payload,
            } => {
                let (transport, direction) = (transport.name(), direction.name());
                write!(f, "{transport}-{connections}-{direction}-{payload}B")
            }
            Scenario::Handshakes { resumed: true, .. } => write!(f, "tls-handshakes-resumed"),
            Scenario::Handshakes { resumed: false, .. } => write!(f, "tls-handshakes-full"),
            Scenario::Binding { clients: 1, .. } => write!(f, "binding-1"),
            Scenario::Binding { clients, sources } => match sources {
                Sources::OwnPrefixes => write!(f, "binding-{clients}"),
                Sources::OneAddress => write!(f, "binding-one-source"),
                Sources::Spoofed => write!(f, "binding-spoofed"),
            },
            Scenario::Churn { in_flight } => write!(f, "churn-{in_flight}"),
            Scenario::Sip {
                work,
                over: SipTransport::Udp,
            } => write!(f, "sip-{}", work.name()),
            Scenario::Sip { work, over } => write!(f, "sip-{}-{}", work.name(), over.name()),
            Scenario::SipOverload {
                work,
                service_us: 0,
            } => write!(f, "sip-overload-{}", work.name()),
            Scenario::SipOverload { work, service_us } => {
                write!(f, "sip-overload-{}-{service_us}us", work.name())
            }
            Scenario::SipMemory { work, count } => write!(f, "sip-memory-{}-{count}", work.name()),
            Scenario::Spread { at_once } => write!(f, "spread-{at_once}"),
            Scenario::Memory { allocations } => write!(f, "memory-{allocations}"),
        }
    }
}

impl Scenario {
    /// Whether its load can be made over IPv6: there is none for SIP, and the injector scatters IPv4 sources only.
    pub(crate) fn allows_ipv6(&self) -> bool {
        !matches!(
            self,
            Scenario::Sip { .. }
                | Scenario::SipOverload { .. }
                | Scenario::SipMemory { .. }
                | Scenario::Binding {
                    sources: Sources::Spoofed,
                    ..
                }
        )
    }

    /// What it stands for, in a few words.
    pub fn describe(&self) -> String {
        match self {
            Scenario::Relay {
                flows: 1,
                payload,
                direction,
                ..
            } => {
                format!("one hot flow, {}, {payload} B", direction.describe())
            }
            Scenario::Relay {
                flows,
                train: 1,
                order,
                payload,
                direction,
            } => {
                let order = match order {
                    FlowOrder::InTurn => "interleaved",
                    FlowOrder::Random => "in random order",
                };
                format!(
                    "{flows} flows, {order}, {}, {payload} B",
                    direction.describe()
                )
            }
            Scenario::Relay {
                flows,
                train,
                payload,
                direction,
                ..
            } => {
                format!(
                    "{flows} flows, trains of {train}, {}, {payload} B",
                    direction.describe()
                )
            }
            Scenario::Connections {
                transport,
                connections,
                direction,
                payload,
            } => format!(
                "{connections} {} connections, {}, {payload} B",
                transport.name().to_uppercase(),
                direction.describe()
            ),
            Scenario::Handshakes { resumed, in_flight } => {
                let kind = if *resumed { "resumed" } else { "full" };
                format!("TLS handshake ({kind}), Binding, close; {in_flight} in flight")
            }
            Scenario::Binding { clients: 1, .. } => "STUN Binding, one client".into(),
            Scenario::Binding { clients, sources } => match sources {
                Sources::OwnPrefixes => format!("STUN Binding, {clients} clients, a prefix each"),
                Sources::OneAddress => format!("STUN Binding, {clients} ports of one address"),
                Sources::Spoofed => "STUN Binding, a million spoofed sources".into(),
            },
            _ => self.describe_other(),
        }
    }

    /// The same for what is no load of datagrams.
    fn describe_other(&self) -> String {
        match self {
            Scenario::Churn { in_flight } => {
                format!("401, Allocate, Refresh 0; {in_flight} in flight")
            }
            Scenario::Sip { work, over } => {
                format!("SIP over {}: {}", over.in_via(), work.describe())
            }
            Scenario::SipOverload {
                work,
                service_us: 0,
            } => format!("SIP overload: {}", work.describe()),
            Scenario::SipOverload { work, service_us } => format!(
                "SIP overload: {}, {service_us} us of work for each request",
                work.describe()
            ),
            Scenario::SipMemory { work, count } => {
                let what = match work {
                    SipWork::Register => "registration bindings",
                    SipWork::Call => "finished calls",
                    _ => "calls in progress",
                };
                format!("memory of {count} {what}")
            }
            Scenario::Spread { at_once } => {
                format!("how far two workers get apart, {at_once} allocations at a time")
            }
            Scenario::Memory { allocations } => {
                format!("memory of {allocations} allocations with a channel")
            }
            // Those are loads of datagrams.
            _ => String::new(),
        }
    }

    /// Whether the frames' source addresses are scattered.
    pub(crate) fn is_spoofed(&self) -> bool {
        matches!(
            self,
            Scenario::Binding {
                sources: Sources::Spoofed,
                ..
            }
        )
    }

    /// What a server is counted by: the unit of its rate.
    pub fn unit(&self) -> &'static str {
        match self {
            Scenario::Relay { .. } | Scenario::Connections { .. } => "packets/s",
            Scenario::Binding { .. } => "answers/s",
            Scenario::Handshakes { .. } => "connections/s",
            Scenario::Churn { .. } => "cycles/s",
            Scenario::Sip { .. } => "units/s",
            Scenario::SipOverload { .. } => "share",
            Scenario::SipMemory { .. } => "bytes",
            Scenario::Spread { .. } => "share",
            Scenario::Memory { .. } => "allocations",
        }
    }

    /// Datagrams of one flow in a row.
    pub fn train(&self) -> u32 {
        match self {
            Scenario::Relay { train, .. } => (*train).into(),
            _ => 1,
        }
    }

    /// Flows (or clients, or allocations) that take part.
    pub fn flows(&self) -> u16 {
        match self {
            Scenario::Relay { flows, .. } => *flows,
            Scenario::Connections { connections, .. } => *connections,
            Scenario::Binding { clients, .. } => *clients,
            Scenario::Handshakes { in_flight, .. } | Scenario::Churn { in_flight } => *in_flight,
            Scenario::Sip { .. } | Scenario::SipOverload { .. } => 0,
            Scenario::SipMemory { count, .. } => *count,
            Scenario::Spread { at_once } => *at_once,
            Scenario::Memory { allocations } => *allocations,
        }
    }

    /// The standard set: every shape of load towards the peer, and the other directions for the
    /// shape that resembles calls most. Each has a voice-like and a video-like payload. Then STUN,
    /// churn and memory.
    pub fn standard() -> Vec<Scenario> {
        let mut all = Vec::new();
        for payload in [120, 1200] {
            let relay = |flows, train, direction| Scenario::Relay {
                flows,
                train,
                order: FlowOrder::InTurn,
                direction,
                payload,
            };
            all.extend([
                relay(1, 1, Direction::ClientToPeer),
                relay(64, 1, Direction::ClientToPeer),
                relay(64, 8, Direction::ClientToPeer),
                relay(1000, 1, Direction::ClientToPeer),
                relay(64, 1, Direction::PeerToClient),
                relay(64, 1, Direction::Both),
            ]);
        }
        all.extend([
            binding(1, Sources::OneAddress),
            binding(1000, Sources::OwnPrefixes),
            Scenario::Churn { in_flight: 64 },
            Scenario::Spread { at_once: 4 },
            Scenario::Memory { allocations: 1000 },
            Scenario::Memory {
                allocations: 10_000,
            },
            Scenario::Memory {
                allocations: 18_000,
            },
        ]);
        all
    }

    /// Scenarios outside of the standard set, because they concern few servers: they run only by name.
    pub fn extra() -> Vec<Scenario> {
        let mut all = Vec::new();
        for payload in [120, 1200] {
            let relay = |flows, order, direction| Scenario::Relay {
                flows,
                train: 1,
                order,
                direction,
                payload,
            };
            all.extend([
                relay(16_000, FlowOrder::InTurn, Direction::ClientToPeer),
                relay(1000, FlowOrder::InTurn, Direction::PeerToClient),
                relay(16_000, FlowOrder::InTurn, Direction::PeerToClient),
            ]);
            for flows in [1000, 4000, 16_000] {
                all.extend([
                    relay(flows, FlowOrder::Random, Direction::ClientToPeer),
                    relay(flows, FlowOrder::Random, Direction::PeerToClient),
                ]);
            }
        }
        all.extend([
            binding(1000, Sources::OneAddress),
            binding(1000, Sources::Spoofed),
        ]);
        all.extend(connections(Transport::Tcp));
        all.extend(connections(Transport::Tls));
        all.extend([false, true].map(|resumed| Scenario::Handshakes {
            resumed,
            in_flight: 32,
        }));
        all
    }

    /// The set of `--sip`.
    pub fn sip() -> Vec<Scenario> {
        let loads = [
            SipWork::Options,
            SipWork::Register,
            SipWork::Call,
            SipWork::ProxiedCall,
        ];
        let memory = [(SipWork::Register, 10_000), (SipWork::ProxiedCall, 2_000)];
        let loads = loads.map(|work| Scenario::Sip {
            work,
            over: SipTransport::Udp,
        });
        let memory = memory.map(|(work, count)| Scenario::SipMemory { work, count });
        loads.into_iter().chain(memory).collect()
    }

    /// What the set of `--sip` leaves out, to be asked for by name: connections, overload, finished calls.
    pub fn sip_extra() -> Vec<Scenario> {
        let over = [SipTransport::Tcp, SipTransport::Tls, SipTransport::Wss];
        let connections = [SipWork::Register, SipWork::ProxiedCall]
            .into_iter()
            .flat_map(|work| over.map(|over| Scenario::Sip { work, over }));
        let overload = [
            (SipWork::Options, 0),
            (SipWork::Register, 0),
            (SipWork::Call, 50),
            (SipWork::ProxiedCall, 0),
        ];
        let overload =
            overload.map(|(work, service_us)| Scenario::SipOverload { work, service_us });
        let finished = Scenario::SipMemory {
            work: SipWork::Call,
            count: 10_000,
        };
        connections.chain(overload).chain([finished]).collect()
    }

    /// The set of the quick mode: as the standard set, but large payloads only where they differ,
    /// and memory once.
    pub fn quick() -> Vec<Scenario> {
        let keep = |scenario: &Scenario| match scenario {
            Scenario::Relay {
                payload: 1200,
                flows,
                train: 1,
                direction: Direction::ClientToPeer,
                ..
            } => *flows < 1000,
            Scenario::Relay { payload, .. } => *payload == 120,
            Scenario::Memory { allocations } => *allocations == 1000,
            _ => true,
        };
        Scenario::standard().into_iter().filter(keep).collect()
    }
}

/// The loads over connections.
fn connections(transport: Transport) -> Vec<Scenario> {
    let mut all = Vec::new();
    for payload in [120, 1200] {
        for connections in [1, 64, 1000] {
            for direction in [Direction::ClientToPeer, Direction::PeerToClient] {
                all.push(Scenario::Connections {
                    transport,
                    connections,
                    direction,
                    payload,
                });
            }
        }
    }
    all
}

fn binding(clients: u16, sources: Sources) -> Scenario {
    Scenario::Binding { clients, sources }
}

impl SipWork {
    const fn name(self) -> &'static str {
        match self {
            SipWork::Options => "options",
            SipWork::Register => "register",
            SipWork::Call => "call",
            SipWork::ProxiedCall => "proxied-call",
        }
    }

    fn describe(self) -> &'static str {
        match self {
            SipWork::Options => "OPTIONS",
            SipWork::Register => "REGISTER with a digest (401), kept in memory",
            SipWork::Call => "INVITE, 180, 200, ACK, BYE, 200 at a UAS",
            SipWork::ProxiedCall => "a call through the proxy, with location and Record-Route",
        }
    }
}

impl Transport {
    const fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Tls => "tls",
        }
    }
}

impl Direction {
    const fn name(self) -> &'static str {
        match self {
            Direction::ClientToPeer => "c2p",
            Direction::PeerToClient => "p2c",
            Direction::Both => "both",
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Direction::ClientToPeer => "client to peer",
            Direction::PeerToClient => "peer to client",
            Direction::Both => "both ways",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_say_what_is_sent() {
        let mut all = Scenario::standard();
        all.extend(Scenario::extra());
        all.extend(Scenario::sip());
        all.extend(Scenario::sip_extra());
        let names: HashSet<String> = all.iter().map(Scenario::to_string).collect();
        assert_eq!(names.len(), all.len());
        for name in [
            "relay-1x1-c2p-120B",
            "relay-64x8-c2p-1200B",
            "relay-64x1-both-120B",
            "churn-64",
            "relay-16000x1-p2c-120B",
            "random-4000x1-c2p-1200B",
            "binding-spoofed",
            "tcp-1000-p2c-120B",
            "tls-64-c2p-1200B",
            "tls-handshakes-full",
            "sip-register",
            "sip-register-tls",
            "sip-proxied-call-tls",
            "sip-proxied-call-wss",
            "sip-overload-call-50us",
            "sip-overload-proxied-call",
            "sip-memory-call-10000",
        ] {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn the_quick_set_is_part_of_the_standard_one() {
        let standard = Scenario::standard();
        let quick = Scenario::quick();
        assert!(quick.iter().all(|scenario| standard.contains(scenario)));
        assert!(quick.len() < standard.len());
        assert!(quick.contains(&binding(1000, Sources::OwnPrefixes)));
    }
}
