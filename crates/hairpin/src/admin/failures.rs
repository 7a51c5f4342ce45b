//! Why requests of clients fail: counters of failures, each with its meaning and advice for the operator.

use serde_json::{Value, json};
use server::connections::TlsFailure;
use server::stats::{AuthFailure, DropReason, ERROR_CODES, Stats};

/// A reason for failures, with its count.
struct Reason {
    area: &'static str,
    name: String,
    count: u64,
    about: &'static str,
    advice: &'static str,
}

/// Requests with wrong credentials. Old nonces do not count: [`is_routine`].
pub(super) fn not_authenticated(stats: &Stats) -> u64 {
    let reasons = AuthFailure::ALL.iter();
    let reasons = reasons.filter(|reason| !is_routine(**reason));
    reasons.map(|reason| failed(stats, *reason)).sum()
}

/// Dropped datagrams.
pub(super) fn dropped(stats: &Stats) -> u64 {
    DropReason::ALL
        .iter()
        .map(|reason| stats.dropped(*reason))
        .sum()
}

/// Whether normal clients cause this, too: a nonce expires during each long session (438).
fn is_routine(reason: AuthFailure) -> bool {
    matches!(reason, AuthFailure::StaleNonce | AuthFailure::OutdatedOffer)
}

fn failed(stats: &Stats, reason: AuthFailure) -> u64 {
    stats.sum(|worker| worker.engine.auth_failed(reason))
}

/// The reasons that have occurred since the start, the most frequent first.
pub(super) fn list(stats: &Stats) -> Value {
    let mut all = Vec::new();
    authentication(&mut all, stats);
    errors(&mut all, stats);
    relaying(&mut all, stats);
    system(&mut all, stats);
    transports(&mut all, stats);
    sip(&mut all, stats);
    sip_rows(&mut all, stats);
    all.retain(|reason| reason.count > 0);
    all.sort_by_key(|reason| std::cmp::Reverse(reason.count));
    let reasons = all.iter().map(|reason| {
        json!({
            "area": reason.area,
            "reason": reason.name,
            "count": reason.count,
            "about": reason.about,
            "advice": reason.advice,
        })
    });
    json!({ "failures": reasons.collect::<Vec<_>>() })
}

fn authentication(all: &mut Vec<Reason>, stats: &Stats) {
    for reason in AuthFailure::ALL
        .iter()
        .filter(|reason| !is_routine(**reason))
    {
        let (about, advice) = match reason {
            AuthFailure::UnknownUser => (
                "No source of credentials knows the user.",
                "Compare the user name of the client with auth.users, auth.secrets and the stores. A time-limited user name begins with digits and a colon.",
            ),
            AuthFailure::WrongPassword => (
                "The password of the user is wrong.",
                "For time-limited credentials, the web service and auth.secrets must have the same secret. For users, set the password again: hairpin user passwd.",
            ),
            AuthFailure::ExpiredCredential => (
                "The time-limited credential has expired.",
                "Compare the clocks of this host and of the web service, or give credentials a longer lifetime.",
            ),
            AuthFailure::ForgedToken => (
                "The access token was not made with a key of auth.token_keys.",
                "Give the authorization server and this server the same key, and the same auth.token_server_name.",
            ),
            AuthFailure::WrongRealm => (
                "The client uses another realm.",
                "Set auth.realm, or a realm of auth.realms, to the realm of the clients.",
            ),
            AuthFailure::ForgedNonce => (
                "The nonce is from another server, for another client address, or of a key that the server no longer has.",
                "Behind a load balancer, send each client always to the same server. After a restart, this ends by itself.",
            ),
            AuthFailure::WrongUser => (
                "The allocation belongs to another user.",
                "The client changes its user name during a session: it must keep the credentials of its Allocate request.",
            ),
            _ => ("", "See docs/metrics.md, hairpin_turn_auth_failures_total."),
        };
        all.push(Reason {
            area: "authentication",
            name: reason.name().to_owned(),
            count: failed(stats, *reason),
            about,
            advice,
        });
    }
}

