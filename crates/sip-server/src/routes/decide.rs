//! The decision about one request, and its explanation.

use std::borrow::Cow;
use std::time::Duration;

use sip::Mono;

use super::call::{Call, CallSender, Called};
use super::config::{Action, Failures, Hunt, Next};
use super::health::FULL_SHARE;
use super::hunt::{self, Candidate};
use super::matching::MatchingRoute;
use super::rewrite;
use super::table::{Compiled, Table, TrunkEntry};

/// The most addresses that are tried for one request.
const MAX_STEPS: usize = 16;

/// The trunk, the address and the route of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The generation of the table that the numbers refer to.
    pub table: u32,
    /// The number of the trunk.
    pub trunk: u16,
    /// The address among those of the trunk.
    pub hop: u16,
    /// The number of the route.
    pub route: u32,
    /// What follows a failure.
    pub failures: Failures,
    /// How long the address may take for its first response, if another one follows.
    pub answer_timeout: Duration,
    /// How long it may ring, if another one follows.
    pub ring_time: Duration,
}

/// An address that a request is sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The trunk, the address and the route.
    pub hop: Hop,
    /// The Request-URI.
    pub uri: Box<[u8]>,
    /// The URI that says where it goes, if that is not the Request-URI.
    pub next_hop: Option<Box<[u8]>>,
}

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// No route matches.
    NoRoute,
    /// To these addresses, one after the other.
    Trunks(Vec<Step>),
    /// Routes match, but no address of their trunks is available now: 503.
    Unavailable,
    /// To the user that this URI names here.
    Local(Box<[u8]>),
    /// Nowhere: this code, with this reason phrase.
    Reject(u16, Box<str>),
}

/// What the steps of all routes have in common.
pub(super) struct Calling<'a> {
    pub(super) now: Mono,
    pub(super) called: &'a Called<'a>,
    pub(super) draw: u64,
    /// The hash of the Call-ID.
    pub(super) hash: u64,
}

/// Receives the explanation of a decision, line by line.
pub(super) type Tracer<'t> = Option<&'t mut dyn FnMut(String)>;

macro_rules! say {
    ($tracer:expr, $($text:tt)+) => {
        if let Some(tracer) = $tracer.as_mut() {
            tracer(format!($($text)+));
        }
    };
}

impl Table {
    /// Where a request goes now.
    #[must_use]
    pub fn decide(&self, now: Mono, call: &Call<'_>) -> Decision {
        self.decide_with(now, call, None)
    }

    /// The same, with each step of the decision as a sentence.
    pub fn explain(&self, now: Mono, call: &Call<'_>, mut say: impl FnMut(String)) -> Decision {
        self.decide_with(now, call, Some(&mut say))
    }

    /// Finds the first route that matches, and its action. `tracer` gets each step in words.
    fn decide_with(&self, now: Mono, call: &Call<'_>, mut tracer: Tracer<'_>) -> Decision {
        let Some(called) = Called::of(call.uri) else {
            say!(
                tracer,
                "the Request-URI has no user part: no route is asked"
            );
            return Decision::NoRoute;
        };
        say!(
            tracer,
            "the called user part is `{}`",
            text(called.as_bytes())
        );
        say!(tracer, "the sender is {}", self.name_of(call.sender));
        let mut steps = Vec::new();
        let mut has_matched = false;
        let mut hash = None;
        for found in self.candidates(called.as_bytes()) {
            let Some(compiled) = self.routes.get(found.route as usize) else {
                continue;
            };
            let label = || label(compiled, &found, called.as_bytes());
            if let Some(mismatch) = compiled.mismatch(call, called.host) {
                say!(tracer, "{} does not match: {}", label(), mismatch.text());
                continue;
            }
            say!(tracer, "{} matches", label());
            match (&compiled.route.action, has_matched) {
                (Action::Trunks(_), _) => {
                    has_matched = true;
                    let hash = *hash.get_or_insert_with(|| hunt::hash(call.call_id()));
                    let calling = Calling {
                        now,
                        called: &called,
                        draw: call.draw,
                        hash,
                    };
                    let way = (found.route, compiled);
                    self.add_steps(&calling, way, &mut steps, &mut tracer);
                    if !continues(compiled) || steps.len() >= MAX_STEPS {
                        break;
                    }
                }
                // Only trunks can follow a failure: another worker may have the bindings of a local user.
                (_, true) => {
                    say!(
                        tracer,
                        "  it does not lead to trunks, so it does not follow another route"
                    );
                    break;
                }
                (Action::Domain(domain), false) => {
                    return local(compiled, &called, domain, &mut tracer);
                }
                (Action::Reject { code, reason }, false) => {
                    say!(tracer, "  the response is {code} {reason}");
                    return Decision::Reject(*code, reason.as_str().into());
                }
            }
        }
        match (has_matched, steps.is_empty()) {
            (false, _) => Decision::NoRoute,
            (true, true) => {
                say!(tracer, "no trunk is available: the response is 503");
                Decision::Unavailable
            }
            (true, false) => Decision::Trunks(steps),
        }
    }

