//! The verdicts about defines, parameters and modules of the default configuration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use toml::Value;

use super::super::verdict::Fixed;
use super::super::{Draft, Imported, Verdict};
use super::statements::{Kind, Statement};

const PORT: u16 = 5060;

/// The defines that turn features on.
const FEATURES: &[(&str, Fixed)] = &[
    (
        "WITH_MYSQL",
        Fixed::Replaced(
            "users of sip.domain or auth.stores for users, and server.state_dir for bindings",
        ),
    ),
    (
        "WITH_AUTH",
        Fixed::Unnecessary("hairpin always requires the digest of a user"),
    ),
    (
        "WITH_IPAUTH",
        Fixed::Replaced("sip.trunk: write the rows of the table address there"),
    ),
    (
        "WITH_USRLOCDB",
        Fixed::Replaced("server.state_dir, where bindings survive a restart"),
    ),
    (
        "WITH_PRESENCE",
        Fixed::Unsupported("hairpin has no presence server"),
    ),
    (
        "WITH_MSGREBUILD",
        Fixed::Unsupported("hairpin has no presence server"),
    ),
    (
        "WITH_NAT",
        Fixed::Unnecessary(
            "hairpin always sends to the connection or address from which the phone registered; media uses TURN",
        ),
    ),
    (
        "WITH_NATSIPPING",
        Fixed::Unnecessary(
            "phones keep their flow alive (RFC 5626), and hairpin responds to STUN keep-alives",
        ),
    ),
    (
        "WITH_RTPENGINE",
        Fixed::Unsupported("hairpin relays media by TURN only"),
    ),
    (
        "WITH_RTPRELAY",
        Fixed::Unsupported("hairpin relays media by TURN only"),
    ),
    (
        "WITH_ALIASDB",
        Fixed::Replaced("sip.route: write a route with to_domain and replace for each alias"),
    ),
    (
        "WITH_SPEEDDIAL",
        Fixed::Replaced("sip.route: write a route with replace for each number"),
    ),
    (
        "WITH_MULTIDOMAIN",
        Fixed::Replaced(
            "sip.domain: write a table with its own users for each row of the table domain",
        ),
    ),
    (
        "WITH_TLS",
        Fixed::Replaced("sip.listen_tls and tls.certificates: write the files of tls.cfg there"),
    ),
    (
        "WITH_JSONRPC",
        Fixed::Replaced("hairpin status and metrics (admin.listen)"),
    ),
    (
        "WITH_XMLRPC",
        Fixed::Replaced("hairpin status and metrics (admin.listen)"),
    ),
    (
        "WITH_ANTIFLOOD",
        Fixed::Unnecessary("overload control and sip.ban are on by default"),
    ),
    ("WITH_HTABLE", Fixed::Unnecessary("only scripts use it")),
    (
        "WITH_BLOCK3XX",
        Fixed::Unnecessary("hairpin sends redirects to the caller unless sip.recurse is set"),
    ),
    (
        "WITH_BLOCK401407",
        Fixed::Unsupported("hairpin sends challenges of the next hop to the caller"),
    ),
    (
        "WITH_VOICEMAIL",
        Fixed::Replaced("sip.trunk and sip.route: a route has on_busy and on_no_answer"),
    ),
    (
        "WITH_ACCDB",
        Fixed::Unsupported(
            "hairpin writes no table of calls: sip.call_log writes one log line per call",
        ),
    ),
    ("WITH_DEBUG", Fixed::Replaced("log.level = \"debug\"")),
];