fn errors(all: &mut Vec<Reason>, stats: &Stats) {
    for code in ERROR_CODES.iter().filter(|code| !matches!(code, 401 | 438)) {
        let (about, advice) = match code {
            300 => (
                "Clients were sent to another server.",
                "Nothing to do: alternate.servers is configured.",
            ),
            400 => (
                "Requests were malformed.",
                "Look at the client: its requests break RFC 8656.",
            ),
            403 => (
                "The peer or the request is forbidden.",
                "The server denies peers in private networks. If clients require some of them, add these to peers.allow.",
            ),
            405 => (
                "The server does not offer mobility (RFC 8016).",
                "If clients require it, set relay.mobility.",
            ),
            420 => (
                "The client requires an attribute that this server does not know.",
                "Look at the client: it must work without this attribute.",
            ),
            437 => (
                "The client has no allocation, or it asks for a second one.",
                "After a restart, or behind a NAT that changes ports, this ends by itself. Else look at the client.",
            ),
            440 | 443 => (
                "The address family is not offered.",
                "Give the server a relay address of this family: relay.addresses.",
            ),
            441 => (
                "The allocation belongs to another user.",
                "The client must keep its credentials.",
            ),
            442 => (
                "The server does not offer this transport to peers.",
                "If clients require TCP allocations (RFC 6062), set relay.tcp = true. It is true by default.",
            ),
            446 => ("The peer connection exists.", "Look at the client."),
            447 => (
                "The TCP connection to the peer failed or timed out.",
                "Check whether the peer listens, and the firewalls between server and peer.",
            ),
            486 => (
                "A user, source address or realm has reached its limit of allocations.",
                "If these clients should have more, raise limits.allocations_per_user or limits.allocations_per_source.",
            ),
            487 => (
                "The ICE roles conflict.",
                "Look at the client: a TURN server does not send it.",
            ),
            500 => (
                "A store did not answer, or the server had an internal error.",
                "Look at hairpin_store_up and at the log.",
            ),
            508 => (
                "No relay port or descriptor was free, or the limit of allocations is reached.",
                "Widen relay.ports, raise limits.allocations and the limit of file descriptors (LimitNOFILE).",
            ),
            _ => ("", "See docs/metrics.md, hairpin_stun_errors_total."),
        };
        all.push(Reason {
            area: "error response",
            name: code.to_string(),
            count: stats.errors_with(*code),
            about,
            advice,
        });
    }
}

fn relaying(all: &mut Vec<Reason>, stats: &Stats) {
    for reason in DropReason::ALL {
        let (about, advice) = match reason {
            DropReason::NoPermission => (
                "Data for a peer without a permission.",
                "The client sends before CreatePermission, or its permission has expired: look at the client.",
            ),
            DropReason::PeerWithoutPermission => (
                "Data from a peer that the client has not permitted.",
                "Normal during ICE. If media does not arrive, the peer sends from an address that is not among its ICE candidates.",
            ),
            DropReason::PeerNotAllowed => (
                "Data for a peer that the rules deny.",
                "If clients require these peers, add them to peers.allow.",
            ),
            DropReason::NoAllocation => (
                "Data of clients without an allocation.",
                "Normal after a restart or the end of a session. If it continues, clients refresh too late.",
            ),
            DropReason::ChannelNotBound => (
                "Data on a channel that is not bound.",
                "The channel has expired, or the server rejected ChannelBind: look at the error responses.",
            ),
            DropReason::OverRate => (
                "The traffic of an allocation, user, source address or realm exceeds its rate limit.",
                "If the limit is too low, raise limits.rate_per_allocation or the other limits.rate_ keys.",
            ),
            DropReason::UnverifiedOverLimit => (
                "An unverified source address has reached its limit of error responses per second.",
                "The cause is an attack, or many clients behind one NAT: see limits.unverified_responses_per_source.",
            ),
            DropReason::Amplification => (
                "The response would be too large for an unverified source address.",
                "Keep auth.realm and server.software short.",
            ),
            DropReason::Lookups | DropReason::LookupsOfPrefix => (
                "Too many requests wait for a store.",
                "Look at hairpin_store_up, and at the response times of the database.",
            ),
            DropReason::ForeignProtocol | DropReason::MalformedStun | DropReason::EmptyDatagram => {
                (
                    "A datagram was not STUN.",
                    "Nothing to do. Scanners, or clients with a wrong port, send these.",
                )
            }
            _ => (
                "Datagrams were dropped.",
                "See docs/metrics.md, hairpin_turn_dropped_packets_total.",
            ),
        };
        all.push(Reason {
            area: "dropped",
            name: reason.name().to_owned(),
            count: stats.dropped(*reason),
            about,
            advice,
        });
    }
}