    pub(super) fn name_of(&self, sender: CallSender<'_>) -> String {
        match sender {
            CallSender::Trunk(number) => {
                let known = self.trunks.get(usize::from(number));
                format!("the trunk `{}`", known.map_or("", |it| &it.trunk.name))
            }
            CallSender::User(user, domain) => format!("the user {}@{}", text(user), text(domain)),
            CallSender::Anyone => "unknown".to_owned(),
        }
    }

    /// Adds the addresses of a route's trunks.
    pub(super) fn add_steps(
        &self,
        calling: &Calling<'_>,
        (number, compiled): (u32, &Compiled),
        steps: &mut Vec<Step>,
        tracer: &mut Tracer<'_>,
    ) {
        let Calling {
            now,
            called,
            draw,
            hash,
        } = *calling;
        let route = &compiled.route;
        let Some(user) = rewrite::user(route, called.as_bytes()) else {
            say!(
                tracer,
                "  the user part is too short or too long to be rewritten: the route is left out"
            );
            return;
        };
        if user != called.as_bytes() {
            say!(tracer, "  the user part becomes `{}`", text(&user));
        }
        let user = rewrite::escaped(&user);
        let mut slow = Vec::new();
        for &trunk in self.in_order(compiled, draw, hash).iter() {
            let Some(known) = self.trunks.get(usize::from(trunk)) else {
                continue;
            };
            for (hop, to) in (0..).zip(&known.trunk.to) {
                let name = &known.trunk.name;
                if !known.health.is_available(hop, now) {
                    say!(
                        tracer,
                        "  trunk `{name}`, {}: not available now",
                        to.as_str()
                    );
                    continue;
                }
                let hop = Hop {
                    table: self.generation,
                    trunk,
                    hop,
                    route: number,
                    failures: route.failures,
                    answer_timeout: known.trunk.answer_timeout,
                    ring_time: route.ring_time,
                };
                let step = step(known, hop, (called.is_sips, &user));
                if accepts_in_slow_start(known, &hop, now, hash) {
                    say!(
                        tracer,
                        "  trunk `{name}`, {}: {}",
                        to.as_str(),
                        text(&step.uri)
                    );
                    steps.push(step);
                } else {
                    say!(
                        tracer,
                        "  trunk `{name}`, {}: it starts slowly, and comes last",
                        to.as_str()
                    );
                    slow.push(step);
                }
            }
        }
        steps.append(&mut slow);
        steps.truncate(MAX_STEPS);
        say!(
            tracer,
            "  busy: {}; no answer: {}; unreachable: {}",
            word(route.failures.busy),
            word(route.failures.no_answer),
            word(route.failures.unreachable)
        );
    }

    /// The trunks of a route in the order in which they are tried.
    fn in_order<'t>(&self, compiled: &'t Compiled, draw: u64, call: u64) -> Cow<'t, [u16]> {
        if compiled.trunks.len() == 1 || compiled.route.hunt == Hunt::Order {
            return Cow::Borrowed(&compiled.trunks);
        }
        let of = |trunk: &u16| {
            let known = self.trunks.get(usize::from(*trunk))?;
            Some(Candidate {
                trunk: *trunk,
                priority: known.trunk.priority,
                weight: known.trunk.weight,
                name: known.name,
            })
        };
        let mut candidates: Vec<Candidate> = compiled.trunks.iter().filter_map(of).collect();
        hunt::sort(&mut candidates, compiled.route.hunt, draw, call);
        candidates.iter().map(|it| it.trunk).collect()
    }
}

/// Whether an address takes this call during its slow start.
fn accepts_in_slow_start(known: &TrunkEntry, hop: &Hop, now: Mono, call: u64) -> bool {
    let share = known.health.share(hop.hop, now);
    let place = hunt::mix(call ^ known.name.rotate_left(hop.hop.into())) % u64::from(FULL_SHARE);
    share >= FULL_SHARE || place < u64::from(share)
}

fn step(known: &TrunkEntry, hop: Hop, (is_sips, user): (bool, &[u8])) -> Step {
    let to = known.trunk.to.get(usize::from(hop.hop));
    let to = to.map_or("", |to| to.as_str());
    let (scheme, host) = to.split_once(':').unwrap_or(("sip", to));
    let is_sips = is_sips || scheme.eq_ignore_ascii_case("sips");
    match &known.trunk.domain {
        Some(domain) => Step {
            hop,
            uri: rewrite::uri(is_sips, user, domain.as_bytes()),
            next_hop: Some(to.as_bytes().into()),
        },
        None => Step {
            hop,
            uri: rewrite::uri(is_sips, user, host.as_bytes()),
            next_hop: None,
        },
    }
}

