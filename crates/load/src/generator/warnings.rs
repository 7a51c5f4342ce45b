//! What makes a result less than it seems.

use crate::report::LoadReport;

/// A generator thread above this share of a processor is itself the limit.
const BUSY: f64 = 0.9;

/// Everything worth a warning in a finished report.
pub(super) fn of(report: &LoadReport) -> Vec<String> {
    let mut found = Vec::new();
    let total = &report.total;
    let open_loop = report.run.offered_rate.is_some();
    if let Some(thread) = report
        .threads
        .iter()
        .find(|thread| thread.cpu > BUSY && open_loop)
    {
        found.push(format!(
            "the generator is the bottleneck: {} used {:.0} % of a processor; give it more threads or a lower rate",
            thread.name,
            thread.cpu * 100.0
        ));
    }
    if total.sent > 0 && total.late as f64 > 0.01 * total.sent as f64 {
        found.push(format!(
            "{} of {} datagrams left more than 1 ms late: the generator cannot keep this schedule",
            total.late, total.sent
        ));
    }
    if total.overflow > 0 {
        found.push(format!(
            "the generator's own receive buffers dropped {} datagrams: they are not the server's loss; raise net.core.rmem_max",
            total.overflow
        ));
    }
    if total.not_sent > 0 {
        found.push(format!(
            "{} datagrams could not leave this machine: raise net.core.wmem_max, or lower the rate",
            total.not_sent
        ));
    }
    if total.sent > 0 && total.received == 0 {
        found.push(
            "nothing came back: is the server there, and does it admit these peers?".to_owned(),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{ThreadUse, sample};

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
}
