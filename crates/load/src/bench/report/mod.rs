//! What a benchmark found: every raw measurement, the summaries over the rounds, and three ways to
//! show them.

mod gate;
mod html;
mod overload;
mod table;

use std::fmt;
use std::time::Instant;

use serde::Serialize;

use super::error::SideError;
use super::gates::Gate;
use super::options::{BenchOptions, LoadKind};
use super::packets::Packets;
use super::scenario::Scenario;
use super::side::Role;
use super::sip::Overload;
use super::spread::Spread;
use super::stats::{Summary, ratios};
use super::upkeep::{Churn, Memory};
pub use overload::{OverloadRow, OverloadStep};

/// A finished (or stopped) benchmark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Version of this structure as JSON; see [`Report::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The command line.
    pub argv: Vec<String>,
    /// Version of hairpin that measured.
    pub hairpin: String,
    /// Release of the running kernel.
    pub kernel: String,
    /// Model of the processor.
    pub processor: String,
    /// Processor of generator and counters.
    pub generator_cpu: usize,
    /// Processor of the servers.
    pub server_cpu: usize,
    /// How the load was made.
    pub load: LoadKind,
    /// Whether the network had IPv6 addresses.
    pub ipv6: bool,
    /// Whether servers and generator ran before ordinary tasks.
    pub preferred: bool,
    /// Length of a step of the search, in milliseconds.
    pub step_ms: u64,
    /// For how long a rate had to be held, in milliseconds.
    pub hold_ms: u64,
    /// Constants of the harness that may favour some servers, with their values.
    pub fairness: Vec<(String, String)>,
    /// Rounds asked for.
    pub rounds: u32,
    /// The gates, if there are any.
    pub gate: Option<Gate>,
    /// Whether it was stopped before everything was measured.
    pub stopped: bool,
    /// When it started, in seconds since 1970-01-01T00:00:00Z.
    pub started_unix_s: u64,
    /// How long it took, in seconds.
    pub elapsed_s: f64,
    /// The servers; ratios are against the first.
    pub sides: Vec<SideReport>,
    /// The scenarios, in order.
    pub scenarios: Vec<Scenario>,
    /// Every measurement, in the order they were made.
    pub cells: Vec<Cell>,
}

/// A server, as the report names it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SideReport {
    /// Its name.
    pub name: String,
    /// Its command line, for 0 flows where it names them.
    pub command: Vec<String>,
    /// What it says its version is.
    pub version: String,
    /// How deliveries were counted.
    pub sink: String,
    /// Its role in the gates.
    pub role: Role,
    /// Processors that it ran on. If the generator's is among them, the two were in each other's way.
    pub processors: Vec<usize>,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// What was measured, ...
    pub scenario: Scenario,
    /// ... of which server (index into [`Report::sides`]), ...
    pub side: usize,
    /// ... in which round, from 0.
    pub round: u32,
    /// Whether it takes the place of a measurement that fell below the gate.
    pub repeated: bool,
    /// The result.
    pub outcome: Outcome,
}

/// A result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Outcome {
    /// Of a load of datagrams.
    Packets(Box<Packets>),
    /// Of several times the load that a SIP server holds.
    Overload(Box<Overload>),
    /// Of allocation churn.
    Churn(Churn),
    /// Of spreading allocations over workers.
    Spread(Spread),
    /// Of filling a server with allocations.
    Memory(Memory),
    /// It could not be measured.
    Failed {
        /// Why.
        reason: String,
        /// Because it changed a datagram, or delivered it elsewhere.
        damaged: bool,
    },
}

/// The two numbers that a scenario is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Goodput or cycles per second (more is better). In an overload: the least share of the best goodput that is left
    /// (more is better). For memory: user and kernel bytes per allocation (less is better).
    Main,
    /// Processor time per datagram or cycle in nanoseconds. In an overload: the longest p99 in nanoseconds. For memory:
    /// the user bytes among them (less is better).
    Cost,
}

