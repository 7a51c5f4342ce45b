//! Registrations of this server at its trunks (RFC 3261 §10.2): by the first worker.

use super::MarkOwner;
use crate::sip::routes::{RegistrationChange, Registrations, Table};
use crate::sip::settings::SipConfig;
use sip::congestion::Class;
use sip::dispatch::{AllowedDestination, OutgoingRequest};
use sip::engine::Mark;
use sip::tu::Transactions;
use sip::{HashKey, Message, Mono};
use std::sync::Arc;

/// The registrations at trunks.
#[derive(Debug)]
pub(super) struct TrunkRegistrations {
    is_registrant: bool,
    routes: Arc<Table>,
    /// `None` before the first call of `handle_timeout`, which has the time.
    all: Option<Registrations>,
    /// The trunks have changed, and `all` still has the earlier ones.
    is_outdated: bool,
    key: HashKey,
    seed: u64,
}

impl TrunkRegistrations {
    /// `is_registrant`: this worker registers. It is the first worker of the process.
    pub(super) fn new(
        is_registrant: bool,
        sip_config: &SipConfig,
        key: HashKey,
        seed: u64,
    ) -> TrunkRegistrations {
        TrunkRegistrations {
            is_registrant,
            routes: Arc::clone(&sip_config.routes),
            all: None,
            is_outdated: false,
            key: key.derive(u64::from_le_bytes(*b"register")),
            seed,
        }
    }

    /// Takes new settings. Registrations that have not changed continue.
    pub(super) fn apply_settings(&mut self, sip_config: &SipConfig) {
        let is_same = {
            let trunks = self.routes.trunks().map(|(trunk, _)| trunk);
            trunks.eq(sip_config.routes.trunks().map(|(trunk, _)| trunk))
        };
        self.routes = Arc::clone(&sip_config.routes);
        self.is_outdated |= !is_same;
    }

    /// Applies the trunks of the last reload. A trunk of the new table has the health of the earlier trunk of the same
    /// name. That trunk may have had another registration, so this sets the state of the registration.
    fn renew(&mut self, now: Mono) {
        if !std::mem::take(&mut self.is_outdated) {
            return;
        }
        let Some(all) = &mut self.all else {
            return;
        };
        all.renew(now, &self.routes);
        for (number, (_, health)) in (0..).zip(self.routes.trunks()) {
            health.set_registered(all.is_registered(number).unwrap_or(false));
        }
    }

    fn has_any(&self) -> bool {
        let mut trunks = self.routes.trunks();
        self.is_registrant && trunks.any(|(trunk, _)| trunk.register.is_some())
    }

    pub(super) fn poll_timeout(&self) -> Option<Mono> {
        match &self.all {
            Some(_) if self.is_outdated => Some(Mono(0)),
            Some(all) => all.poll_timeout(),
            None => self.has_any().then_some(Mono(0)),
        }
    }

    /// Sends the REGISTER requests that are due.
    pub(super) fn handle_timeout(&mut self, transactions: &mut Transactions<'_>) {
        if self.all.is_none() && !self.has_any() {
            return;
        }
        let now = transactions.now.mono;
        self.renew(now);
        self.seed = self.seed.wrapping_add(1 << 40);
        let (routes, key, seed) = (&self.routes, self.key, self.seed);
        let all = self
            .all
            .get_or_insert_with(|| Registrations::new(now, routes, key, seed));
        while let Some(register) = all.poll_request(now) {
            let order = OutgoingRequest {
                target: register.target.as_bytes(),
                pieces: &[register.text.as_bytes()],
                class: Class::Continuing,
                mark: Mark::of(MarkOwner::TrunkRegistrations as u8, register.number.into()),
                reach: AllowedDestination::Anywhere,
                loop_check: None,
                flow: None,
                from: None,
            };
            if let Err(error) = transactions.send(&order) {
                tracing::debug!(%error, trunk = %register.target, "no REGISTER was sent");
                all.failed(now, register.number);
            }
        }
        self.note_changes();
    }

    pub(super) fn response(&mut self, now: Mono, mark: Mark, response: &Message<'_>) {
        if response.status_code().unwrap_or(0) < 200 {
            return;
        }
        self.renew(now);
        if let Some(all) = &mut self.all {
            all.response(now, mark.number() as u32, response);
        }
        self.note_changes();
    }

    pub(super) fn failed(&mut self, now: Mono, mark: Mark) {
        self.renew(now);
        if let Some(all) = &mut self.all {
            all.failed(now, mark.number() as u32);
        }
        self.note_changes();
    }

    fn note_changes(&mut self) {
        while let Some(change) = self.all.as_mut().and_then(Registrations::poll_change) {
            let RegistrationChange {
                trunk,
                is_registered,
                code,
            } = change;
            let Some((trunk, health)) = self.routes.trunk(trunk) else {
                continue;
            };
            health.set_registered(is_registered);
            let trunk = &trunk.name;
            match is_registered {
                true => tracing::info!(trunk, "registered at the trunk"),
                false => tracing::warn!(
                    trunk,
                    code,
                    "not registered at the trunk; check its user, password and realm, and whether it responds"
                ),
            }
        }
    }
}