/// Modules of the default configuration.
const MODULES: &[(&str, Fixed)] = &[
    (
        "tls",
        Fixed::Replaced("sip.listen_tls and tls.certificates: write the files of tls.cfg there"),
    ),
    (
        "db_mysql",
        Fixed::Replaced(
            "users of sip.domain or auth.stores for users, and server.state_dir for bindings",
        ),
    ),
    ("xhttp", Fixed::Replaced("admin.listen")),
    (
        "jsonrpcs",
        Fixed::Replaced("hairpin status and metrics (admin.listen)"),
    ),
    ("ctl", Fixed::Replaced("server.control_socket")),
    ("cfg_rpc", Fixed::Replaced("hairpin reload")),
    ("kex", PART),
    ("corex", PART),
    ("tm", PART),
    ("tmx", PART),
    ("sl", PART),
    ("rr", PART),
    ("pv", SCRIPT),
    ("maxfwd", PART),
    ("usrloc", PART),
    ("registrar", PART),
    ("textops", SCRIPT),
    ("textopsx", SCRIPT),
    ("siputils", SCRIPT),
    ("xlog", SCRIPT),
    ("sanity", PART),
    (
        "acc",
        Fixed::Unsupported(
            "hairpin writes no table of calls: sip.call_log writes one log line per call",
        ),
    ),
    ("counters", Fixed::Replaced("metrics (admin.listen)")),
    ("dlgs", Fixed::Replaced("metrics (admin.listen)")),
    ("auth", PART),
    ("auth_db", Fixed::Replaced("users of sip.domain")),
    (
        "permissions",
        Fixed::Replaced("sip.trunk: write the rows of the table address there"),
    ),
    (
        "alias_db",
        Fixed::Replaced("sip.route: write a route with to_domain and replace for each alias"),
    ),
    (
        "speeddial",
        Fixed::Replaced("sip.route: write a route with replace for each number"),
    ),
    ("domain", Fixed::Replaced("sip.domain")),
    (
        "presence",
        Fixed::Unsupported("hairpin has no presence server"),
    ),
    (
        "presence_xml",
        Fixed::Unsupported("hairpin has no presence server"),
    ),
    (
        "nathelper",
        Fixed::Unnecessary("hairpin always handles NAT (RFC 3581, RFC 5626)"),
    ),
    (
        "rtpengine",
        Fixed::Unsupported("hairpin relays media by TURN only"),
    ),
    (
        "rtpproxy",
        Fixed::Unsupported("hairpin relays media by TURN only"),
    ),
    ("htable", SCRIPT),
    (
        "pike",
        Fixed::Unnecessary("overload control and sip.ban are on by default"),
    ),
    ("debugger", SCRIPT),
    (
        "xmlrpc",
        Fixed::Replaced("hairpin status and metrics (admin.listen)"),
    ),
    ("mi_fifo", Fixed::Replaced("server.control_socket")),
    ("mi_rpc", Fixed::Replaced("server.control_socket")),
    ("uri_db", Fixed::Replaced("users of sip.domain")),
    ("path", PART),
    ("outbound", PART),
    (
        "websocket",
        Fixed::Replaced("sip.listen_ws and sip.listen_wss"),
    ),
];

const PART: Fixed = Fixed::Unnecessary("hairpin always has this function");
const SCRIPT: Fixed = Fixed::Unnecessary("only scripts use it");

/// Parameters that hairpin decides by itself.
const SETTINGS: &[(&str, Fixed)] = &[
    ("log_stderror", LOG),
    ("log_facility", LOG),
    ("log_prefix", LOG),
    ("log_name", LOG),
    (
        "memdbg",
        Fixed::Unnecessary("hairpin has no memory pool to debug"),
    ),
    (
        "memlog",
        Fixed::Unnecessary("hairpin has no memory pool to debug"),
    ),
    (
        "fork",
        Fixed::Replaced("the unit hairpin.service of the package"),
    ),
    ("children", WORKERS),
    ("tcp_children", WORKERS),
    ("async_workers_group", WORKERS),
    ("udp_receiver_mode", WORKERS),
    ("async_workers", WORKERS),
    (
        "auto_aliases",
        Fixed::Replaced("aliases of sip.domain: hairpin makes no reverse DNS queries"),
    ),
    ("enable_tls", Fixed::Replaced("sip.listen_tls")),
    (
        "tls_max_connections",
        Fixed::Replaced("sip.connections, which counts TLS connections as well"),
    ),
    (
        "tls_threads_mode",
        Fixed::Unnecessary("hairpin does not use OpenSSL"),
    ),
    (
        "tcp_accept_no_cl",
        Fixed::Unnecessary("it serves HTTP; in hairpin, admin.listen does"),
    ),
    ("enable_sctp", Fixed::Unsupported("hairpin has no SCTP")),
    ("mpath", Fixed::Unnecessary("hairpin has no modules")),
    (
        "server_signature",
        Fixed::Unnecessary("hairpin adds no Server header field"),
    ),
    (
        "sip_warning",
        Fixed::Unnecessary("responses have no Warning field"),
    ),
    ("voicemail.srv_ip", VOICEMAIL),
    ("voicemail.srv_port", VOICEMAIL),
];

const LOG: Fixed = Fixed::Replaced("stderr, which systemd writes to the journal");
const WORKERS: Fixed = Fixed::Unnecessary("hairpin has one worker per core (server.workers)");
const VOICEMAIL: Fixed = Fixed::Replaced("sip.trunk and sip.route with on_no_answer");