fn system(all: &mut Vec<Reason>, stats: &Stats) {
    let (counters, sends) = (stats.counters(), stats.sends());
    let mut add = |name: &str, count, about, advice| {
        all.push(Reason {
            area: "system",
            name: name.to_owned(),
            count,
            about,
            advice,
        });
    };
    let overflow = counters.listener_overflow + counters.relay_overflow;
    add(
        "receive_overflow",
        overflow,
        "A receive buffer was full.",
        "Raise server.receive_buffer and net.core.rmem_max, or give the server more workers.",
    );
    add(
        "no_port",
        counters.no_port,
        "No relay port was free.",
        "Widen relay.ports, or add relay.addresses.",
    );
    add(
        "no_descriptor",
        counters.no_descriptor,
        "No file descriptor was free.",
        "Raise the limit of file descriptors: LimitNOFILE of the unit, or ulimit -n.",
    );
    add(
        "send_unreachable",
        sends.unreachable,
        "A peer or client cannot be reached.",
        "If it is often the same network, check the routes and firewalls of this host.",
    );
    add(
        "send_denied",
        sends.denied,
        "A firewall of this host drops outgoing packets.",
        "Look for rules of nftables or iptables in the OUTPUT chain.",
    );
    add(
        "send_no_buffers",
        sends.no_buffers,
        "The transmit queue of the network device was full.",
        "The link is full, or its queue is short: see txqueuelen.",
    );
    add(
        "send_would_block",
        sends.would_block,
        "A send buffer was full.",
        "Raise server.send_buffer and net.core.wmem_max.",
    );
    add(
        "send_too_big",
        sends.too_big,
        "A datagram is larger than the path allows.",
        "Clients should send at most 1200 bytes.",
    );
    add(
        "icmp_errors",
        counters.icmp_errors,
        "Peers or routers report that a peer cannot be reached.",
        "Normal if a peer has ended. Otherwise check the route to the peer.",
    );
}

fn transports(all: &mut Vec<Reason>, stats: &Stats) {
    let sip = stats.sip();
    let mut add = |area, name: &str, count, about, advice| {
        all.push(Reason {
            area,
            name: name.to_owned(),
            count,
            about,
            advice,
        });
    };
    let streams = stats.streams();
    let failed = TlsFailure::ALL
        .iter()
        .map(|failure| streams.tls_failed(*failure));
    add(
        "connections",
        "tls_failed",
        failed.sum(),
        "TLS handshakes of clients failed.",
        "Check with hairpin probe turn turns:NAME. The certificate must have this name, and the file must have all intermediate certificates.",
    );
    add(
        "connections",
        "refused",
        streams.refused_source + streams.refused_limit,
        "The server closed connections because a limit of connections was reached.",
        "Raise limits.connections or limits.connections_per_source.",
    );
    add(
        "sip",
        "tls_failed",
        sip.tls_failed,
        "TLS connections of SIP failed.",
        "Check tls.certificates, sip.next_hop_ca for servers that hairpin connects to, and sip.client_ca for clients.",
    );
}

