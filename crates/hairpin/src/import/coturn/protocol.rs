//! STUN and TURN on the wire, and other servers.

use std::net::SocketAddr;

use super::network::address;
use super::{Draft, Line, Row, Rule, Verdict, flag, list, unnecessary, unsupported};

pub(super) const ROWS: &[Row] = &[
    flag(
        "stun-only",
        Rule::Decide(|_, _, _| {
            Verdict::replaced(
                "a configuration without credentials: hairpin then makes a random secret that nobody knows, so no client gets an allocation",
            )
        }),
    ),
    flag(
        "no-stun",
        unsupported(
            "hairpin responds to Binding requests of all clients, because TURN clients require it",
        ),
    ),
    flag(
        "secure-stun",
        Rule::Decide(|_, _, draft| {
            draft.set("auth.binding_requests", true);
            Verdict::carried("auth.binding_requests")
        }),
    ),
    flag(
        "fingerprint",
        unnecessary("a response has FINGERPRINT if its request has it (RFC 8489 §7.1)"),
    ),
    flag(
        "software-attribute",
        Rule::Decide(|_, _, draft| {
            draft.set("server.software", "hairpin");
            Verdict::carried("server.software")
        }),
    ),
    flag(
        "no-software-attribute",
        unnecessary("responses have no SOFTWARE unless server.software is set"),
    ),
    flag(
        "include-reason-string",
        unnecessary("error responses have a reason phrase if it fits"),
    ),
    flag(
        "stun-backward-compatibility",
        unsupported(
            "responses have XOR-MAPPED-ADDRESS only: set compat.classic_stun for clients of RFC 3489",
        ),
    ),
    flag("rfc3489-compatibility", CLASSIC),
    flag(
        "rfc5766-channel-numbers",
        Rule::Decide(|_, _, draft| {
            draft.set("compat.rfc5766_channels", true);
            Verdict::carried("compat.rfc5766_channels")
        }),
    ),
    flag(
        "response-origin-only-with-rfc5780",
        unnecessary("it is always so"),
    ),
    flag(
        "respond-http-unsupported",
        unnecessary("hairpin closes connections that send HTTP"),
    ),
    flag(
        "drop-invalid-packets",
        unnecessary("hairpin always drops them"),
    ),
    flag("drop-invalid-packets-log", DROPS),
    flag("log-binding", DROPS),
    list(
        "alternate-server",
        Rule::Decide(|line, _, draft| alternate(line, draft, None)),
    ),
    list(
        "udp-alternate-server",
        Rule::Decide(|line, _, draft| alternate(line, draft, Some("udp"))),
    ),
    list(
        "tcp-alternate-server",
        Rule::Decide(|line, _, draft| alternate(line, draft, Some("tcp"))),
    ),
    list(
        "tls-alternate-server",
        Rule::Decide(|line, _, draft| alternate(line, draft, Some("tls"))),
    ),
];

const DROPS: Rule =
    super::replaced("metrics, which count messages and drops by reason: packets are not logged");

const CLASSIC: Rule = Rule::Decide(|_, _, draft| {
    draft.set("compat.classic_stun", true);
    Verdict::carried("compat.classic_stun")
});

fn alternate(line: &Line, draft: &mut Draft, transport: Option<&'static str>) -> Verdict {
    const KEY: &str = "alternate.servers";
    let default_port = if transport == Some("tls") { 5349 } else { 3478 };
    let Some(address) = address(line.word(), default_port) else {
        return Verdict::unsupported("ALTERNATE-SERVER requires an IP address: write ADDRESS:PORT");
    };
    let family = match address {
        SocketAddr::V4(_) => "ipv4",
        SocketAddr::V6(_) => "ipv6",
    };
    let address = address.to_string().into();
    match transport {
        Some(transport) => {
            draft.push_table(KEY, [(family, address), ("transport", transport.into())])
        }
        None => draft.push_table(KEY, [(family, address)]),
    }
    // coturn redirects every client if it has an alternate server.
    draft.push("alternate.when", "always");
    Verdict::carried(KEY)
}
