//! Warnings about a report: the reasons why its figures may be wrong.

use super::receive_socket::ClientErrors;
use crate::report::{Ending, LoadReport};

/// How messages leave over TCP and TLS.
pub(super) const STREAMS: &str = "send, gathered";
/// How datagrams leave over DTLS: one call for each.
pub(super) const DTLS: &str = "send";
/// Why a unit of work of SIP does not begin.
pub(super) const WITHHELD: &str = "every server said Retry-After";
/// The workload whose datagrams are not answered one by one.
const GARBAGE: &str = "garbage";
/// A generator thread above this share of a processor is itself the limit.
const BUSY: f64 = 0.9;

/// All warnings about a finished report.
pub(super) fn of(
    report: &LoadReport,
    client_errors: &ClientErrors,
    warm_up_errors: &ClientErrors,
) -> Vec<String> {
    let mut found = Vec::new();
    generator(report, &mut found);
    sending(report, &mut found);
    let total = &report.total;
    let came = total.received + total.late;
    if came > total.sent && report.run.workload != GARBAGE {
        found.push(format!(
            "{} more came back than left: the server, or something before it, makes datagrams; its loss is unknown",
            came - total.sent
        ));
    }
    if total.overflow > 0 {
        found.push(format!(
            "the generator's own receive buffers dropped {} datagrams: they are not the server's loss; raise net.core.rmem_max, \
             or give it more receivers",
            total.overflow
        ));
    }
    if report.kernel.receive > 0 && total.lost > 0 {
        found.push(format!(
            "full receive buffers of other programs on this machine dropped {} datagrams: if the server is one of them, that is \
             where they were lost",
            report.kernel.receive
        ));
    }
    let rang = report.sip.as_deref().map_or(0, |sip| sip.cancelled);
    if total.sent > 0 && total.received == 0 && rang == 0 && report.ended != Ending::ServerSilent {
        found.push(
            "nothing came back: is the server there, and does it admit these peers?".to_owned(),
        );
    }
    clients("during the run", client_errors, &mut found);
    clients("in the warm-up", warm_up_errors, &mut found);
    found
}

/// Errors of the clients; `when` is the part of the run.
fn clients(when: &str, errors: &ClientErrors, found: &mut Vec<String>) {
    if errors.lost > 0 {
        found.push(format!(
            "{} allocations were lost {when}: the server forgot them, or did not refresh them",
            errors.lost
        ));
    }
    if errors.disconnected > 0 {
        found.push(format!(
            "{} connections to the server ended {when}: {}",
            errors.disconnected,
            errors.why.as_deref().unwrap_or("no reason known")
        ));
    }
    if errors.refused > 0 {
        found.push(format!(
            "{} requests to keep allocations, permissions or channels alive failed {when}",
            errors.refused
        ));
    }
}

/// The generator is the limit.
fn generator(report: &LoadReport, found: &mut Vec<String>) {
    let total = &report.total;
    let open_loop = report.run.offered_rate.is_some();
    let busy = report.threads.iter().find(|thread| thread.cpu > BUSY);
    if let (Some(thread), true) = (busy, open_loop) {
        found.push(format!(
            "the generator is the bottleneck: {} used {:.0} % of a processor; give it more threads or a lower rate",
            thread.name,
            thread.cpu * 100.0
        ));
    }
    if total.sent > 0 && total.sent_late as f64 > 0.01 * total.sent as f64 {
        found.push(format!(
            "{} of {} datagrams left more than 1 ms late: the generator cannot keep this schedule",
            total.sent_late, total.sent
        ));
    }
}

/// Warns about units of work and datagrams that were not sent, and about UDP_SEGMENT that had no effect.
fn sending(report: &LoadReport, found: &mut Vec<String>) {
    let sending = &report.sending;
    let withheld = report.sip.as_deref().map_or(0, |sip| sip.withheld);
    if withheld > 0 {
        found.push(format!(
            "{withheld} did not begin because every server had said Retry-After: the load was lower than asked for (--obey off ignores it)"
        ));
    }
    if report.total.not_sent > withheld {
        let reasons = sending.not_sent.keys().map(String::as_str);
        let reasons: Vec<_> = reasons.filter(|&why| why != WITHHELD).collect();
        let advice = if report.sip.is_some() {
            "Allow more (--in-flight), or lower the rate"
        } else if sending.method == STREAMS {
            "The server, or this machine, does not read as fast: lower the rate, or use more clients"
        } else {
            "Raise net.core.wmem_max, or lower the rate"
        };
        found.push(format!(
            "{} datagrams could not leave this machine: {}. {advice}",
            report.total.not_sent - withheld,
            reasons.join(", ")
        ));
    }
    if report.kernel.send > 0 {
        found.push(format!(
            "the kernel of this machine dropped {} datagrams on their way out, because the queue of an interface was full (ENOBUFS, \
             Udp SndbufErrors): they count as lost and are not the server's loss; lower the rate, or lengthen the queue",
            report.kernel.send
        ));
    }
    if sending.gso_asked && sending.gso_segments == 0 && sending.datagrams > 0 {
        found.push(match sending.gso_refused {
            0 => "UDP_SEGMENT was asked for and not used: no two datagrams of one flow were due at once (longer trains, bursts?)"
                .to_owned(),
            refused => format!(
                "UDP_SEGMENT was asked for and refused {refused} times: this kernel, device or MTU does not do it"
            ),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{ThreadUse, sample};

    /// All warnings, if nothing befell the clients.
    fn of(report: &LoadReport) -> Vec<String> {
        let calm = ClientErrors::default();
        super::of(report, &calm, &calm)
    }

    #[test]
    fn a_busy_sender_is_named() {
        let mut report = sample(1.0);
        assert!(of(&report).is_empty());
        report.threads.push(ThreadUse {
            name: "sender-0".into(),
            cpu: 0.97,
            ..ThreadUse::default()
        });
        assert!(of(&report)[0].contains("sender-0"));
    }

    #[test]
    fn more_that_came_back_than_left_is_named() {
        let mut report = sample(1.0);
        report.total.late = 20;
        let found = of(&report);
        assert!(
            found[0].starts_with("10 more came back than left"),
            "{found:?}"
        );
        report.total.late = 10;
        assert!(of(&report).is_empty());
    }

    #[test]
    fn losses_on_this_machine_are_not_blamed_on_the_server() {
        let mut report = sample(1.0);
        report.kernel.send = 7;
        report.kernel.receive = 8;
        report.total.overflow = 9;
        let found = of(&report);
        let has = |part: &str| found.iter().any(|warning| warning.contains(part));
        assert!(
            has("dropped 7 datagrams on their way out") && has("dropped 8") && has("dropped 9"),
            "{found:?}"
        );
    }

    #[test]
    fn segments_that_were_asked_for_and_not_sent_are_missed() {
        let mut report = sample(1.0);
        report.sending.gso_asked = true;
        report.sending.datagrams = 100;
        assert!(of(&report)[0].contains("not used"));
        report.sending.gso_refused = 3;
        assert!(of(&report)[0].contains("refused 3"));
        report.sending.gso_segments = 50;
        assert!(of(&report).is_empty());
    }
    #[test]
    fn what_befell_clients_in_the_warm_up_is_told_apart() {
        let lost = ClientErrors {
            lost: 3,
            ..ClientErrors::default()
        };
        let found = super::of(&sample(1.0), &ClientErrors::default(), &lost);
        assert!(
            found[0].starts_with("3 allocations were lost in the warm-up"),
            "{found:?}"
        );
    }
}
