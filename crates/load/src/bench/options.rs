//! What a benchmark is asked to do.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::client::HELD_SOCKETS;
use super::error::BenchError;
use super::gates::Gate;
use super::layout;
use super::scenario::{Direction, FlowOrder, Scenario};
use super::side::{Role, Side};

/// How the load is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadKind {
    /// Individual frames below the socket layer, as a network card delivers them. The default, and
    /// the only one whose ratios mean something for a machine that is not its own client.
    Frames,
    /// Datagrams sent by sockets in the client's namespace, one system call for each. For
    /// comparison, and only for what clients send to peers.
    Sockets,
}

/// Options of a benchmark. Start from [`BenchOptions::new`] or [`BenchOptions::quick`].
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// The servers to compare, 1 to [`BenchOptions::MAX_SIDES`]. Ratios are against the first.
    pub sides: Vec<Side>,
    /// The loads, in order. A server that cannot take one is left out there.
    pub scenarios: Vec<Scenario>,
    /// How often each server is started afresh and measured in everything, at least 1. Below 6 the
    /// spread says little.
    pub rounds: u32,
    /// Processor of the generator, the counters and this process.
    pub generator_cpu: usize,
    /// Processor of the server under test and of its network interfaces.
    pub server_cpu: usize,
    /// Runs servers and generator before every ordinary task on their processors (SCHED_RR), for
    /// machines that have other work. It costs a few percent at saturation, because the kernel
    /// keeps a share for those others.
    pub preferred: bool,
    /// Length of one step of the search for the best goodput; the cost is measured for twice as
    /// long.
    pub step: Duration,
    /// How long a server must hold a rate for it to be the best goodput. At most 1 % may be lost, and the goodput must
    /// be at least 90 % of the rate.
    pub hold: Duration,
    /// How the load is made.
    pub load: LoadKind,
    /// Gives the measured network IPv6 addresses instead of IPv4 ones, for the rest of this process. Not for SIP, and
    /// not for [`Sources::Spoofed`](super::Sources).
    pub ipv6: bool,
    /// The gates for [`Role::Gated`](super::Role) sides in every round of every scenario. A goodput below its gate is
    /// measured once more, together with the floor. `None`: no gates.
    pub gate: Option<Gate>,
    /// The command line to put in the report.
    pub argv: Vec<String>,
    /// Set it to end the benchmark after the current measurement, with a report of what there is.
    pub stop: Arc<AtomicBool>,
    /// Told what is going on, one line at a time.
    pub progress: fn(&str),
}

impl BenchOptions {
    /// Most servers in one benchmark: their networks exist side by side.
    pub const MAX_SIDES: usize = 10;

    /// Six rounds of the standard scenarios on processors 0 (generator) and 1 (server).
    pub fn new(sides: Vec<Side>) -> BenchOptions {
        BenchOptions {
            sides,
            scenarios: Scenario::standard(),
            rounds: 6,
            generator_cpu: 0,
            server_cpu: 1,
            preferred: false,
            step: Duration::from_millis(250),
            hold: Duration::from_secs(2),
            load: LoadKind::Frames,
            ipv6: false,
            gate: None,
            argv: Vec::new(),
            stop: Arc::default(),
            progress: |_| (),
        }
    }

    /// Two rounds of the quick scenarios with short steps, under three minutes for two servers. Each rate is held for a
    /// quarter of a second. That is enough to notice a fault, but not enough to publish a result. The gates are on.
    pub fn quick(sides: Vec<Side>) -> BenchOptions {
        BenchOptions {
            scenarios: Scenario::quick(),
            rounds: 2,
            step: Duration::from_millis(120),
            hold: Duration::from_millis(250),
            preferred: true,
            gate: Some(Gate::Measured),
            ..BenchOptions::new(sides)
        }
    }

    /// Keeps the scenarios whose names contain one of `patterns` (comma-separated names or parts of
    /// names; `all`).
    ///
    /// # Errors
    /// [`BenchError::UnknownScenario`] for a pattern that matches nothing.
    pub fn select(&mut self, patterns: &str) -> Result<(), BenchError> {
        let wanted: Vec<&str> = patterns.split(',').map(str::trim).collect();
        let matches = |pattern: &str, scenario: &Scenario| {
            pattern == "all" || scenario.to_string().contains(pattern)
        };
        for pattern in &wanted {
            if !self
                .scenarios
                .iter()
                .any(|scenario| matches(pattern, scenario))
            {
                return Err(BenchError::UnknownScenario((*pattern).to_owned()));
            }
        }
        self.scenarios
            .retain(|scenario| wanted.iter().any(|pattern| matches(pattern, scenario)));
        Ok(())
    }

