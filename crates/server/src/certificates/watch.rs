//! The thread that reads changed certificate files, and warns before certificates expire.

use super::{CertificateError, CertificateInfo, Certificates};
use crate::error::StartError;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Time between two warnings about expiry.
const WARNING_INTERVAL: Duration = Duration::from_secs(86_400);

/// Warnings begin this number of days before expiry. ACME clients renew certificates of 90 days 30 days before, so a
/// warning means a failure.
const WARNED_DAYS: i64 = 21;

/// A handle of the thread. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct CertificateWatch {
    running: Option<(Sender<()>, JoinHandle<()>)>,
}

impl CertificateWatch {
    /// Starts the thread. It warns also about certificates that come from memory.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(certificates: Certificates) -> Result<CertificateWatch, StartError> {
        let (end, ended) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("hairpin-certs".to_owned())
            .spawn(move || {
                let mut warned: Option<Instant> = None;
                loop {
                    if warned.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
                        warned = Some(Instant::now());
                        certificates.info().iter().for_each(warn);
                    }
                    match ended.recv_timeout(CHECK_INTERVAL) {
                        Err(RecvTimeoutError::Timeout) => {}
                        _ => return,
                    }
                    if certificates.has_files() {
                        certificates.reload();
                    }
                }
            })
            .map_err(StartError::Thread)?;
        Ok(CertificateWatch {
            running: Some((end, thread)),
        })
    }
}

impl Drop for CertificateWatch {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.running.take() {
            drop(end);
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// Logs the result of reading one changed pair.
pub(super) fn log_outcome(outcome: &Result<CertificateInfo, CertificateError>) {
    match outcome {
        Ok(info) => tracing::info!(
            file = info.place,
            name = info.name(),
            days_left = info.days_left(),
            sha256 = info.sha256,
            "certificate replaced"
        ),
        Err(error) => {
            tracing::error!(%error, "the new certificate cannot be used; the old one stays");
        }
    }
}

fn warn(info: &CertificateInfo) {
    let (name, days_left) = (info.name(), info.days_left());
    if days_left < 0 {
        tracing::error!(name, file = info.place, "the certificate has expired");
    } else if !info.has_begun() {
        tracing::error!(
            name,
            file = info.place,
            "the certificate is not valid yet: check the clock"
        );
    } else if days_left <= WARNED_DAYS {
        tracing::warn!(
            name,
            file = info.place,
            days_left,
            "the certificate expires soon"
        );
    }
}