fn fixed(table: &[(&str, Fixed)], name: &str) -> Option<Verdict> {
    let known = table.iter().find(|(known, _)| *known == name);
    known.map(|(_, verdict)| (*verdict).into())
}

/// `#!define`.
pub(super) fn define(name: &str, _value: &str, script: &[Statement]) -> Verdict {
    match name {
        "WITH_PSTN" => match gateway(script) {
            Some(_) => Verdict::carried("sip.trunk and sip.route"),
            None => Verdict::unnecessary("pstn.gw_ip is empty"),
        },
        "DBURL" | "DBGLEVEL" | "MULTIDOMAIN" | "MSG_MAX_SIZE" | "RURI_MAX_SIZE" => {
            Verdict::unnecessary("only other lines of the file use it")
        }
        _ if name.starts_with("FLT_") || name.starts_with("FLB_") => {
            Verdict::unnecessary("only scripts use it")
        }
        _ => fixed(FEATURES, name)
            .unwrap_or_else(|| Verdict::wrong("the default configuration has no such define")),
    }
}

/// `name = value`.
pub(super) fn set(name: &str, value: &str, imported: &mut Imported) -> Verdict {
    let draft = &mut imported.draft;
    match name {
        "debug" => level(value, draft),
        "listen" => listen(value, draft),
        "port" => match value.parse::<u16>() {
            Ok(_) => Verdict::carried("sip.listen"),
            Err(_) => Verdict::wrong("write a port"),
        },
        "alias" => Verdict::carried("sip.domain"),
        "disable_tcp" => Verdict::unsupported(
            "sip.listen always has UDP and TCP (RFC 3261 §18.2.1): block TCP with a firewall",
        ),
        "tcp_connection_lifetime" => seconds(value, "sip.idle", 32, 86_400, draft),
        "tcp_max_connections" => count(value, "sip.connections", 1_000_000, draft),
        "tcp_accept_iplimit" => count(value, "sip.connections_per_source", 1_000_000, draft),
        "advertised_address" => {
            draft.push("sip.advertise", value);
            Verdict::carried("sip.advertise")
        }
        "pstn.gw_ip" | "pstn.gw_port" if value.is_empty() => Verdict::unnecessary("it is empty"),
        "pstn.gw_ip" | "pstn.gw_port" => Verdict::carried("sip.trunk"),
        _ => fixed(SETTINGS, name)
            .unwrap_or_else(|| Verdict::wrong("the default configuration has no such parameter")),
    }
}

fn level(value: &str, draft: &mut Draft) -> Verdict {
    let Ok(level) = value.parse::<i32>() else {
        return Verdict::wrong("write a number");
    };
    let level = match level {
        3.. => "debug",
        1 | 2 => "info",
        0 => "warn",
        _ => "error",
    };
    draft.set("log.level", level);
    Verdict::carried("log.level")
}

fn seconds(value: &str, key: &'static str, least: u64, most: u64, draft: &mut Draft) -> Verdict {
    match value.parse::<u64>() {
        Ok(seconds) => {
            draft.set(key, format!("{}s", seconds.clamp(least, most)));
            Verdict::carried(key)
        }
        Err(_) => Verdict::wrong("write a number of seconds"),
    }
}

fn count(value: &str, key: &'static str, most: i64, draft: &mut Draft) -> Verdict {
    match value.parse::<i64>() {
        Ok(number) => {
            draft.set(key, number.clamp(1, most));
            Verdict::carried(key)
        }
        Err(_) => Verdict::wrong("write a number"),
    }
}

/// `udp:192.0.2.1:5060 advertise 203.0.113.5:5060`, also without a protocol or a port.
fn listen(value: &str, draft: &mut Draft) -> Verdict {
    let (socket, advertised) = match value.split_once(" advertise ") {
        Some((socket, advertised)) => (socket.trim(), Some(advertised.trim())),
        None => (value, None),
    };
    let (transport, rest) = match socket.split_once(':') {
        Some((transport @ ("udp" | "tcp" | "tls" | "sctp"), rest)) => (transport, rest),
        _ => ("udp", socket),
    };
    let Some(address) = address(rest, if transport == "tls" { 5061 } else { PORT }) else {
        return Verdict::unsupported(
            "hairpin listens on IP addresses: write the address of the interface or name",
        );
    };
    if let Some(advertised) = advertised {
        draft.push("sip.advertise", format!("{advertised}/{address}"));
    }
    match transport {
        "tls" => Verdict::replaced("sip.listen_tls, with a certificate in tls.certificates"),
        "sctp" => Verdict::unsupported("hairpin has no SCTP"),
        _ => {
            draft.push("sip.listen", address.to_string());
            Verdict::carried("sip.listen")
        }
    }
}