fn sip(all: &mut Vec<Reason>, stats: &Stats) {
    let sip = stats.sip();
    let mut add = |name: String, count, about, advice| {
        all.push(Reason {
            area: "sip",
            name,
            count,
            about,
            advice,
        });
    };
    let shed = sip.shed_refused
        + sip.shed_dropped
        + sip.shed_by_kernel
        + sip.shed_by_filter
        + sip.shed_by_user;
    add(
        "overload".to_owned(),
        shed.saturating_sub(sip.over_limit),
        "Requests were refused or dropped because of overload.",
        "Give the server more CPUs and workers, or send fewer requests to it: see docs/sip-overload.md.",
    );
    add(
        "requests_per_source".to_owned(),
        sip.over_limit,
        "A source exceeded its limit of requests.",
        "If it is a carrier or another server of yours, make it a [[sip.trunk]]; else raise sip.requests_per_source.",
    );
    add(
        "transactions".to_owned(),
        sip.shed_transactions,
        "The limit of transactions was reached.",
        "Raise sip.transactions.",
    );
    add(
        "refused".to_owned(),
        sip.refused,
        "Requests were malformed, or asked for something that does not exist.",
        "Capture packets and look at the responses: the reason phrase names the mistake.",
    );
    add(
        "malformed".to_owned(),
        sip.malformed,
        "Messages were not SIP.",
        "Nothing to do. Scanners send these.",
    );
    add(
        "forwarding_refused".to_owned(),
        sip.forwarding_refused,
        "The proxy refused to forward requests.",
        "hairpin sip route explains what the proxy does with a request.",
    );
    add(
        "unacknowledged".to_owned(),
        sip.unacknowledged,
        "No ACK came for a 2xx to an INVITE.",
        "Check Contact and Record-Route of the call, and NATs between client and server.",
    );
    add(
        "dns".to_owned(),
        sip.dns_queries[2] + sip.dns_queries[3],
        "DNS queries failed.",
        "Check sip.resolvers and /etc/resolv.conf.",
    );
}

/// SIP counters that are arrays, with one element per reason.
fn sip_rows(all: &mut Vec<Reason>, stats: &Stats) {
    let sip = stats.sip();
    let mut add = |name: String, count, about, advice| {
        all.push(Reason {
            area: "sip",
            name,
            count,
            about,
            advice,
        });
    };
    for (outcome, count) in server::sip::DIGEST_OUTCOMES.iter().zip(sip.digest) {
        if matches!(*outcome, "denied" | "malformed" | "slowed") {
            add(
                format!("digest_{outcome}"),
                count,
                "Credentials of a SIP request were wrong.",
                "Compare user, realm and password of the phone with auth.users, users of its sip.domain, or the stores.",
            );
        }
    }
    for (limit, count) in server::sip::CALL_REFUSALS.iter().zip(sip.calls_refused) {
        add(
            format!("calls_{limit}"),
            count,
            "A limit of calls was reached.",
            "See sip.user_calls, sip.domain_calls and the other limits of calls in docs/sip.md.",
        );
    }
    for (reason, count) in server::sip::SCREENED.iter().zip(sip.screened) {
        add(
            format!("screened_{reason}"),
            count,
            "The server dropped messages of denied or banned sources, or of scanners.",
            "See sip.deny, sip.ban, sip.scanners and sip.allow.",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_says_what_to_do() {
        let stats = Stats::default();
        let mut all = Vec::new();
        authentication(&mut all, &stats);
        errors(&mut all, &stats);
        relaying(&mut all, &stats);
        system(&mut all, &stats);
        transports(&mut all, &stats);
        sip(&mut all, &stats);
        sip_rows(&mut all, &stats);
        for reason in &all {
            let is_whole = !reason.about.is_empty() && reason.advice.len() > 10;
            assert!(is_whole, "{} {}", reason.area, reason.name);
        }
        assert!(list(&stats)["failures"].as_array().unwrap().is_empty());
    }
}
