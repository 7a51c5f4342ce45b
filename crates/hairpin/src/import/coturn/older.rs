//! Options of older versions, which coturn 4.17 no longer has. Many files still have them.

use super::{Row, Rule, flag, unnecessary, unsupported, value};

const NO_OLD_TLS: Rule = unnecessary("hairpin has no SSL, TLS 1.0 or TLS 1.1");

pub(super) const ROWS: &[Row] = &[
    flag("no-sslv2", NO_OLD_TLS),
    flag("no-sslv3", NO_OLD_TLS),
    flag("no-tlsv1", NO_OLD_TLS),
    flag("no-tlsv1_1", NO_OLD_TLS),
    flag(
        "no-loopback-peers",
        unnecessary("hairpin denies loopback unless peers.allow has it"),
    ),
    flag(
        "dh2066",
        unnecessary("hairpin uses elliptic curves only (ECDHE)"),
    ),
    flag(
        "st-cred-mech",
        unsupported("TURN has no short-term credentials (RFC 8656 §5)"),
    ),
    flag(
        "no-stun-backward-compatibility",
        unnecessary("responses to requests with the magic cookie have no MAPPED-ADDRESS"),
    ),
    flag(
        "prod",
        unnecessary("responses have no SOFTWARE unless server.software is set"),
    ),
    flag(
        "no-prometheus",
        unnecessary(
            "without prometheus in the file, hairpin serves metrics on loopback only: to turn them off, set admin.listen = \"off\"",
        ),
    ),
    flag(
        "no-sqlite",
        unnecessary("hairpin opens a database only if auth.stores names it"),
    ),
    flag(
        "sha256",
        unnecessary("clients choose the algorithm (RFC 8489 §9.2)"),
    ),
    value(
        "listening-ips",
        unsupported("coturn has no such option: write one listening-ip per address"),
    ),
    value(
        "ne",
        unnecessary("hairpin has one way to spread clients (server.steering)"),
    ),
];
