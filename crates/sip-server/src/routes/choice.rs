//! Trunks that the embedder has chosen for one request, instead of a route.

use std::time::Duration;

use sip::Mono;

use super::call::{Call, CallSender, Called};
use super::config::{Failures, Route};
use super::decide::{Calling, Decision, Tracer};
use super::hunt;
use super::table::{Compiled, Table};

/// The number of the route in the steps of a choice: no route has it.
const NO_ROUTE: u32 = u32::MAX;

/// The trunks for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrunkChoice {
    /// The names of the trunks, in the order in which they are tried. Names of no trunk are left out.
    pub trunks: Vec<String>,
    /// The new user part of the Request-URI, without escapes: 1 to 512 bytes. `None`: the user part stays.
    pub user: Option<String>,
    /// What follows a failure. [`Next::NextRoute`](super::Next::NextRoute) ends the hunt, because no route follows.
    pub failures: Failures,
    /// How long a call may ring at an address, if another one follows.
    pub ring_time: Duration,
    /// Whether the sender may be a trunk. Otherwise a request of a trunk gets 403. So a choice that ignores the sender
    /// makes no open relay.
    pub from_trunks: bool,
}

impl Default for TrunkChoice {
    fn default() -> TrunkChoice {
        let route = Route::default();
        TrunkChoice {
            trunks: Vec::new(),
            user: None,
            failures: route.failures,
            ring_time: route.ring_time,
            from_trunks: false,
        }
    }
}

impl TrunkChoice {
    /// These trunks, with the defaults of a route.
    pub fn new<N: Into<String>>(trunks: impl IntoIterator<Item = N>) -> TrunkChoice {
        TrunkChoice {
            trunks: trunks.into_iter().map(Into::into).collect(),
            ..TrunkChoice::default()
        }
    }
}

impl Table {
    /// Decides where a request goes, if the embedder has chosen trunks for it.
    ///
    /// - [`Decision::NoRoute`] if the Request-URI has no user part, or one that is too long.
    /// - [`Decision::Reject`] with 403 if the sender may not reach trunks: an unknown sender, or a trunk without
    ///   [`TrunkChoice::from_trunks`].
    /// - [`Decision::Unavailable`] if no address of the trunks is available, or [`TrunkChoice::user`] cannot be used.
    #[must_use]
    pub fn decide_choice(&self, now: Mono, call: &Call<'_>, choice: &TrunkChoice) -> Decision {
        self.choice_with(now, call, choice, None)
    }

    /// The same, with each step of the decision as a sentence.
    pub fn explain_choice(
        &self,
        now: Mono,
        call: &Call<'_>,
        choice: &TrunkChoice,
        mut say: impl FnMut(String),
    ) -> Decision {
        self.choice_with(now, call, choice, Some(&mut say))
    }

    fn choice_with(
        &self,
        now: Mono,
        call: &Call<'_>,
        choice: &TrunkChoice,
        mut tracer: Tracer<'_>,
    ) -> Decision {
        let Some(called) = Called::of(call.uri) else {
            return Decision::NoRoute;
        };
        let may_send = match call.sender {
            CallSender::User(..) => true,
            CallSender::Trunk(_) => choice.from_trunks,
            CallSender::Anyone => false,
        };
        if !may_send {
            let sender = self.name_of(call.sender);
            say(&mut tracer, || {
                format!("the sender is {sender}, which may not reach trunks")
            });
            return Decision::Reject(403, "Relaying Is Not Allowed".into());
        }
        let compiled = Compiled {
            route: Route {
                replace: choice.user.clone(),
                failures: choice.failures,
                ring_time: choice.ring_time,
                ..Route::default()
            },
            trunks: self.numbers(&choice.trunks, &mut tracer).into(),
            from_trunks: Vec::new(),
        };
        let calling = Calling {
            now,
            called: &called,
            draw: call.draw,
            hash: hunt::hash(call.call_id()),
        };
        let mut steps = Vec::new();
        let way = (NO_ROUTE, &compiled);
        self.add_steps(&calling, way, &mut steps, &mut tracer);
        match steps.is_empty() {
            true => {
                say(&mut tracer, || {
                    "no trunk is available: the response is 503".to_owned()
                });
                Decision::Unavailable
            }
            false => Decision::Trunks(steps),
        }
    }

