//! The verifier's log of a program that the kernel rejects.

use bpf::BpfError;

/// Logs it line by line at level debug: the error's own text has only its last line.
pub(crate) fn log_at_debug(error: &BpfError) {
    let Some(log) = error.verifier_log() else {
        return;
    };
    tracing::debug!(lines = log.lines().count(), %error, "verifier log");
    for line in log.lines() {
        tracing::debug!(verifier = line);
    }
}