    /// The second processor of a side that is measured on two: an unused one, or else the generator's.
    pub(crate) fn second_cpu(&self, side: &Side) -> Option<usize> {
        let unused = |cpu: &usize| *cpu != self.server_cpu && *cpu != self.generator_cpu;
        let available = ::io::affinity::available().unwrap_or_default();
        side.two_processors
            .then(|| available.into_iter().find(unused))
            .map(|free| free.unwrap_or(self.generator_cpu))
    }

    /// Whether the chosen kind of load can be made for a scenario, in the chosen address family.
    pub(crate) fn can_load(&self, scenario: &Scenario) -> bool {
        let to_peer = matches!(
            scenario,
            Scenario::Relay {
                direction: Direction::ClientToPeer,
                order: FlowOrder::InTurn,
                flows: ..=HELD_SOCKETS,
                ..
            }
        );
        let has_addresses = !self.ipv6 || scenario.allows_ipv6();
        has_addresses && (self.load == LoadKind::Frames || to_peer)
    }

    /// Checks what can be checked before anything is started.
    pub(crate) fn validate(&self) -> Result<(), BenchError> {
        if !(1..=BenchOptions::MAX_SIDES).contains(&self.sides.len()) {
            return Err(BenchError::Sides(self.sides.len()));
        }
        if self.generator_cpu == self.server_cpu {
            return Err(BenchError::SameCpu(self.server_cpu));
        }
        let available = ::io::affinity::available().map_err(|source| BenchError::Network {
            what: "read the processors available",
            source,
        })?;
        for cpu in [self.generator_cpu, self.server_cpu] {
            if !available.contains(&cpu) {
                return Err(BenchError::NoSuchCpu(cpu));
            }
        }
        let has = |role| self.sides.iter().any(|side| side.role == role);
        if self.gate.is_some() && !(has(Role::Gated) && has(Role::Floor)) {
            return Err(BenchError::NothingToCompare);
        }
        let runs = |scenario: &Scenario| {
            self.can_load(scenario) && self.sides.iter().any(|side| side.runs(scenario))
        };
        if !self.scenarios.iter().any(runs) {
            return Err(BenchError::NoScenarios);
        }
        Ok(())
    }
}

impl Side {
    /// Whether this server can run a scenario in the measured network.
    pub fn runs(&self, scenario: &Scenario) -> bool {
        let room = if self.abilities.turn {
            layout::MAX_FLOWS
        } else {
            layout::MAX_STATIC_FLOWS
        };
        self.abilities.allow(scenario) && scenario.flows() <= room
    }
}

#[cfg(test)]
mod tests {
    use super::super::side::{Abilities, Programs};
    use super::*;

    fn floor() -> Side {
        let programs = Programs {
            hairpin: "h".into(),
            coturn: "c".into(),
            kamailio: "k".into(),
            floor: vec!["f".into()],
        };
        Side::parse("floor", &programs).unwrap()
    }

    #[test]
    fn scenarios_are_chosen_by_parts_of_their_names() {
        let mut options = BenchOptions::new(vec![floor()]);
        options.select("binding, relay-1x1-c2p-120B").unwrap();
        let names: Vec<String> = options.scenarios.iter().map(Scenario::to_string).collect();
        assert_eq!(names, ["relay-1x1-c2p-120B", "binding-1", "binding-1000"]);
        assert!(
            matches!(options.select("nosuch"), Err(BenchError::UnknownScenario(name)) if name == "nosuch")
        );
    }

    #[test]
    fn impossible_options_are_refused_before_anything_starts() {
        let mut options = BenchOptions::new(vec![floor()]);
        options.server_cpu = options.generator_cpu;
        assert!(matches!(options.validate(), Err(BenchError::SameCpu(_))));
        options.server_cpu = 4000;
        assert!(matches!(
            options.validate(),
            Err(BenchError::NoSuchCpu(4000))
        ));
        assert!(matches!(
            BenchOptions::new(vec![]).validate(),
            Err(BenchError::Sides(0))
        ));
        let quick = BenchOptions::quick(vec![floor()]);
        assert!(matches!(
            quick.validate(),
            Err(BenchError::NothingToCompare)
        ));
        let stun = Side {
            abilities: Abilities::BINDING,
            ..floor()
        };
        let mut sockets = BenchOptions::new(vec![stun.clone()]);
        sockets.load = LoadKind::Sockets;
        assert!(matches!(sockets.validate(), Err(BenchError::NoScenarios)));
        let mut options = BenchOptions::new(vec![stun]);
        options.select("relay").unwrap();
        assert!(matches!(options.validate(), Err(BenchError::NoScenarios)));
    }
}
