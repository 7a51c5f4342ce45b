//! One event: its fields, as a worker copies them, and its JSON. docs/events.md describes each field.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use server::events::OwnedEvent;
use server::hooks::{Event, SipEvent};
use server::sip::CallLine;
use server::turn::server::RelayedAddresses;
use server::turn::{FiveTuple, Transport};
use stores::sinks::Line;

use super::EventKind;

/// What an event has in common in all sinks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    pub(super) kind: EventKind,
    sequence: u64,
    unix_ms: u64,
}

impl Stamp {
    /// The event happens now.
    pub(super) fn new(kind: EventKind, sequence: u64) -> Stamp {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Stamp {
            kind,
            sequence,
            unix_ms: ms(now.unwrap_or_default()),
        }
    }
}

/// An event that waits for its sink.
#[derive(Debug)]
pub(crate) struct Record {
    stamp: Stamp,
    body: Body,
}

/// What happened.
#[derive(Debug)]
pub(super) enum Body {
    Turn(Box<OwnedEvent>),
    Sip(Box<Sip>),
}

/// A copy of a [`SipEvent`].
#[derive(Debug)]
pub(super) enum Sip {
    Call(Call),
    Failure(Failure),
}

/// The fields of a call.
#[derive(Debug, Serialize)]
pub(super) struct Call {
    call_id: String,
    from: String,
    to: String,
    source: String,
    source_address: SocketAddr,
    source_transport: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    target: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_address: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_transport: Option<&'static str>,
    tried: u8,
    #[serde(skip_serializing_if = "String::is_empty")]
    failed: String,
    /// The time of each of them in milliseconds after the INVITE; `None` if it is not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed_ms: Vec<Option<u64>>,
    began_unix_s: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ring_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer_ms: Option<u64>,
    duration_ms: u64,
    code: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_by: Option<&'static str>,
}

/// The fields of a failed authentication.
#[derive(Debug, Serialize)]
pub(super) struct Failure {
    protocol: &'static str,
    client: SocketAddr,
    transport: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    realm: Option<String>,
    user: String,
    reason: &'static str,
    omitted: u64,
}

impl Body {
    pub(super) fn of(event: &Event<'_>) -> Body {
        Body::Turn(Box::new(event.into()))
    }

    pub(super) fn of_sip(event: &SipEvent<'_>) -> Option<Body> {
        Some(Body::Sip(Box::new(match event {
            SipEvent::CallClosed { call, ended_by } => {
                let mut call = Call::of(call);
                call.ended_by = Some(ended_by.name());
                Sip::Call(call)
            }
            SipEvent::CallOpened(call) | SipEvent::CallRefreshed(call) => Sip::Call(Call::of(call)),
            SipEvent::AuthenticationFailed {
                source,
                transport,
                realm,
                user,
                omitted,
            } => Sip::Failure(Failure {
                protocol: "sip",
                client: *source,
                transport: transport.via_name(),
                realm: Some((*realm).to_owned()),
                user: text(user),
                reason: "wrong_password",
                omitted: *omitted,
            }),
            // Only those above have a kind.
            _ => return None,
        })))
    }
}

impl Call {
    fn of(line: &CallLine<'_>) -> Call {
        Call {
            call_id: text(line.call_id),
            from: text(line.from),
            to: text(line.to),
            source: text(line.source),
            source_address: line.source_leg.remote,
            source_transport: line.source_leg.transport.via_name(),
            target: text(line.target),
            target_address: line.target_leg.map(|leg| leg.remote),
            target_transport: line.target_leg.map(|leg| leg.transport.via_name()),
            tried: line.tried,
            failed: text(line.failed),
            failed_ms: line.failed_at.iter().map(|at| at.map(ms)).collect(),
            began_unix_s: line.began_unix_s,
            ring_ms: line.rang.map(ms),
            answer_ms: line.answered.map(ms),
            duration_ms: ms(line.lasted),
            code: line.code,
            ended_by: None,
        }
    }
}

/// The fields of a client of TURN.
#[derive(Serialize)]
struct Client<'a> {
    realm: &'a str,
    user: &'a str,
    client: SocketAddr,
    transport: &'static str,
}

/// The fields that only events of allocations have.
#[derive(Default, Serialize)]
struct Allocation {
    #[serde(skip_serializing_if = "Option::is_none")]
    relayed: Option<Vec<SocketAddr>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lifetime_s: Option<u32>,
    #[serde(flatten)]
    totals: Option<Totals>,
}

#[derive(Serialize)]
struct Totals {
    to_peers_bytes: u64,
    to_peers_packets: u64,
    to_client_bytes: u64,
    to_client_packets: u64,
    duration_ms: u64,
    reason: &'static str,
}

#[derive(Serialize)]
struct Written<'a, T> {
    kind: &'static str,
    id: &'a str,
    unix_ms: u64,
    #[serde(flatten)]
    body: T,
}

#[derive(Serialize)]
struct Turn<'a> {
    #[serde(flatten)]
    client: Client<'a>,
    #[serde(flatten)]
    allocation: Allocation,
}

impl Record {
    pub(super) const fn new(stamp: Stamp, body: Body) -> Record {
        Record { stamp, body }
    }

