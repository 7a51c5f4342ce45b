//! What the kernel does for relaying, by interface and by path.

use server::Observer;

use super::text::{Kind, Page};

pub(super) fn write(page: &mut Page, observer: &Observer) {
    let status = observer.offload();
    if status.interfaces.is_empty() {
        return;
    }
    let mut family = page.family(
        "hairpin_offload_mode",
        Kind::Gauge,
        "1 for the mode in which datagrams that arrive on an interface are relayed, and the reason why no better mode is in use.",
    );
    for interface in &status.interfaces {
        let (mode, reason) = (interface.method.name(), interface.reason_name());
        family.put(
            &[
                ("interface", &interface.name),
                ("mode", &mode),
                ("reason", &reason),
            ],
            1,
        );
    }
    let mut family = page.family(
        "hairpin_offload_packets_total",
        Kind::Counter,
        "Packets for this server that the kernel's programs handled, by outcome; user space got those with pass_.",
    );
    for (path, totals) in [("xdp", &status.totals.xdp), ("tc", &status.totals.tc)] {
        let named = totals.named();
        for (outcome, packets) in named.filter(|(name, _)| !name.ends_with("_bytes")) {
            family.put(&[("path", &path), ("outcome", &outcome)], packets);
        }
    }
    let mut family = page.family(
        "hairpin_offload_next_hops",
        Kind::Gauge,
        "Next hops of channels in the kernel: used, and those of them whose link-layer address is known.",
    );
    family.put(&[("state", &"used")], status.next_hops);
    family.put(&[("state", &"usable")], status.next_hops_usable);
}
