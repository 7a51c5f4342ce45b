//! The report for a terminal.

use std::fmt;

use super::LoadReport;

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        self.counts(f)?;
        if let Some(sip) = &self.sip {
            write!(f, "{sip}")?;
        }
        self.times(f)?;
        self.machinery(f)?;
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
                "  offered   {rate:>12.0}/s   achieved {:.0}/s ({:.2} %), late {}",
                self.send_pps(),
                100.0 * self.send_pps() / rate.max(1e-9),
                total.late,
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
            "  lost      {:>12} ({:.4} %), reordered {}, duplicate {}, corrupt {}",
            total.lost,
            total.loss() * 100.0,
            total.reordered,
            total.duplicates,
            total.corrupt,
        )?;
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
            "  {} in us from the intended time: min {:.1}, mean {:.1}, p50 {:.1}, p90 {:.1}, p99 {:.1}, p99.9 {:.1}, p99.99 {:.1}, max {:.1}; jitter {:.1}",
            self.run.latency_is,
            times.min_us,
            times.mean_us,
            times.p50_us,
            times.p90_us,
            times.p99_us,
            times.p999_us,
            times.p9999_us,
            times.max_us,
            self.jitter_us,
        )?;
        for (name, part) in &self.parts {
            writeln!(
                f,
                "    {name:<8} p50 {:.1}, p90 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1} of {}",
                part.p50_us, part.p90_us, part.p99_us, part.p999_us, part.max_us, part.count,
            )?;
        }
        Ok(())
    }

    fn machinery(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