    /// The numbers of the trunks with these names.
    fn numbers(&self, names: &[String], tracer: &mut Tracer<'_>) -> Vec<u16> {
        let mut numbers = Vec::with_capacity(names.len());
        for name in names.iter().filter(|name| !name.is_empty()) {
            let mut known = (0..).zip(&self.trunks);
            match known.find(|(_, known)| known.trunk.name == *name) {
                Some((number, _)) => numbers.push(number),
                None => say(tracer, || format!("  there is no trunk `{name}`")),
            }
        }
        numbers
    }
}

fn say(tracer: &mut Tracer<'_>, text: impl FnOnce() -> String) {
    if let Some(tracer) = tracer {
        tracer(text());
    }
}

#[cfg(test)]
mod tests {
    use sip::flow::Transport;
    use sip::{Message, Spans};

    use super::*;
    use crate::routes::{NextHop, Trunk};

    fn table() -> Table {
        let trunk = |name: &str, to: &[&str]| Trunk {
            name: name.to_owned(),
            to: to.iter().map(|to| NextHop::new(to).unwrap()).collect(),
            ..Trunk::default()
        };
        let trunks = vec![
            // Without a name it cannot be chosen.
            trunk("", &["sip:192.0.2.6"]),
            trunk("a", &["sip:192.0.2.7", "sip:192.0.2.8"]),
            trunk("b", &["sip:192.0.2.9"]),
            trunk("deaf", &[]),
        ];
        Table::new(Vec::new(), trunks, None).unwrap()
    }

    fn decide(sender: CallSender<'_>, choice: &TrunkChoice) -> (Decision, Vec<String>) {
        let text = "INVITE sip:+4930@example.com SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\n\
            From: <sip:alice@example.com>;tag=1\r\nTo: <sip:+4930@example.com>\r\nCall-ID: 1\r\nCSeq: 1 INVITE\r\n\
            Max-Forwards: 70\r\nContent-Length: 0\r\n\r\n";
        let mut spans = Spans::new();
        let message = Message::parse(text.as_bytes(), &mut spans).unwrap();
        let call = Call {
            message: &message,
            uri: b"sip:+4930@example.com",
            sender,
            source: "192.0.2.1:5060".parse().unwrap(),
            transport: Transport::Udp,
            draw: 0,
        };
        let table = table();
        let mut steps = Vec::new();
        let explained = table.explain_choice(Mono(0), &call, choice, |step| steps.push(step));
        assert_eq!(table.decide_choice(Mono(0), &call, choice), explained);
        (explained, steps)
    }

    #[test]
    fn chosen_trunks_are_tried_in_their_order_and_names_of_none_are_left_out() {
        let choice = TrunkChoice {
            user: Some("00 30".to_owned()),
            ..TrunkChoice::new(["b", "nobody", "", "deaf", "a"])
        };
        let (decision, explanation) = decide(CallSender::User(b"alice", b"example.com"), &choice);
        let Decision::Trunks(steps) = decision else {
            panic!("{decision:?}");
        };
        let uris = steps.iter().map(|step| String::from_utf8_lossy(&step.uri));
        let expected = [
            "sip:00%2030@192.0.2.9",
            "sip:00%2030@192.0.2.7",
            "sip:00%2030@192.0.2.8",
        ];
        assert_eq!(uris.collect::<Vec<_>>(), expected);
        assert_eq!(steps[0].hop.trunk, 2);
        assert_eq!(explanation[0], "  there is no trunk `nobody`");
        let none = TrunkChoice::new(["nobody", "deaf"]);
        let (decision, _) = decide(CallSender::User(b"alice", b"example.com"), &none);
        assert_eq!(decision, Decision::Unavailable);
    }

    #[test]
    fn a_trunk_reaches_trunks_only_if_the_choice_says_so_and_unknown_senders_never_do() {
        let (of_users, of_trunks) = (TrunkChoice::new(["a"]), {
            TrunkChoice {
                from_trunks: true,
                ..TrunkChoice::new(["a"])
            }
        });
        let is_refused = |sender, choice: &TrunkChoice| match decide(sender, choice).0 {
            Decision::Trunks(_) => false,
            Decision::Reject(403, _) => true,
            other => panic!("{other:?}"),
        };
        for (sender, refused) in [
            (CallSender::User(b"alice", b"example.com"), [false, false]),
            (CallSender::Trunk(2), [true, false]),
            (CallSender::Anyone, [true, true]),
        ] {
            let found = [&of_users, &of_trunks].map(|choice| is_refused(sender, choice));
            assert_eq!(found, refused, "{sender:?}");
        }
    }
}
