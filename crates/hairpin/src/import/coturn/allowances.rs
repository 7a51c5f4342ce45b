//! Relay ports, transports of relays, workers and buffers.

use super::network::udp_ports;
use super::{
    Draft, File, Line, Row, Rule, Verdict, flag, replaced, unnecessary, unsupported, value,
};

/// hairpin does not relay on lower ports, because they belong to services of the host.
const MIN_PORT: u16 = 1024;
const DEFAULT_PORTS: (u16, u16) = (49_152, 65_535);
/// Where coturn's shared relay ports begin.
const SHARED_BASE: u16 = 3480;
/// The most ports that `relay.shared_ports` allows.
const MAX_SHARED: u64 = 256;
/// Shared ports if the number of threads is not in the file: coturn uses two per processor.
const USUAL_SHARED: u64 = 64;

pub(super) const ROWS: &[Row] = &[
    value("min-port", Rule::Decide(relay_port)),
    value("max-port", Rule::Decide(relay_port)),
    flag("multiplex-peer", Rule::Decide(shared_ports)),
    value(
        "multiplex-peer-port",
        Rule::Decide(|_, file, _| match file.flag("multiplex-peer") {
            true => Verdict::carried("relay.ports"),
            false => Verdict::unnecessary("only multiplex-peer uses it"),
        }),
    ),
    value(
        "multiplex-peer-max-peers",
        replaced("limits.permissions_per_allocation"),
    ),
    flag(
        "no-udp-relay",
        unsupported("hairpin always offers UDP relays, to clients with credentials only"),
    ),
    flag(
        "no-tcp-relay",
        Rule::Decide(|_, _, draft| {
            draft.set("relay.tcp", false);
            Verdict::carried("relay.tcp")
        }),
    ),
    flag(
        "mobility",
        Rule::Decide(|_, _, draft| {
            draft.set("relay.mobility", true);
            Verdict::carried("relay.mobility")
        }),
    ),
    flag(
        "server-relay",
        unsupported(
            "it disables the permissions of RFC 8656 §9: any host could send to the clients",
        ),
    ),
    flag("keep-address-family", FAMILY),
    value(
        "allocation-default-address-family",
        Rule::Decide(|line, _, _| match line.word() {
            "ipv4" => Verdict::unnecessary("IPv4 is the default of RFC 8656 §7.2"),
            _ => Verdict::unsupported("RFC 8656 §7.2 gives IPv4 to a client that names no family"),
        }),
    ),
    value("relay-threads", Rule::Decide(threads)),
    value(
        "cpus",
        Rule::Decide(|line, file, draft| match file.last("relay-threads") {
            Some(_) => Verdict::unnecessary("relay-threads says how many threads there are"),
            None => threads(line, file, draft),
        }),
    ),
    value("sock-buf-size", Rule::Decide(buffer)),
    flag("udp-recvmmsg", BATCHES),
    flag("udp-recvmmsg-log", BATCH_LOG),
    flag("udp-sendmmsg-log", BATCH_LOG),
    flag("udp-gso", BATCHES),
];

const FAMILY: Rule = unsupported("RFC 8656 §7.2 gives IPv4 to a client that names no family");
const BATCHES: Rule =
    unnecessary("hairpin uses UDP segmentation offloads if the kernel has them (server.offloads)");
const BATCH_LOG: Rule = replaced("the metrics hairpin_io_*");

fn relay_port(line: &Line, file: &File, draft: &mut Draft) -> Verdict {
    if file.flag("multiplex-peer") {
        return Verdict::unnecessary("with multiplex-peer, UDP relays use other ports");
    }
    if line.port().is_none() {
        return Verdict::wrong("write a port from 1 to 65535");
    }
    let asked = asked(file);
    let Some((first, last)) = usable(asked, &udp_ports(file)) else {
        return Verdict::wrong("no port is left between min-port and max-port");
    };
    draft.set("relay.ports", format!("{first}-{last}"));
    match asked == (first, last) {
        true => Verdict::carried("relay.ports"),
        false => Verdict::carried(format!(
            "relay.ports, narrowed to {first}-{last}: relays cannot use ports below {MIN_PORT} or ports of listeners"
        )),
    }
}

fn asked(file: &File) -> (u16, u16) {
    let (first, last) = DEFAULT_PORTS;
    (file.port("min-port", first), file.port("max-port", last))
}

/// The largest part of the range that has no port of a listener.
fn usable((first, last): (u16, u16), taken: &[u16]) -> Option<(u16, u16)> {
    let mut taken: Vec<_> = taken
        .iter()
        .copied()
        .filter(|port| (first..=last).contains(port))
        .collect();
    taken.sort_unstable();
    taken.dedup();
    let mut parts = Vec::new();
    let mut from = u32::from(first.max(MIN_PORT));
    for port in taken
        .into_iter()
        .map(u32::from)
        .chain([u32::from(last) + 1])
    {
        if from < port {
            parts.push((from, port - 1));
        }
        from = from.max(port + 1);
    }
    let (from, to) = parts.into_iter().max_by_key(|(from, to)| to - from)?;
    Some((from.try_into().ok()?, to.try_into().ok()?))
}

/// Narrows the default range if a listener uses one of its ports.
pub(super) fn finish(file: &File, draft: &mut Draft) {
    if draft.has("relay.ports") {
        return;
    }
    let usable = usable(DEFAULT_PORTS, &udp_ports(file));
    if let Some((first, last)) = usable.filter(|range| *range != DEFAULT_PORTS) {
        draft.set("relay.ports", format!("{first}-{last}"));
    }
}

fn shared_ports(_: &Line, file: &File, draft: &mut Draft) -> Verdict {
    let threads = file
        .last("relay-threads")
        .or(file.last("cpus"))
        .and_then(Line::number);
    let count = threads.map_or(USUAL_SHARED, |threads| (2 * threads.max(1)).min(MAX_SHARED));
    let base = file.port("multiplex-peer-port", SHARED_BASE).max(MIN_PORT);
    let last = u16::try_from(u64::from(base) + count - 1).unwrap_or(u16::MAX);
    let Some((first, last)) = usable((base, last), &udp_ports(file)) else {
        return Verdict::wrong("no port is left for the relays");
    };
    draft.set("relay.shared_ports", true);
    draft.set("relay.ports", format!("{first}-{last}"));
    Verdict::carried(format!(
        "relay.shared_ports, with the ports {first}-{last} in relay.ports"
    ))
}

fn threads(line: &Line, _: &File, draft: &mut Draft) -> Verdict {
    // In coturn, 0 means one thread for all work.
    let Some(threads) = line.number() else {
        return Verdict::wrong("write a number");
    };
    let workers = threads.clamp(1, 255);
    draft.set("server.workers", i64::try_from(workers).unwrap_or(1));
    Verdict::carried("server.workers")
}

fn buffer(line: &Line, _: &File, draft: &mut Draft) -> Verdict {
    /// The default of hairpin.
    const DEFAULT: u64 = 8 << 20;
    const MAX_BYTES: u64 = 512 << 20;
    match line.number() {
        None | Some(0) => Verdict::wrong("write a number of bytes"),
        Some(bytes) if bytes <= DEFAULT => {
            Verdict::unnecessary("the default of hairpin is larger (8 MiB)")
        }
        Some(bytes) => {
            let size = format!("{}B", bytes.min(MAX_BYTES));
            draft.set("server.receive_buffer", &*size);
            draft.set("server.send_buffer", size);
            Verdict::carried("server.receive_buffer and server.send_buffer")
        }
    }
}
