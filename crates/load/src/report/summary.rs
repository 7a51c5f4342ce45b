//! The report for a terminal.

use std::fmt;

use super::{LoadReport, shown};

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        self.counts(f)?;
        if let Some(sip) = &self.sip {
            write!(f, "{sip}")?;
        }
        self.times(f)?;
        self.write_methods(f)?;
        for warning in &self.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        if let Some(reason) = &self.ended_early {
            writeln!(f, "ended early: {reason}")?;
        }
        Ok(())
    }
}

impl LoadReport {
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} against {}", self.run.workload, self.run.target)?;
        for (name, value) in &self.run.settings {
            write!(f, ", {name} {value}")?;
        }
        writeln!(
            f,
            ", {:.1} s after {:.1} s of warm-up",
            self.run.measured_s, self.run.warm_up_s
        )
    }

    fn counts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = &self.total;
        if let Some(rate) = self.run.offered_rate {
            writeln!(
                f,
                "  offered   {rate:>12.0}/s   achieved {:.0}/s ({:.2} %), sent late {}",
                self.send_pps(),
                100.0 * self.send_pps() / rate.max(1e-9),
                total.sent_late,
            )?;
        }
        writeln!(
            f,
            "  sent      {:>12} ({:.0}/s)",
            total.sent,
            self.send_pps()
        )?;
        writeln!(
            f,
            "  received  {:>12} ({:.0}/s)",
            total.received,
            self.recv_pps()
        )?;
        writeln!(
            f,
            "  lost      {:>12} ({:.4} %), late {}, reordered {}, duplicate {}, truncated {}, corrupt {}",
            total.lost,
            total.loss() * 100.0,
            total.late,
            total.reordered,
            total.duplicates,
            total.truncated,
            total.corrupt,
        )?;
        let odd = [
            ("damaged in the head", total.damaged),
            ("of another run", total.other_run),
            ("of another client", total.misdelivered),
            ("from nobody that was asked", total.foreign),
            ("answers to no request (transaction ID)", total.unknown_ids),
            (
                "answers that cannot be trusted (integrity)",
                total.untrusted,
            ),
            ("data on no channel or permission", total.unbound),
            ("wrong or missing mapped address", total.wrong_addresses),
        ];
        for (name, count) in odd.into_iter().filter(|(_, count)| *count > 0) {
            writeln!(f, "  {name} {count}")?;
        }
        if total.succeeded + total.failed > 0 {
            writeln!(
                f,
                "  requests  {:>12} succeeded, {} failed",
                total.succeeded, total.failed
            )?;
        }
        for (code, count) in &self.errors {
            match code {
                0 => writeln!(f, "  no answer {count:>12}")?,
                code => writeln!(f, "  error {code} {count:>12}")?,
            }
        }
        Ok(())
    }

    fn times(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = &self.latency;
        if times.count == 0 {
            return Ok(());
        }
        writeln!(
            f,
            "  {} in us {}: min {:.1}, mean {:.1}, p50 {}, p90 {}, p99 {}, p99.9 {}, p99.99 {}, max {:.1}; jitter {:.1}",
            self.run.latency_is,
            self.run.pace.latency_from(),
            times.min_us,
            times.mean_us,
            shown(times.p50_us),
            shown(times.p90_us),
            shown(times.p99_us),
            shown(times.p999_us),
            shown(times.p9999_us),
            times.max_us,
            self.jitter_us,
        )?;
        if let Some(left_out) = self.run.pace.excluded_latencies() {
            writeln!(f, "    {left_out}")?;
        }
        let own = [
            ("the generator itself sent late in us", &self.own_delay),
            (
                "not in it: the generator itself woke up late in us",
                &self.own_wake_up,
            ),
        ];
        for (name, own) in own {
            let Some(own) = own.as_ref().filter(|own| own.percentiles.count > 0) else {
                continue;
            };
            writeln!(
                f,
                "  {name}: p50 {}, p99 {}, p99.9 {}, max {:.1}; {}",
                shown(own.percentiles.p50_us),
                shown(own.percentiles.p99_us),
                shown(own.percentiles.p999_us),
                own.percentiles.max_us,
                own.parts(),
            )?;
        }
        for (name, part) in &self.parts {
            writeln!(
                f,
                "    {name:<8} p50 {}, p90 {}, p99 {}, p99.9 {}, max {:.1} of {}",
                shown(part.p50_us),
                shown(part.p90_us),
                shown(part.p99_us),
                shown(part.p999_us),
                part.max_us,
                part.count,
            )?;
        }
        Ok(())
    }

    fn write_methods(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sending = &self.sending;
        writeln!(
            f,
            "  sent by {}: {} datagrams in {} calls",
            sending.method, sending.datagrams, sending.calls
        )?;
        if sending.gso_asked {
            writeln!(
                f,
                "  segmented    {} of them in {} runs; {} runs were refused and left one by one",
                sending.gso_segments, sending.gso_runs, sending.gso_refused
            )?;
        }
        for (reason, count) in &sending.not_sent {
            writeln!(f, "  not sent     {count:>12}  {reason}")?;
        }
        if let Some(server) = &self.server {
            writeln!(f, "{server}")?;
        }
        for thread in &self.threads {
            writeln!(
                f,
                "  {:<12} sent {:>12} ({:.0}/s), received {:>12} ({:.0}/s), cpu {:>5.1} %",
                thread.name,
                thread.sent,
                thread.send_pps,
                thread.received,
                thread.recv_pps,
                thread.cpu * 100.0
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::report::sample;

    #[test]
    fn the_summary_says_what_was_lost() {
        let text = sample(100.0).to_string();
        assert!(text.contains("relay against turn:127.0.0.1:3478"), "{text}");
        assert!(text.contains("0.1000 %"), "{text}");
    }
}