fn address(text: &str, default_port: u16) -> Option<SocketAddr> {
    if text == "*" {
        return Some(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), default_port));
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let alone = || {
        bare.parse::<IpAddr>()
            .ok()
            .map(|ip| SocketAddr::new(ip, default_port))
    };
    text.parse().ok().or_else(alone)
}

/// `loadmodule`.
pub(super) fn module(name: &str) -> Verdict {
    fixed(MODULES, name).unwrap_or_else(|| {
        Verdict::unsupported(
            "hairpin has no modules, and the default configuration does not load this one",
        )
    })
}

/// `modparam`.
pub(super) fn of_module(module: &str, name: &str, value: &str, imported: &mut Imported) -> Verdict {
    let draft = &mut imported.draft;
    match (module, name) {
        ("registrar", "max_expires") => seconds(value, "sip.register_max", 60, 2_592_000, draft),
        ("registrar", "default_expires") => {
            seconds(value, "sip.register_expires", 1, 2_592_000, draft)
        }
        ("registrar", "min_expires") => seconds(value, "sip.register_min", 1, 3_600, draft),
        ("registrar", "max_contacts") => count(value, "sip.bindings_per_user", 30, draft),
        ("registrar" | "usrloc", "db_url" | "db_mode") => Verdict::replaced("server.state_dir"),
        ("tm", "fr_timer" | "fr_inv_timer") => Verdict::unsupported(
            "the timers are those of RFC 3261 §17: set answer_timeout of a trunk, or ring_time of a route",
        ),
        (module, _) => module_of(module),
    }
}

fn module_of(names: &str) -> Verdict {
    // A parameter may be for several modules: `nathelper|registrar`.
    self::module(names.split('|').next().unwrap_or_default())
}

fn values<'a>(script: &'a [Statement], name: &'a str) -> impl Iterator<Item = &'a str> {
    script
        .iter()
        .filter_map(move |statement| match &statement.kind {
            Kind::Set(known, value) if known == name => Some(&**value),
            _ => None,
        })
}

/// The gateway for telephone numbers.
fn gateway(script: &[Statement]) -> Option<String> {
    let ip = values(script, "pstn.gw_ip")
        .last()
        .filter(|ip| !ip.is_empty())?;
    let port = values(script, "pstn.gw_port")
        .last()
        .filter(|port| !port.is_empty());
    Some(match port {
        Some(port) => format!("sip:{ip}:{port}"),
        None => format!("sip:{ip}"),
    })
}

/// Writes listeners, domain and gateway.
pub(super) fn finish(script: &[Statement], imported: &mut Imported) {
    let draft = &mut imported.draft;
    if !draft.has("sip.listen") {
        let port = values(script, "port")
            .last()
            .and_then(|port| port.parse().ok())
            .unwrap_or(PORT);
        for ip in [
            IpAddr::from(Ipv4Addr::UNSPECIFIED),
            Ipv6Addr::UNSPECIFIED.into(),
        ] {
            draft.push("sip.listen", SocketAddr::new(ip, port).to_string());
        }
    }
    let host = |alias: &str| {
        let alias = alias
            .split_once(':')
            .filter(|(kind, _)| matches!(*kind, "udp" | "tcp" | "tls"))
            .map_or(alias, |(_, rest)| rest);
        alias.split(':').next().unwrap_or_default().to_owned()
    };
    let mut aliases: Vec<String> = Vec::new();
    for alias in values(script, "alias")
        .flat_map(str::split_whitespace)
        .map(|alias| host(alias.trim_matches('"')))
    {
        if !aliases.contains(&alias) {
            aliases.push(alias);
        }
    }
    match aliases.split_first() {
        None => imported.notes.push("the file has no alias, so no phone can register yet: write [[sip.domain]] with the name of your domain".to_owned()),
        Some((name, rest)) => {
            let rest: Vec<Value> = rest.iter().map(|alias| Value::from(&**alias)).collect();
            draft.push_table("sip.domain", [("name", (&**name).into()), ("aliases", rest.into()), ("users", super::super::placeholder_users())]);
        }
    }
    if let Some(to) = gateway(script) {
        draft.push_table(
            "sip.trunk",
            [("name", "pstn".into()), ("to", vec![to].into())],
        );
        let prefixes = vec!["+", "00"].into();
        draft.push_table(
            "sip.route",
            [
                ("name", "pstn".into()),
                ("prefixes", prefixes),
                ("trunks", vec!["pstn"].into()),
            ],
        );
    }
}
