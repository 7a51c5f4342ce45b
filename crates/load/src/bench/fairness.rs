//! The constants of the harness that may favour some servers. docs/benchmarking.md says which.

use ::io::UdpOptions;

use super::floor::{self, BATCH_LIMIT, LISTENER_BUFFER};
use super::hold::{MAX_LOSS, MIN_DELIVERED};
use super::packets::{BURST, FLOW_WARM_UP_RATE, FOREIGN_SHARE, MAX_TRIES};
use super::{procfs, sip};

/// Their names and values, for every report.
pub(super) fn settings() -> Vec<(String, String)> {
    [
        ("frames that leave together", BURST.to_string()),
        (
            "listener buffers of hairpin and of the bare relays",
            format!("{} MiB", LISTENER_BUFFER >> 20),
        ),
        (
            "their buffers of a relay",
            format!("the system's: {}", procfs::default_buffers()),
        ),
        (
            "their socket options of a listener",
            names(&floor::options(true, false)),
        ),
        (
            "their socket options of a relay",
            names(&floor::options(false, false)),
        ),
        (
            "UDP_GRO",
            "hairpin while trains arrive, floor-gro always, other bare relays never".to_owned(),
        ),
        (
            "batch size limits",
            format!(
                "hairpin and floor-gro {BATCH_LIMIT}, floor-stun and floor-sip {}, floor 1",
                floor::BATCH
            ),
        ),
        (
            "loss at which a rate counts as held",
            format!("at most {:.0} %", MAX_LOSS * 100.0),
        ),
        (
            "goodput at which a rate counts as held",
            format!("at least {:.0} % of the rate", MIN_DELIVERED * 100.0),
        ),
        (
            "measurements of a load while others use a processor",
            format!(
                "at most {MAX_TRIES} above {:.0} %, the least disturbed counts",
                FOREIGN_SHARE * 100.0
            ),
        ),
        (
            "warm-up of flows of a TURN server",
            format!("{FLOW_WARM_UP_RATE:.0}/s"),
        ),
        ("users of proxied calls", sip::CALLING_USERS.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// The options that a socket has, by their names in the kernel's interface.
fn names(options: &UdpOptions) -> String {
    let all = [
        (options.reuse_port, "SO_REUSEPORT"),
        (options.overflow, "SO_RXQ_OVFL"),
        (options.local_address, "IP_PKTINFO"),
        (options.tos, "IP_RECVTOS"),
        (options.ttl, "IP_RECVTTL"),
        (options.gro, "UDP_GRO"),
        (options.icmp_errors, "IP_RECVERR"),
        (options.busy_poll_us > 0, "SO_BUSY_POLL"),
    ];
    let set: Vec<&str> = all
        .into_iter()
        .filter_map(|(is_set, name)| is_set.then_some(name))
        .collect();
    set.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_report_has_the_options_of_the_sockets() {
        let settings = settings();
        let value = |name: &str| {
            let found = settings.iter().find(|(found, _)| found == name);
            found.map(|(_, value)| value.as_str()).unwrap_or_default()
        };
        assert_eq!(
            value("their socket options of a listener"),
            "SO_REUSEPORT SO_RXQ_OVFL IP_RECVTOS"
        );
        assert_eq!(
            value("their socket options of a relay"),
            "SO_RXQ_OVFL IP_RECVTOS IP_RECVERR"
        );
        assert!(value("batch size limits").contains("floor-gro 4096"));
        assert!(value("their buffers of a relay").contains(" bytes"));
    }
}
