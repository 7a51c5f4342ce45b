//! OPTIONS to the addresses of trunks (RFC 3261 §11): by the first worker, for all of them.

use super::MarkOwner;
use crate::sip::routes::{Outcome, Prober, Table};
use crate::sip::settings::SipConfig;
use sip::congestion::Class;
use sip::dispatch::{AllowedDestination, Failure, OutgoingRequest};
use sip::engine::Mark;
use sip::tu::Transactions;
use sip::{HashKey, Message, Mono};
use std::sync::Arc;

/// The probes of the trunks.
#[derive(Debug)]
pub(super) struct Probes {
    is_prober: bool,
    routes: Arc<Table>,
    /// There is none before the time is known.
    prober: Option<Prober>,
    /// The host in From and Call-ID: that of the first domain.
    host: String,
    seed: u64,
}

impl Probes {
    /// `is_prober`: this worker probes. It is the first worker of the process.
    pub(super) fn new(is_prober: bool, sip_config: &SipConfig, seed: u64) -> Probes {
        let mut probes = Probes {
            is_prober,
            routes: Arc::default(),
            prober: None,
            host: String::new(),
            seed,
        };
        probes.apply_settings(sip_config);
        probes
    }

    /// Applies new settings. Drops the probes in progress.
    pub(super) fn apply_settings(&mut self, sip_config: &SipConfig) {
        self.routes = Arc::clone(&sip_config.routes);
        self.prober = None;
        let domain = sip_config.settings.domains.first();
        self.host = domain.map_or("anonymous.invalid", |it| &it.name).to_owned();
    }

    pub(super) fn poll_timeout(&self) -> Option<Mono> {
        match &self.prober {
            Some(prober) => prober.poll_timeout(),
            None if self.is_prober && self.routes.trunks().next().is_some() => Some(Mono(0)),
            None => None,
        }
    }

    /// Sends the probes that are due.
    pub(super) fn handle_timeout(&mut self, transactions: &mut Transactions<'_>) {
        if !self.is_prober {
            return;
        }
        let now = transactions.now.mono;
        if self.prober.is_none() {
            self.seed = self.seed.wrapping_add(1 << 32);
            self.prober = Some(Prober::new(now, &self.routes, self.seed));
        }
        while let Some(probe) = self
            .prober
            .as_mut()
            .and_then(|prober| prober.poll_probe(now, &self.routes))
        {
            let trunk = self.routes.trunk(probe.trunk);
            let to = trunk.and_then(|(trunk, _)| trunk.to.get(usize::from(probe.hop)));
            let Some(to) = to.map(|to| to.as_str().to_owned()) else {
                continue;
            };
            let request = self.request(&to, probe.number);
            let order = OutgoingRequest {
                target: to.as_bytes(),
                pieces: &[request.as_bytes()],
                class: Class::Continuing,
                mark: Mark::of(MarkOwner::Probes as u8, probe.number.into()),
                reach: AllowedDestination::Anywhere,
                loop_check: None,
                flow: None,
                from: None,
            };
            if let Err(error) = transactions.send(&order) {
                tracing::debug!(%error, trunk = %to, "no probe was sent");
            }
        }
        self.log_changes();
    }

    fn request(&self, to: &str, number: u32) -> String {
        let host = &self.host;
        let key = HashKey::new(*b"hairpin probes 1").derive(self.seed);
        let id = key.mac(&number.to_be_bytes());
        format!(
            "OPTIONS {to} SIP/2.0\r\nFrom: <sip:{host}>;tag={:08x}\r\nTo: <{to}>\r\nCall-ID: {id:016x}@{host}\r\n\
             CSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\nAccept: application/sdp\r\nContent-Length: 0\r\n\r\n",
            id as u32
        )
    }

    pub(super) fn response(&mut self, now: Mono, mark: Mark, response: &Message<'_>) {
        let code = response.status_code().unwrap_or(0);
        if code >= 200 {
            let retry_after = response.retry_after().ok().flatten();
            let seconds = retry_after.map(|after| after.seconds);
            self.concluded(now, mark, Outcome::Response(code, seconds));
        }
    }

    pub(super) fn failed(&mut self, now: Mono, mark: Mark, failure: Failure) {
        let outcome = match failure {
            Failure::TimedOut => Outcome::Silent,
            Failure::AskedToWait | Failure::Refused(_) | Failure::Cancelled => {
                if let Some(prober) = &mut self.prober {
                    prober.note_not_sent(now, mark.number() as u32);
                }
                return;
            }
            _ => Outcome::NotSent,
        };
        self.concluded(now, mark, outcome);
    }

    fn concluded(&mut self, now: Mono, mark: Mark, outcome: Outcome) {
        let number = mark.number() as u32;
        let Some(prober) = &mut self.prober else {
            return;
        };
        prober.concluded(now, &self.routes, number, outcome);
        self.log_changes();
    }

    fn log_changes(&mut self) {
        let Some(prober) = &mut self.prober else {
            return;
        };
        while let Some(change) = prober.poll_change() {
            let Some((trunk, _)) = self.routes.trunk(change.trunk) else {
                continue;
            };
            let to = trunk.to.get(usize::from(change.hop));
            let (trunk, to) = (&trunk.name, to.map_or("", |to| to.as_str()));
            match change.is_available {
                true => tracing::info!(trunk, to, "trunk available"),
                false => tracing::warn!(
                    trunk,
                    to,
                    "trunk unavailable: it does not respond to OPTIONS, or responds with 503"
                ),
            }
        }
    }
}
