//! What the kernel does for the server, in words: what is in use, what is not, and what to change.

use server::features::{BusyPoll, Features, ListenerFeatures, SocketBuffer};

use crate::config::write_bytes;

/// Lines of the banner: a name and a text.
pub(super) fn lines(features: &Features) -> Vec<(&'static str, String)> {
    let mut lines = vec![("kernel", in_use(features))];
    lines.extend(buffers(features).into_iter().map(|line| ("buffers", line)));
    lines.extend(advice(features).into_iter().map(|line| ("note", line)));
    lines
}

/// The advice once more, for those who read only the log.
pub(super) fn warn(features: &Features) {
    for line in advice(features) {
        tracing::warn!("{line}");
    }
}

fn in_use(features: &Features) -> String {
    let every = |on: fn(&ListenerFeatures) -> bool| features.listeners.iter().all(on);
    let segments = features.max_segments;
    let mut parts = vec![
        on_or_off("GRO", features.gro),
        if features.gso {
            format!("GSO (up to {segments} packets at once)")
        } else {
            "no GSO".to_owned()
        },
        on_or_off(
            "a socket per worker (SO_REUSEPORT)",
            every(|listener| listener.reuse_port),
        ),
        on_or_off(
            "overflow counted",
            every(|listener| listener.overflow_counted),
        ),
    ];
    if let BusyPoll::On(microseconds) = features.busy_poll {
        parts.push(format!("busy polling for {microseconds} us"));
    }
    if features.pinned {
        parts.push("workers pinned".to_owned());
    }
    parts.join(", ")
}

fn on_or_off(name: &str, on: bool) -> String {
    if on {
        name.to_owned()
    } else {
        format!("no {name}")
    }
}

/// One line for each size that some listener has got, of either kind.
fn buffers(features: &Features) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for kind in KINDS {
        for listener in &features.listeners {
            let line = kind.line((kind.of)(listener));
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    lines
}

/// The receive buffers, or the send buffers.
struct Kind {
    of: fn(&ListenerFeatures) -> SocketBuffer,
    purpose: &'static str,
    sysctl: &'static str,
    /// Why a small one is a pity.
    consequence: &'static str,
}

const KINDS: [Kind; 2] = [
    Kind {
        of: |listener| listener.receive_buffer,
        purpose: "to receive",
        sysctl: "net.core.rmem_max",
        consequence: "small receive buffers lose packets in bursts",
    },
    Kind {
        of: |listener| listener.send_buffer,
        purpose: "to send",
        sysctl: "net.core.wmem_max",
        consequence: "small send buffers are filled by few neighbours that do not answer ARP",
    },
];

impl Kind {
    fn line(&self, buffer: SocketBuffer) -> String {
        let granted = write_bytes(buffer.granted);
        let purpose = self.purpose;
        if buffer.is_capped() {
            let wanted = write_bytes(buffer.wanted);
            format!("{granted} {purpose} per socket; {wanted} were asked for")
        } else if buffer.is_forced() {
            let sysctl = self.sysctl;
            format!("{granted} {purpose} per socket, beyond {sysctl} by CAP_NET_ADMIN")
        } else {
            format!("{granted} {purpose} per socket")
        }
    }

    fn advice(&self, features: &Features) -> Option<String> {
        let mut buffers = features.listeners.iter().map(self.of);
        let wanted = buffers.find(SocketBuffer::is_capped)?.wanted;
        let Kind {
            sysctl,
            consequence,
            ..
        } = self;
        Some(format!(
            "{consequence}: sysctl -w {sysctl}={wanted}, or grant CAP_NET_ADMIN"
        ))
    }
}

/// What an administrator may want to change.
fn advice(features: &Features) -> Vec<String> {
    let mut lines: Vec<String> = KINDS
        .iter()
        .filter_map(|kind| kind.advice(features))
        .collect();
    if let BusyPoll::Refused(why) = &features.busy_poll {
        lines.push(format!(
            "no busy polling ({why}): it takes Linux 6.9, or sysctl -w net.core.busy_poll=50 before"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use server::Server;

    /// What a server on this machine has, and what it would have on another.
    fn features(change: impl FnOnce(&mut Features)) -> String {
        let builder = Server::builder()
            .listen("127.0.0.1:0".parse().unwrap())
            .relay_address("127.0.0.1".parse().unwrap())
            .user("ann", "secret")
            .receive_buffer(4 << 20)
            .send_buffer(2 << 20)
            .workers(1);
        let running = builder.start().expect("the server starts");
        let mut features = running.observer().features().clone();
        change(&mut features);
        let lines = lines(&features).into_iter();
        lines
            .map(|(name, line)| format!("{name}: {line}\n"))
            .collect()
    }

    #[test]
    fn kernel_features_in_use_are_reported() {
        let text = features(|features| {
            (features.gro, features.gso, features.max_segments) = (true, true, 128);
            features.busy_poll = BusyPoll::On(50);
            let listener = &mut features.listeners[0];
            for buffer in [&mut listener.receive_buffer, &mut listener.send_buffer] {
                (buffer.granted, buffer.limit) = (buffer.wanted, Some(buffer.wanted));
            }
        });
        let expected = "kernel: GRO, GSO (up to 128 packets at once), a socket per worker (SO_REUSEPORT), overflow counted, \
                        busy polling for 50 us\nbuffers: 4MiB to receive per socket\nbuffers: 2MiB to send per socket\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_limit_in_the_way_is_named_with_the_value_to_set() {
        let text = features(|features| {
            (features.gro, features.gso) = (false, false);
            features.busy_poll = BusyPoll::Refused("not permitted".to_owned());
            let listener = &mut features.listeners[0];
            for buffer in [&mut listener.receive_buffer, &mut listener.send_buffer] {
                (buffer.granted, buffer.limit) = (212_992, Some(212_992));
            }
        });
        for part in [
            "kernel: no GRO, no GSO,",
            "buffers: 208KiB to receive per socket; 4MiB were asked for\n",
            "buffers: 208KiB to send per socket; 2MiB were asked for\n",
            "sysctl -w net.core.rmem_max=4194304",
            "sysctl -w net.core.wmem_max=2097152",
            "no busy polling (not permitted)",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }
}