    /// Its JSON. `run` is the same for all events of a process.
    pub(crate) fn line(&self, run: &str) -> Line {
        let id = format!("{run}-{}", self.stamp.sequence);
        let json = match &self.body {
            Body::Turn(event) => self.turn(&id, &event.get()),
            Body::Sip(sip) => match &**sip {
                Sip::Call(call) => self.json(&id, call),
                Sip::Failure(failure) => self.json(&id, failure),
            },
        };
        let kind = self.stamp.kind.name();
        Line { kind, json }
    }

    fn turn(&self, id: &str, event: &Event<'_>) -> String {
        if let Event::AuthenticationFailed {
            five_tuple,
            user,
            reason,
            omitted,
        } = event
        {
            let failure = Failure {
                protocol: "turn",
                client: five_tuple.remote,
                transport: transport(five_tuple),
                realm: None,
                user: (*user).to_owned(),
                reason: reason.name(),
                omitted: *omitted,
            };
            return self.json(id, &failure);
        }
        let allocation = match event {
            Event::AllocationOpened {
                relayed: at,
                lifetime_s,
                ..
            } => Allocation {
                relayed: Some(relayed(*at)),
                lifetime_s: Some(*lifetime_s),
                totals: None,
            },
            Event::AllocationRefreshed { lifetime_s, .. } => Allocation {
                lifetime_s: Some(*lifetime_s),
                ..Allocation::default()
            },
            Event::AllocationClosed {
                relayed: at,
                to_peers,
                to_client,
                duration,
                reason,
                ..
            } => Allocation {
                relayed: Some(relayed(*at)),
                lifetime_s: None,
                totals: Some(Totals {
                    to_peers_bytes: to_peers.bytes,
                    to_peers_packets: to_peers.packets,
                    to_client_bytes: to_client.bytes,
                    to_client_packets: to_client.packets,
                    duration_ms: ms(*duration),
                    reason: reason.name(),
                }),
            },
            _ => Allocation::default(),
        };
        match event.client() {
            Some(of) => {
                let client = Client {
                    realm: of.realm,
                    user: of.user,
                    client: of.five_tuple.remote,
                    transport: transport(&of.five_tuple),
                };
                self.json(id, &Turn { client, allocation })
            }
            None => self.json(id, &allocation),
        }
    }

    fn json(&self, id: &str, body: &impl Serialize) -> String {
        let written = Written {
            kind: self.stamp.kind.name(),
            id,
            unix_ms: self.stamp.unix_ms,
            body,
        };
        // Nothing in it can fail to be written: there are no maps with keys other than text.
        serde_json::to_string(&written).unwrap_or_default()
    }
}

fn transport(five_tuple: &FiveTuple) -> &'static str {
    match five_tuple.transport {
        Transport::Udp => "UDP",
        Transport::Tcp => "TCP",
        Transport::Tls => "TLS",
        Transport::Dtls => "DTLS",
    }
}

fn relayed(at: RelayedAddresses) -> Vec<SocketAddr> {
    [at.v4, at.v6].into_iter().flatten().collect()
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use server::hooks::ClientIdentity;
    use server::turn::server::AuthFailure;

    fn json(kind: EventKind, event: &Event<'_>) -> serde_json::Value {
        let record = Record::new(Stamp::new(kind, 7), Body::of(event));
        let line = record.line("run");
        assert!(!line.json.contains('\n'));
        serde_json::from_str(&line.json).unwrap()
    }

    #[test]
    fn an_event_says_what_it_is_and_who_it_is_about() {
        let five_tuple = FiveTuple {
            transport: Transport::Tls,
            local: "192.0.2.1:5349".parse().unwrap(),
            remote: "[2001:db8::1]:4000".parse().unwrap(),
        };
        let opened = Event::AllocationOpened {
            client: ClientIdentity::new(five_tuple, "example.org", "a\"\nb"),
            relayed: RelayedAddresses {
                v4: "192.0.2.1:50000".parse().ok(),
                v6: None,
            },
            lifetime_s: 600,
        };
        let event = json(EventKind::AllocationOpened, &opened);
        assert_eq!(event["kind"], "allocation_opened");
        assert_eq!(
            (&event["id"], &event["user"]),
            (&"run-7".into(), &"a\"\nb".into())
        );
        assert_eq!(
            (&event["client"], &event["transport"]),
            (&"[2001:db8::1]:4000".into(), &"TLS".into())
        );
        assert_eq!(event["relayed"], serde_json::json!(["192.0.2.1:50000"]));
        assert_eq!(event["lifetime_s"], 600);
        assert!(event["unix_ms"].as_u64().unwrap() > 1_700_000_000_000);
        assert!(event.get("reason").is_none());
        let failed = Event::AuthenticationFailed {
            five_tuple,
            user: "mallory",
            reason: AuthFailure::UnknownUser,
            omitted: 3,
        };
        let event = json(EventKind::AuthenticationFailed, &failed);
        assert_eq!(
            (&event["protocol"], &event["reason"]),
            (&"turn".into(), &"unknown_user".into())
        );
        assert_eq!(
            (&event["omitted"], &event["user"]),
            (&3.into(), &"mallory".into())
        );
    }
}
