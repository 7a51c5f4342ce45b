//! Routes and trunks for the policy of the tests.

use std::time::Duration;

use sip::Method;
use sip::Mono;
use sip::Now;
use sip::flow::Flow;
use sip::uri::SipUri;
use sip_server::Aor;
use sip_server::calls::Ticket;
use sip_server::proxy::{HopFull, IsUser, NodeHop, Routing as _, Trunks};
use sip_server::routes::{Call, Credentials, Decision, DivertReason, Hop, Outcome, Table};

use crate::policy::{DOMAIN, TestPolicy};

impl Trunks for TestPolicy {
    fn has_routes(&self) -> bool {
        self.table.has_routes()
    }

    fn is_user(&mut self, _now: Now, uri: &SipUri<'_>, _flow: &Flow) -> IsUser {
        let user = String::from_utf8_lossy(uri.user.unwrap_or_default());
        let aor = format!("{user}@{DOMAIN}");
        match self.bindings.contains_key(aor.as_bytes()) {
            true => IsUser::Yes,
            false => self.other_users,
        }
    }

    fn has_relays(&self) -> bool {
        self.table.has_relays()
    }

    fn relays_to(&self, hop: &Hop) -> bool {
        let trunk = self.table.trunk_of(hop);
        trunk.is_some_and(|(trunk, _)| trunk.relays_media)
    }

    fn relays_from(&self, flow: &Flow) -> bool {
        let trunk = self.trunk_of(flow);
        let trunk = trunk.and_then(|number| self.table.trunk(number));
        trunk.is_some_and(|(trunk, _)| trunk.relays_media)
    }

    fn has_forward(&self, aor: &Aor) -> bool {
        self.forwards.of(aor).is_some()
    }

    fn forward(&self, aor: &Aor, missed: DivertReason) -> Option<&[u8]> {
        Some(self.forwards.of(aor)?.to(missed)?.as_bytes())
    }

    fn own_hop(&self) -> Option<NodeHop> {
        self.own_hop.clone()
    }

    fn forward_after(&self, aor: &Aor) -> Option<Duration> {
        let forward = self.forwards.of(aor)?;
        forward.no_answer.as_ref()?;
        Some(forward.ring_time)
    }

    fn trunk_of(&self, flow: &Flow) -> Option<u16> {
        let ip = flow.remote.ip();
        let mut trunks = (0..).zip(self.table.trunks());
        let is_at = |(_, (trunk, _)): &(u16, (&sip_server::routes::Trunk, _))| {
            trunk.to.iter().any(|to| to.ip() == Some(ip))
        };
        trunks.find(is_at).map(|(number, _)| number)
    }

    fn source_name(&self, flow: &Flow) -> &[u8] {
        let trunk = self.trunk_of(flow);
        let trunk = trunk.and_then(|number| self.table.trunk(number));
        trunk.map_or(b"", |(trunk, _)| trunk.name.as_bytes())
    }

    fn trunk_name(&self, hop: &Hop) -> &[u8] {
        let trunk = self.table.trunk_of(hop);
        trunk.map_or(b"", |(trunk, _)| trunk.name.as_bytes())
    }

    fn draw(&mut self) -> u64 {
        self.draws += 1;
        self.draws
    }

    fn route(&mut self, now: Now, call: &Call<'_>) -> Decision {
        self.table.decide(now.mono, call)
    }

    fn route_inputs(&self, message: &sip::Message<'_>, flow: &Flow, to: &mut Vec<u8>) {
        let sender = (flow.remote.ip(), self.trunk_of(flow));
        self.inputs_asked.set(self.inputs_asked.get() + 1);
        self.table.inputs(message, sender, |uri| self.aor(uri), to);
    }

    fn admit_hop(
        &mut self,
        now: Mono,
        hop: &Hop,
        is_invite: bool,
    ) -> Result<Option<Ticket>, HopFull> {
        let Some((trunk, health)) = self.table.trunk_of(hop) else {
            return Ok(None);
        };
        let ticket = match is_invite && trunk.max_calls > 0 {
            true => Some(health.begin_call(trunk.max_calls).ok_or(HopFull)?),
            false => None,
        };
        match health.admit(trunk.calls_per_second, now) {
            true => Ok(ticket),
            false => Err(HopFull),
        }
    }

    fn responded(&mut self, hop: &Hop, method: Method<'_>, code: u16) {
        if let Some((_, health)) = self.table.trunk_of(hop) {
            health.responded(method, code);
        }
    }

    fn concluded(&mut self, now: Mono, hop: &Hop, outcome: Outcome) {
        if let Some((_, health)) = self.table.trunk_of(hop) {
            health.concluded(hop.hop, now, outcome);
        }
    }

    fn credentials(&self, hop: &Hop) -> Option<&Credentials> {
        self.table.trunk_of(hop)?;
        self.credentials.as_ref()
    }

    fn moved_on(&mut self, hop: &Hop) {
        if let Some((_, health)) = self.table.trunk_of(hop) {
            health.moved_on();
        }
    }

    fn rung_and_failed(&mut self, hop: &Hop) {
        if let Some((_, health)) = self.table.trunk_of(hop) {
            health.rung_and_failed();
        }
    }
}

impl TestPolicy {
    pub(crate) fn set_routes(
        &mut self,
        routes: Vec<sip_server::routes::Route>,
        trunks: Vec<sip_server::routes::Trunk>,
    ) {
        self.table = Table::new(routes, trunks, Some(&self.table)).unwrap();
    }
}
