//! The page of `hairpin probe turn --exporter`: what a client finds. docs/operation.md describes each metric.

use std::time::Duration;

use super::text::{Kind, Page};

/// Why a round fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The name of the server leads nowhere.
    Name,
    /// Nothing listens, nothing came back, or no connection.
    Unreachable,
    /// The server did not accept the credentials.
    Credentials,
    /// The server refused a request.
    Refused,
    /// An allocation, but no data through it.
    DataLost,
    /// Any other failure.
    Other,
}

impl Fault {
    const ALL: [(Fault, &'static str); 6] = [
        (Fault::Name, "name"),
        (Fault::Unreachable, "unreachable"),
        (Fault::Credentials, "credentials"),
        (Fault::Refused, "refused"),
        (Fault::DataLost, "data_lost"),
        (Fault::Other, "other"),
    ];
}

/// One round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Round {
    /// `None`: success.
    pub(crate) fault: Option<Fault>,
    /// When it ended, in seconds since 1970.
    pub(crate) unix_s: u64,
    /// How long the TCP connection took.
    pub(crate) connect: Option<Duration>,
    /// How long the TLS or DTLS handshake took.
    pub(crate) handshake: Option<Duration>,
    /// How long the Allocate transaction took.
    pub(crate) allocate: Option<Duration>,
    /// The median time of data through the relay and back.
    pub(crate) round_trip: Option<Duration>,
    /// Datagrams sent through the relay.
    pub(crate) sent: u32,
    /// Datagrams that came back.
    pub(crate) returned: u32,
}

/// All rounds with one server over one transport.
#[derive(Clone, Debug)]
pub(crate) struct Rounds {
    target: String,
    transport: &'static str,
    last: Option<Round>,
    succeeded: u64,
    failed: [u64; Fault::ALL.len()],
    sent: u64,
    returned: u64,
}

impl Rounds {
    /// None yet.
    pub(crate) fn new(target: &str, transport: &'static str) -> Self {
        Self {
            target: target.to_owned(),
            transport,
            last: None,
            succeeded: 0,
            failed: [0; Fault::ALL.len()],
            sent: 0,
            returned: 0,
        }
    }

    /// Counts one round.
    pub(crate) fn add(&mut self, round: Round) {
        match round.fault {
            None => self.succeeded += 1,
            Some(fault) => {
                let place = Fault::ALL.iter().position(|(of, _)| *of == fault);
                self.failed[place.unwrap_or(Fault::ALL.len() - 1)] += 1;
            }
        }
        self.sent += u64::from(round.sent);
        self.returned += u64::from(round.returned);
        self.last = Some(round);
    }
}

/// All metrics of this moment.
pub(crate) fn probe_page(all: &[Rounds]) -> String {
    let mut page = Page::default();
    last_round(&mut page, all);
    let mut rounds = page.family(
        "hairpin_probe_rounds_total",
        Kind::Counter,
        "Rounds with a server, by outcome.",
    );
    for it in all {
        let failed = Fault::ALL.iter().zip(it.failed);
        let failed = failed.map(|((_, name), count)| (*name, count));
        for (outcome, count) in [("success", it.succeeded)].into_iter().chain(failed) {
            rounds.put(
                &[
                    ("target", &it.target),
                    ("transport", &it.transport),
                    ("outcome", &outcome),
                ],
                count,
            );
        }
    }
    let mut counter = |name, help, value: fn(&Rounds) -> u64| {
        let mut family = page.family(name, Kind::Counter, help);
        for it in all {
            let labels: super::text::Labels<'_> =
                &[("target", &it.target), ("transport", &it.transport)];
            family.put(labels, value(it));
        }
    };
    counter(
        "hairpin_probe_sent_datagrams_total",
        "Datagrams sent through the relay.",
        |it| it.sent,
    );
    counter(
        "hairpin_probe_returned_datagrams_total",
        "Datagrams received again through the relay; the difference to those sent is the loss.",
        |it| it.returned,
    );
    page.finish()
}

/// What the last round found. A round that failed has no delay.
fn last_round(page: &mut Page, all: &[Rounds]) {
    let mut gauge = |name, help, value: fn(&Round) -> Option<f64>| {
        if !all
            .iter()
            .any(|it| it.last.as_ref().and_then(value).is_some())
        {
            return;
        }
        let mut family = page.family(name, Kind::Gauge, help);
        for it in all {
            if let Some(value) = it.last.as_ref().and_then(value) {
                family.put(
                    &[("target", &it.target), ("transport", &it.transport)],
                    value,
                );
            }
        }
    };
    gauge(
        "hairpin_probe_success",
        "1 if the last round made an allocation and data passed through it, else 0.",
        |round| Some(f64::from(u8::from(round.fault.is_none()))),
    );
    gauge(
        "hairpin_probe_last_round_timestamp_seconds",
        "When the last round ended, in seconds since 1970.",
        |round| Some(round.unix_s as f64),
    );
    gauge(
        "hairpin_probe_loss_ratio",
        "Share of the datagrams of the last round that were lost, 0 to 1.",
        |round| {
            let lost = round.sent.saturating_sub(round.returned);
            (round.sent > 0).then(|| f64::from(lost) / f64::from(round.sent))
        },
    );
    gauge(
        "hairpin_probe_connect_seconds",
        "Duration of the TCP connection of the last round, in seconds.",
        |round| round.connect.map(|time| time.as_secs_f64()),
    );
    gauge(
        "hairpin_probe_handshake_seconds",
        "Duration of the TLS or DTLS handshake of the last round, in seconds.",
        |round| round.handshake.map(|time| time.as_secs_f64()),
    );
    gauge(
        "hairpin_probe_allocate_seconds",
        "Duration of the Allocate transaction of the last round with its challenge, in seconds.",
        |round| round.allocate.map(|time| time.as_secs_f64()),
    );
    gauge(
        "hairpin_probe_round_trip_seconds",
        "Median time of data through the relay to another allocation and back in the last round, in seconds.",
        |round| round.round_trip.map(|time| time.as_secs_f64()),
    );
}

#[cfg(test)]
mod tests {
    use super::super::check::read;
    use super::*;

    #[test]
    fn the_page_is_what_prometheus_reads() {
        let mut over_udp = Rounds::new("turn:turn.example.org", "udp");
        over_udp.add(Round {
            unix_s: 1_795_000_000,
            allocate: Some(Duration::from_millis(12)),
            round_trip: Some(Duration::from_millis(40)),
            sent: 8,
            returned: 6,
            ..Round::default()
        });
        let mut over_tls = Rounds::new("turns:turn.example.org", "tls");
        over_tls.add(Round {
            fault: Some(Fault::Credentials),
            ..Round::default()
        });
        // No round of it has ended yet.
        let over_tcp = Rounds::new("turn:turn.example.org?transport=tcp", "tcp");
        let families = read(&probe_page(&[over_udp, over_tls, over_tcp]));
        let udp = [("transport", "udp")];
        assert_eq!(families["hairpin_probe_success"].sum(&udp), 1.0);
        assert_eq!(families["hairpin_probe_success"].samples.len(), 2);
        assert_eq!(families["hairpin_probe_loss_ratio"].sum(&udp), 0.25);
        assert_eq!(families["hairpin_probe_allocate_seconds"].sum(&[]), 0.012);
        let failed = [("transport", "tls"), ("outcome", "credentials")];
        assert_eq!(families["hairpin_probe_rounds_total"].sum(&failed), 1.0);
        assert_eq!(families["hairpin_probe_rounds_total"].sum(&[]), 2.0);
    }
}
