//! What the kernel of this machine dropped on its own account.
//!
//! The kernel drops a datagram silently if the queue of its interface is full. The sending call succeeds, because
//! ENOBUFS is reported only to sockets with the error queue (udp(7)). The loss then looks like the server's. The same
//! is true at the other end, where a full receive buffer of a server on this machine drops what had arrived. Both are
//! counted for the network namespace as a whole.

use std::fs;

use crate::report::KernelDrops;

/// Both counters since the network namespace was created; 0 if a counter cannot be read.
pub(super) fn drops() -> KernelDrops {
    // Of the thread that asks: a process may have threads in several namespaces.
    let read =
        |name| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    let (v4, v6) = (read("snmp"), read("snmp6"));
    KernelDrops {
        send: in_columns(&v4, "SndbufErrors") + in_lines(&v6, "Udp6SndbufErrors"),
        receive: in_columns(&v4, "RcvbufErrors") + in_lines(&v6, "Udp6RcvbufErrors"),
    }
}

/// A counter of `/proc/net/snmp`, where a line of names stands above a line of values.
fn in_columns(text: &str, name: &str) -> u64 {
    let mut udp = text
        .lines()
        .filter_map(|line| Some(line.strip_prefix("Udp: ")?.split(' ')));
    let (Some(mut names), Some(mut values)) = (udp.next(), udp.next()) else {
        return 0;
    };
    names
        .position(|other| other == name)
        .and_then(|at| values.nth(at)?.parse().ok())
        .unwrap_or(0)
}

/// A counter of `/proc/net/snmp6`, where each has a line of its own.
fn in_lines(text: &str, name: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.split_once(char::is_whitespace))
        .find(|(other, _)| *other == name)
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_names() {
        let snmp = "Tcp: A B\nTcp: 1 2\nUdp: InDatagrams RcvbufErrors SndbufErrors\nUdp: 11 22 33\nUdpLite: SndbufErrors\nUdpLite: 9\n";
        assert_eq!(in_columns(snmp, "SndbufErrors"), 33);
        assert_eq!(in_columns(snmp, "RcvbufErrors"), 22);
        assert_eq!(in_columns("Udp: A\n", "A") + in_columns("", "A"), 0);
        let snmp6 = "Udp6InDatagrams                 \t7\nUdp6SndbufErrors                \t44\n";
        assert_eq!(in_lines(snmp6, "Udp6SndbufErrors"), 44);
        assert_eq!(in_lines(snmp6, "Udp6RcvbufErrors"), 0);
    }

    #[test]
    fn this_kernel_has_them_where_we_look() {
        let snmp = fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
        assert!(
            snmp.contains("SndbufErrors") && snmp.contains("RcvbufErrors"),
            "{snmp}"
        );
    }
}
