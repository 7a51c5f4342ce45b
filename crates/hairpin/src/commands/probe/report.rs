//! What a probe found, for people and for programs.

use std::net::SocketAddr;
use std::time::Duration;

use load::probe::{Connected, NatReport, Offer, RelayedRoundTrip, StunReport, TurnReport};
use serde_json::{Value, json};

use super::Failure;
use crate::commands::output::Lines;
use crate::config::write_seconds;

/// What a server answered.
#[derive(Debug)]
pub(super) enum Finding {
    /// To a Binding request.
    Stun(Box<StunReport>),
    /// To an allocation and what follows.
    Turn(Box<TurnReport>),
    /// From two addresses and ports.
    Nat(Box<NatReport>),
}

impl Finding {
    /// What does not work although the server answered.
    pub(super) fn fault(&self) -> Option<String> {
        match self {
            Self::Stun(_) | Self::Nat(_) => None,
            Self::Turn(turn) => {
                let error = turn.relayed_round_trip.as_ref().err()?;
                Some(format!(
                    "the allocation works, but nothing passes through it: {error}"
                ))
            }
        }
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Stun(stun) => stun_text(stun),
            Self::Turn(turn) => turn_text(turn),
            Self::Nat(nat) => super::nat::text(nat),
        }
    }

    /// For programs: durations in milliseconds.
    pub(super) fn json(&self) -> Value {
        match self {
            Self::Stun(stun) => json!({
                "ok": true,
                "server": stun.server.to_string(),
                "connection": stun.connected.as_ref().map(connected_json),
                "local": stun.local.to_string(),
                "mapped": stun.mapped.to_string(),
                "round_trip_ms": milliseconds(stun.round_trip),
                "transmissions": stun.transmissions,
                "software": stun.software,
            }),
            Self::Turn(turn) => turn_json(turn),
            Self::Nat(nat) => super::nat::json(nat),
        }
    }
}

/// The JSON of a probe without a usable response.
pub(super) fn failure_json(failure: &Failure) -> Value {
    match failure {
        Failure::NoAddress(error) => json!({ "ok": false, "error": format!("{error:#}") }),
        Failure::Server(server, error) => {
            json!({ "ok": false, "server": server.to_string(), "error": error.to_string() })
        }
    }
}

fn turn_json(turn: &TurnReport) -> Value {
    let through = turn.relayed_round_trip.as_ref();
    json!({
        "ok": through.is_ok(),
        "server": turn.server.to_string(),
        "connection": turn.connected.as_ref().map(connected_json),
        "local": turn.local.to_string(),
        "mapped": turn.mapped.to_string(),
        "relayed": turn.relayed.to_string(),
        "relayed_ipv6": turn.dual.as_ref().ok().map(ToString::to_string),
        "relayed_ipv6_error": turn.dual.as_ref().err().map(ToString::to_string),
        "lifetime_s": turn.lifetime.as_secs(),
        "allocate_ms": milliseconds(turn.allocate),
        "transmissions": turn.transmissions,
        "software": turn.software,
        "dont_fragment": turn.dont_fragment,
        "credentials": turn.offer.as_ref().map(offer_json),
        "relayed_round_trip_ms": through.ok().map(|round| milliseconds(round.round_trip)),
        "relayed_sent": through.ok().map(|round| round.sent),
        "relayed_returned": through.ok().map(|round| round.returned),
        "error": through.err().map(ToString::to_string),
    })
}

fn connected_json(connected: &Connected) -> Value {
    let tls = connected.tls.as_ref().map(|(time, handshake)| {
        json!({
            "handshake_ms": milliseconds(*time),
            "version": handshake.version,
            "cipher": handshake.cipher,
            "alpn": handshake.alpn,
        })
    });
    json!({ "connect_ms": connected.tcp.map(milliseconds), "tls": tls })
}