fn local(
    compiled: &Compiled,
    called: &Called<'_>,
    domain: &str,
    tracer: &mut Tracer<'_>,
) -> Decision {
    let Some(user) = rewrite::user(&compiled.route, called.as_bytes()) else {
        say!(
            tracer,
            "  the user part is too short or too long to be rewritten: the response is 404"
        );
        return Decision::Reject(404, "".into());
    };
    let uri = rewrite::uri(called.is_sips, &rewrite::escaped(&user), domain.as_bytes());
    say!(tracer, "  it leads to the user {}", text(&uri));
    Decision::Local(uri)
}

/// Whether another route may follow.
fn continues(compiled: &Compiled) -> bool {
    let failures = compiled.route.failures;
    let all = [failures.busy, failures.no_answer, failures.unreachable];
    all.iter().any(|next| *next != Next::Stop)
}

fn label(compiled: &Compiled, found: &MatchingRoute, called: &[u8]) -> String {
    let prefix = called.get(..usize::from(found.len.0)).unwrap_or_default();
    match prefix {
        [] => format!("route `{}`", compiled.route.name),
        prefix => format!(
            "route `{}` (prefix `{}`)",
            compiled.route.name,
            text(prefix)
        ),
    }
}

fn word(next: Next) -> &'static str {
    match next {
        Next::Stop => "stop",
        Next::NextTrunk => "next trunk",
        Next::NextRoute => "next route",
    }
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

impl std::fmt::Display for Hunt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Hunt::Order => "order",
            Hunt::Weight => "weight",
            Hunt::Hash => "hash",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sip::{Message, Mono, Spans};

    use super::*;
    use crate::routes::{Action, CallSender, NextHop, Outcome, ProbeConfig, Route, Trunk};

    /// Two trunks, of which the first one has become available at this time.
    fn table(now: Mono, slow_start: Duration) -> Table {
        let trunk = |name: &str, host: &str| Trunk {
            name: name.to_owned(),
            to: vec![NextHop::new(&format!("sip:{host}")).unwrap()],
            probe: ProbeConfig {
                failures: 1,
                successes: 1,
                slow_start,
                ..ProbeConfig::default()
            },
            ..Trunk::default()
        };
        let route = Route {
            action: Action::Trunks(vec!["a".to_owned(), "b".to_owned()]),
            ..Route::default()
        };
        let trunks = vec![trunk("a", "192.0.2.7"), trunk("b", "192.0.2.8")];
        let table = Table::new(vec![route], trunks, None).unwrap();
        let health = &table.trunks[0].health;
        assert!(health.probed(0, now, Outcome::Silent));
        assert!(health.probed(0, now, Outcome::Response(200, None)));
        table
    }

    /// The trunks that the call with this number is sent to, in order.
    fn trunks_of(table: &Table, now: Mono, call: u32) -> Vec<u16> {
        let text = format!(
            "INVITE sip:+4930@example.com SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\n\
             From: <sip:alice@example.com>;tag=1\r\nTo: <sip:+4930@example.com>\r\n\
             Call-ID: {call}@192.0.2.1\r\nCSeq: 1 INVITE\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
        );
        let mut spans = Spans::new();
        let message = Message::parse(text.as_bytes(), &mut spans).unwrap();
        let call = Call {
            message: &message,
            uri: b"sip:+4930@example.com",
            sender: CallSender::User(b"alice", b"example.com"),
            source: "192.0.2.1:5060".parse().unwrap(),
            transport: sip::flow::Transport::Udp,
            draw: 0,
        };
        match table.decide(now, &call) {
            Decision::Trunks(steps) => steps.iter().map(|step| step.hop.trunk).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn in_slow_start_a_trunk_gets_its_share_of_calls_first_and_the_others_last() {
        let slow_start = Duration::from_secs(30);
        let begun = Mono::default().plus_secs(1_000);
        let table = table(begun, slow_start);
        let first = |passed: Duration| {
            let now = begun.plus(passed);
            let calls = (0..1_000).map(|call| trunks_of(&table, now, call));
            let mut firsts = 0;
            for trunks in calls {
                assert!(trunks == [0, 1] || trunks == [1, 0], "{trunks:?}");
                firsts += usize::from(trunks == [0, 1]);
            }
            firsts
        };
        assert_eq!(first(Duration::ZERO), 0);
        let quarter = first(slow_start / 4);
        assert!((200..=300).contains(&quarter), "{quarter}");
        let half = first(slow_start / 2);
        assert!((440..=560).contains(&half), "{half}");
        assert_eq!(first(slow_start), 1_000);
        // A call that was sent again has the same order.
        let now = begun.plus(slow_start / 2);
        for call in 0..50 {
            assert_eq!(trunks_of(&table, now, call), trunks_of(&table, now, call));
        }
    }
}