/// One server in one scenario, over all rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The scenario.
    pub scenario: Scenario,
    /// Its name.
    pub name: String,
    /// Index into [`Report::sides`].
    pub side: usize,
    /// [`Measure::Main`].
    pub main: Option<Summary>,
    /// [`Measure::Cost`].
    pub cost: Option<Summary>,
    /// How many times better than the first server in the same round.
    pub main_ratio: Option<Summary>,
    /// The same for the cost.
    pub cost_ratio: Option<Summary>,
    /// What became of the datagrams; `None` where there are none.
    pub delivery: Option<Delivery>,
    /// What a SIP server did in an overload.
    pub overload: Option<OverloadRow>,
    /// What went wrong, if anything.
    pub failures: Vec<String>,
    /// What makes its figures mean less than they seem: the generator gave out first, or shared a processor with it.
    pub notes: Vec<String>,
}

/// What became of the datagrams of one server in one scenario, over all rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Delivery {
    /// Lost at the best goodput, as a share.
    pub loss: Summary,
    /// Lost at 60 % of that.
    pub loss_at_60: Summary,
    /// Arrived again, in all points.
    pub duplicated: u64,
    /// Arrived after a later one of their flow, in all points.
    pub reordered: u64,
    /// Arrived changed or in the wrong place, in all points.
    pub wrong: u64,
    /// The highest goodput that was held in two rounds.
    pub held_twice: Option<f64>,
    /// Goodput at twice the load of the best, as a share of the best.
    pub at_double: Summary,
    /// How many times the best was offered there: less than 2 if the generator could make no more.
    pub offered_at_double: Summary,
    /// Processor time for each datagram at 30 % of the best, in nanoseconds.
    pub cost_at_30: Summary,
    /// The same at 90 %.
    pub cost_at_90: Summary,
    /// The same at the best goodput.
    pub cost_at_best: Summary,
}

impl Outcome {
    pub(crate) fn failed(error: &SideError) -> Outcome {
        Outcome::Failed {
            reason: error.to_string(),
            damaged: error.is_damage(),
        }
    }

    /// The number of this measure; `None` for a failure, and if nothing is left in an overload.
    pub fn value(&self, measure: Measure) -> Option<f64> {
        match (self, measure) {
            (Outcome::Packets(packets), Measure::Main) => Some(packets.best.delivered),
            (Outcome::Packets(packets), Measure::Cost) => Some(packets.at_60.cost_ns),
            (Outcome::Overload(overload), Measure::Main) => overload.kept(),
            (Outcome::Overload(overload), Measure::Cost) => overload.slowest_ns(),
            (Outcome::Churn(churn), Measure::Main) => Some(churn.rate),
            (Outcome::Churn(churn), Measure::Cost) => Some(churn.cost_ns),
            (Outcome::Memory(memory), Measure::Main) => Some(memory.user + memory.kernel),
            (Outcome::Memory(memory), Measure::Cost) => Some(memory.user),
            (Outcome::Spread(spread), Measure::Main) => Some(spread.apart.into()),
            (Outcome::Spread(spread), Measure::Cost) => Some(spread.busier),
            (Outcome::Failed { .. }, _) => None,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Packets(packets) => write!(
                f,
                "{:.0}k/s held ({:.0} ns at {:.0} % of a core), {:.0} ns at 60 %, {:.0} % of it at {:.1}x the load",
                packets.best.delivered / 1e3,
                packets.best.cost_ns,
                packets.best.busy * 100.0,
                packets.at_60.cost_ns,
                packets.kept_at_double() * 100.0,
                packets.offered_at_double()
            ),
            Outcome::Overload(overload) => write!(
                f,
                "{:.1}k/s held, {:.0} % of it in an overload, p99 at most {:.0} ms",
                overload.best.delivered / 1e3,
                overload.kept().unwrap_or(0.0) * 100.0,
                overload.slowest_ns().unwrap_or(f64::INFINITY) / 1e6
            ),
            Outcome::Churn(churn) => write!(
                f,
                "{:.1}k cycles/s, {:.1} us each, {} errors",
                churn.rate / 1e3,
                churn.cost_ns / 1e3,
                churn.errors
            ),
            Outcome::Memory(memory) => {
                write!(
                    f,
                    "{:.2} kB user, {:.2} kB kernel each",
                    memory.user / 1e3,
                    memory.kernel / 1e3
                )
            }
            Outcome::Spread(spread) => write!(
                f,
                "at most {} allocations apart, and the busier worker had {:.3} at the end",
                spread.apart, spread.busier
            ),
            Outcome::Failed { reason, .. } => write!(f, "failed: {reason}"),
        }
    }
}