fn connected_text(connected: &Connected) -> String {
    let tcp = connected
        .tcp
        .map(|time| format!("TCP in {}", duration(time)));
    let tls = connected.tls.as_ref().map(|(time, handshake)| {
        let alpn = handshake.alpn.as_deref().unwrap_or("none");
        let (version, cipher) = (handshake.version, &handshake.cipher);
        format!("{version} in {}: {cipher}, ALPN {alpn}", duration(*time))
    });
    let parts: Vec<String> = tcp.into_iter().chain(tls).collect();
    parts.join(", ")
}

fn offer_json(offer: &Offer) -> Value {
    json!({
        "realm": offer.realm,
        "password_algorithms": offer.algorithms,
        "password_algorithm": offer.algorithm,
        "integrity": offer.integrity,
        "anonymous": offer.anonymous,
    })
}

fn milliseconds(duration: Duration) -> f64 {
    // A microsecond is the smallest difference that a round trip through a kernel can show.
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

fn stun_text(stun: &StunReport) -> String {
    let mut lines = Lines::default();
    lines.line("server", stun.server);
    stun.connected
        .iter()
        .for_each(|connected| lines.line("connection", connected_text(connected)));
    lines.line("mapped", mapped(stun.mapped, stun.local));
    lines.line(
        "round trip",
        round_trip(stun.round_trip, stun.transmissions),
    );
    stun.software
        .iter()
        .for_each(|software| lines.line("software", software));
    lines.finish()
}

fn turn_text(turn: &TurnReport) -> String {
    let lifetime = write_seconds(turn.lifetime.as_secs());
    let second = match &turn.dual {
        Ok(relayed) => relayed.to_string(),
        Err(error) => format!("no second relayed address: {error}"),
    };
    let credentials = turn.offer.as_ref().map(offer_text);
    let fragments = if turn.dont_fragment {
        "can be forbidden (DONT-FRAGMENT)"
    } else {
        "cannot be forbidden"
    };
    let mut lines = Lines::default();
    lines.line("server", turn.server);
    turn.connected
        .iter()
        .for_each(|connected| lines.line("connection", connected_text(connected)));
    lines.line("mapped", mapped(turn.mapped, turn.local));
    lines.line("relayed", format!("{}, for {lifetime}", turn.relayed));
    lines.line("ipv6", second);
    lines.line("round trip", round_trip(turn.allocate, turn.transmissions));
    lines.line(
        "credentials",
        credentials.unwrap_or_else(|| "not asked for: anybody can relay".to_owned()),
    );
    lines.line("fragments", fragments);
    lines.line("relaying", relaying(turn));
    turn.software
        .iter()
        .for_each(|software| lines.line("software", software));
    lines.finish()
}

fn relaying(turn: &TurnReport) -> String {
    match &turn.relayed_round_trip {
        Ok(RelayedRoundTrip {
            round_trip,
            peer,
            sent,
            returned,
            ..
        }) => {
            format!(
                "works, {} to {peer} and back, {returned} of {sent} returned",
                duration(*round_trip)
            )
        }
        Err(error) => format!("does not work: {error}"),
    }
}

fn offer_text(offer: &Offer) -> String {
    let Offer {
        realm,
        algorithm,
        integrity,
        ..
    } = offer;
    let anonymous = if offer.anonymous {
        ", user names hidden"
    } else {
        ""
    };
    format!("realm \"{realm}\", {algorithm} key, {integrity}{anonymous}")
}

pub(super) fn mapped(mapped: SocketAddr, local: SocketAddr) -> String {
    if mapped == local {
        format!("{mapped}, the same as here: no NAT")
    } else {
        format!("{mapped}, here {local}")
    }
}

fn round_trip(time: Duration, transmissions: u8) -> String {
    match transmissions {
        0 | 1 => duration(time),
        sent => format!("{}, sent {sent} times: packets get lost", duration(time)),
    }
}

fn duration(time: Duration) -> String {
    format!("{:.3} ms", milliseconds(time))
}