impl Measure {
    /// Whether a larger value is the better one.
    pub fn more_is_better(self, scenario: &Scenario) -> bool {
        self == Measure::Main
            && !matches!(
                scenario,
                Scenario::Memory { .. } | Scenario::SipMemory { .. } | Scenario::Spread { .. }
            )
    }
}

impl Report {
    /// Raised when a field of the JSON changes its meaning or goes; new fields may come without.
    pub const SCHEMA_VERSION: u32 = 2;

    /// The report as JSON in one line: everything, with the summaries.
    pub fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct JsonReport<'a> {
            #[serde(flatten)]
            report: &'a Report,
            summary: Vec<Row>,
        }
        // Plain numbers, strings and lists always serialise.
        serde_json::to_string(&JsonReport {
            report: self,
            summary: self.rows(),
        })
        .unwrap_or_default()
    }

    /// Every server in every scenario, in order; what a server cannot do is left out.
    pub fn rows(&self) -> Vec<Row> {
        let pairs = self
            .scenarios
            .iter()
            .flat_map(|scenario| (0..self.sides.len()).map(move |side| (scenario, side)));
        pairs
            .filter_map(|(scenario, side)| self.row(scenario, side))
            .collect()
    }

    /// One server in one scenario; `None` if it did not take part.
    pub fn row(&self, scenario: &Scenario, side: usize) -> Option<Row> {
        let failures: Vec<String> = self
            .cells(scenario, side)
            .filter_map(|cell| match &cell.outcome {
                Outcome::Failed { reason, .. } => {
                    Some(format!("round {}: {reason}", cell.round + 1))
                }
                _ => None,
            })
            .collect();
        self.cells(scenario, side).next()?;
        let summary = |measure| {
            Summary::of(
                self.series(scenario, side, measure)
                    .into_iter()
                    .map(|(_, value)| value),
            )
        };
        Some(Row {
            scenario: *scenario,
            name: scenario.to_string(),
            side,
            main: summary(Measure::Main),
            cost: summary(Measure::Cost),
            main_ratio: Summary::of(self.ratios(scenario, side, Measure::Main)),
            cost_ratio: Summary::of(self.ratios(scenario, side, Measure::Cost)),
            delivery: self.delivery(scenario, side),
            overload: self.overload(scenario, side),
            failures,
            notes: self.notes(scenario, side),
        })
    }

    /// The constants that may favour some servers, in one line.
    fn fairness_line(&self) -> String {
        let all = self.fairness.iter();
        let all: Vec<String> = all.map(|(name, value)| format!("{name} {value}")).collect();
        all.join("; ")
    }

    /// The sides that changed, misdirected or repeated datagrams, and where. Figures of such a side do not measure
    /// relaying.
    pub fn damage(&self) -> Vec<String> {
        let told = |cell: &Cell| {
            let what = match &cell.outcome {
                Outcome::Packets(packets) if packets.wrong + packets.duplicated > 0 => format!(
                    "{} datagrams arrived changed or in the wrong place, {} arrived again",
                    packets.wrong, packets.duplicated
                ),
                Outcome::Overload(overload) if overload.wrong + overload.duplicated > 0 => {
                    format!(
                        "{} messages arrived changed or unasked, {} arrived again",
                        overload.wrong, overload.duplicated
                    )
                }
                Outcome::Churn(churn) if churn.wrong > 0 => format!(
                    "{} messages were malformed, not to be trusted, or not from the server",
                    churn.wrong
                ),
                Outcome::Failed {
                    reason,
                    damaged: true,
                } => reason.clone(),
                _ => return None,
            };
            let name = &self.sides[cell.side].name;
            let round = cell.round + 1;
            Some(format!(
                "{name} in round {round}, {}: {what}",
                cell.scenario
            ))
        };
        self.cells.iter().filter_map(told).collect()
    }

    fn delivery(&self, scenario: &Scenario, side: usize) -> Option<Delivery> {
        let all: Vec<&Packets> = self
            .cells(scenario, side)
            .filter_map(|cell| match &cell.outcome {
                Outcome::Packets(packets) => Some(&**packets),
                _ => None,
            })
            .collect();
        let summary =
            |value: fn(&Packets) -> f64| Summary::of(all.iter().map(|packets| value(packets)));
        let sum = |value: fn(&Packets) -> u64| all.iter().map(|packets| value(packets)).sum();
        // A server that holds a rate also holds every lower one, so the second highest was held in two rounds.
        let mut held: Vec<f64> = all.iter().map(|packets| packets.best.delivered).collect();
        held.sort_by(|a, b| b.total_cmp(a));
        Some(Delivery {
            loss: summary(|packets| packets.best.loss)?,
            loss_at_60: summary(|packets| packets.at_60.loss)?,
            duplicated: sum(|packets| packets.duplicated),
            reordered: sum(|packets| packets.reordered),
            wrong: sum(|packets| packets.wrong),
            held_twice: held.get(1).copied(),
            at_double: summary(Packets::kept_at_double)?,
            offered_at_double: summary(Packets::offered_at_double)?,
            cost_at_30: summary(|packets| packets.at_30.cost_ns)?,
            cost_at_90: summary(|packets| packets.at_90.cost_ns)?,
            cost_at_best: summary(|packets| packets.best.cost_ns)?,
        })
    }

    fn notes(&self, scenario: &Scenario, side: usize) -> Vec<String> {
        let mut notes = Vec::new();
        let limited = |cell: &&Cell| match &cell.outcome {
            Outcome::Packets(packets) => packets.generator_was_the_limit(),
            Outcome::Overload(overload) => overload.generator_was_the_limit(),
            _ => false,
        };
        let count = self.cells(scenario, side).filter(limited).count();
        if count > 0 {
            notes.push(format!(
                "generator or counter gave out before the server in {count} of {} rounds",
                self.cells(scenario, side).count()
            ));
        }
        if self.sides[side].processors.contains(&self.generator_cpu) {
            notes.push("it shared a processor with the generator".to_owned());
        }
        let errors: u64 = self
            .cells(scenario, side)
            .filter_map(|cell| match &cell.outcome {
                Outcome::Churn(churn) => Some(churn.errors),
                _ => None,
            })
            .sum();
        if errors > 0 {
            notes.push(format!("{errors} cycles failed"));
        }
        notes
    }

    /// How many times better than the first server a server was, round by round.
    pub fn ratios(&self, scenario: &Scenario, side: usize, measure: Measure) -> Vec<f64> {
        let (own, first) = (
            self.series(scenario, side, measure),
            self.series(scenario, 0, measure),
        );
        if measure.more_is_better(scenario) {
            ratios(&own, &first)
        } else {
            ratios(&first, &own)
        }
    }

    /// One number of a server in a scenario as `(round, value)`, without the rounds that failed.
    pub fn series(&self, scenario: &Scenario, side: usize, measure: Measure) -> Vec<(u32, f64)> {
        self.cells(scenario, side)
            .filter_map(|cell| Some((cell.round, cell.outcome.value(measure)?)))
            .collect()
    }

    pub(crate) fn cells(&self, scenario: &Scenario, side: usize) -> impl Iterator<Item = &Cell> {
        let scenario = *scenario;
        self.cells
            .iter()
            .filter(move |cell| cell.scenario == scenario && cell.side == side)
    }

    /// The best goodput of the latest round, as a place to begin the next search.
    pub(crate) fn last_rate(&self, scenario: &Scenario, side: usize) -> Option<f64> {
        let best = |cell: &Cell| match &cell.outcome {
            Outcome::Overload(overload) => Some(overload.best.delivered),
            other => other.value(Measure::Main),
        };
        self.cells(scenario, side).filter_map(best).last()
    }

    /// Tells the caller what is going on, with the time since the start.
    pub(crate) fn say(&self, options: &BenchOptions, started: Instant, what: &str) {
        (options.progress)(&format!(
            "{:6.1} s  {what}",
            started.elapsed().as_secs_f64()
        ));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::packets::Point;
    use super::super::scenario::{Direction, FlowOrder};
    use super::*;

    pub(crate) const RELAY: Scenario = Scenario::Relay {
        flows: 64,
        train: 1,
        order: FlowOrder::InTurn,
        direction: Direction::ClientToPeer,
        payload: 120,
    };

    fn packets(delivered: f64, cost_ns: f64) -> Outcome {
        let best = Point {
            delivered,
            offered: delivered * 1.1,
            cost_ns,
            verified: 9,
            ..Point::default()
        };
        let ramp = vec![
            (delivered / 2.0, delivered / 2.0),
            (delivered * 1.1, delivered),
        ];
        let at_double = Point {
            offered: best.offered * 2.0,
            delivered: delivered / 2.0,
            busy: 1.0,
            ..Point::default()
        };
        Outcome::Packets(Box::new(Packets {
            best,
            at_30: best,
            at_60: best,
            at_90: best,
            at_double,
            system_calls: None,
            wrong: 0,
            duplicated: 0,
            reordered: 0,
            ramp,
        }))
    }

    /// Two rounds: hairpin, the floor (10 % faster, then as fast), and a server that failed once.
    pub(crate) fn report() -> Report {
        let side = |name: &str, role| SideReport {
            name: name.to_owned(),
            command: vec![format!("/bin/{name}"), "<serve>".to_owned()],
            version: "1.0 & more".to_owned(),
            sink: "tc ingress".to_owned(),
            role,
            processors: vec![1],
        };
        let cell = |side, round, outcome| Cell {
            scenario: RELAY,
            side,
            round,
            repeated: false,
            outcome,
        };
        let failed = Outcome::Failed {
            reason: "it <died>".to_owned(),
            damaged: false,
        };
        Report {
            schema_version: Report::SCHEMA_VERSION,
            argv: vec!["hairpin".to_owned(), "bench".to_owned()],
            hairpin: "0.0.0".to_owned(),
            kernel: "6.18".to_owned(),
            processor: "a processor".to_owned(),
            generator_cpu: 0,
            server_cpu: 1,
            load: LoadKind::Frames,
            ipv6: false,
            preferred: false,
            step_ms: 250,
            fairness: vec![("burst".to_owned(), "32 < 33".to_owned())],
            hold_ms: 2000,
            rounds: 2,
            gate: Some(Gate::Share(0.5)),
            stopped: false,
            started_unix_s: 1_700_000_000,
            elapsed_s: 12.5,
            sides: vec![
                side("hairpin", Role::Gated),
                side("floor", Role::Floor),
                side("other", Role::Other),
            ],
            scenarios: vec![RELAY, Scenario::Memory { allocations: 1000 }],
            cells: vec![
                cell(0, 0, packets(300e3, 3000.0)),
                cell(1, 0, packets(330e3, 2700.0)),
                cell(2, 0, failed),
                cell(2, 1, packets(150e3, 6000.0)),
                cell(1, 1, packets(320e3, 2800.0)),
                cell(0, 1, packets(320e3, 2800.0)),
            ],
        }
    }

    #[test]
    fn ratios_are_taken_within_a_round_and_say_how_much_better() {
        let report = report();
        let floor = report.row(&RELAY, 1).unwrap();
        assert_eq!(floor.main.map(|main| main.median), Some(325e3));
        let ratio = floor.main_ratio.unwrap();
        assert!((ratio.max - 1.1).abs() < 1e-9 && (ratio.min - 1.0).abs() < 1e-9);
        let cost = floor.cost_ratio.unwrap();
        assert!(
            (cost.max - 3000.0 / 2700.0).abs() < 1e-9,
            "cheaper is better"
        );
        let other = report.row(&RELAY, 2).unwrap();
        assert_eq!(other.main_ratio.map(|ratio| ratio.rounds), Some(1));
        assert_eq!(other.failures, ["round 1: it <died>"]);
        assert_eq!(
            report.row(&report.scenarios[1], 0),
            None,
            "nobody took part"
        );
        assert_eq!(report.rows().len(), 3);
    }

    #[test]
    fn memory_is_better_when_there_is_less() {
        let memory = |user| {
            Outcome::Memory(Memory {
                user,
                kernel: user * 2.0,
                idle: 0.0,
                rate: 1.0,
            })
        };
        let scenario = Scenario::Memory { allocations: 1000 };
        let mut report = report();
        report.cells = [(0, 1000.0), (1, 4000.0)]
            .map(|(side, user)| Cell {
                scenario,
                side,
                round: 0,
                repeated: false,
                outcome: memory(user),
            })
            .into();
        let row = report.row(&scenario, 1).unwrap();
        assert_eq!(row.main_ratio.map(|ratio| ratio.median), Some(0.25));
        assert_eq!(row.cost_ratio.map(|ratio| ratio.median), Some(0.25));
    }

    #[test]
    fn the_json_has_the_raw_rounds_and_the_summary() {
        let json: serde_json::Value = serde_json::from_str(&report().to_json()).unwrap();
        assert_eq!(json["schema_version"], 2);
        assert_eq!(json["fairness"][0][1], "32 < 33");
        assert_eq!(json["summary"][1]["delivery"]["held_twice"], 320e3);
        assert_eq!(json["summary"][1]["delivery"]["at_double"]["median"], 0.5);
        assert_eq!(json["argv"][1], "bench");
        assert_eq!(json["cells"][0]["outcome"]["outcome"], "packets");
        assert_eq!(json["cells"][0]["outcome"]["best"]["delivered"], 300e3);
        assert_eq!(json["cells"][0]["scenario"]["direction"], "client-to-peer");
        assert_eq!(json["summary"][1]["main"]["median"], 325e3);
        assert_eq!(json["cells"][2]["outcome"]["reason"], "it <died>");
    }

    #[test]
    fn servers_that_damage_or_repeat_are_named() {
        let mut report = report();
        assert!(report.damage().is_empty());
        match &mut report.cells[1].outcome {
            Outcome::Packets(packets) => packets.duplicated = 3,
            other => panic!("{other:?}"),
        }
        report.cells[2].outcome = Outcome::failed(&SideError::Payload("byte 3 differs".into()));
        let damage = report.damage();
        assert_eq!(damage.len(), 2);
        assert!(damage[0].starts_with("floor in round 1") && damage[0].contains("3 arrived again"));
        assert!(damage[1].starts_with("other in round 1") && damage[1].contains("byte 3"));
    }

    #[test]
    fn the_next_search_begins_where_the_last_one_ended() {
        assert_eq!(report().last_rate(&RELAY, 0), Some(320e3));
        assert_eq!(
            report().last_rate(&Scenario::Churn { in_flight: 1 }, 0),
            None
        );
    }
}
