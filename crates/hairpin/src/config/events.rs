//! Sinks of events, as the user writes them.

use stores::sinks::{self, SinkKind, SinkOptions};
use stores::{Options, StoreError};

use super::diagnostics::{Diagnostic, Report};
use super::node::Node;
use super::remote::{Destination, Remote};
use super::schema::Settings;
use super::setting::{Bounded, FromText, List, Mistake, Setting, one_of};
use super::source::Location;
use super::table::{self, Table, Writer};
use crate::events::{Delivery, EventKind, SinkSettings};

/// Each sink has a thread.
const MAX_SINKS: usize = 8;
/// Events that wait: half a kilobyte each.
type Queue = Bounded<16, 1_000_000>;
const QUEUE: usize = 10_000;
const TOPIC: &str = "hairpin.events";
/// Longer names are hardly meant.
const MAX_TOPIC: usize = 128;

/// One sink.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawSink {
    remote: Remote<Sink>,
    kinds: Option<List<EventKind>>,
    delivery: Option<Delivery>,
    queue: Option<Queue>,
    topic: Option<Topic>,
}

const FIELDS: [&str; 7] = [
    "url",
    "kinds",
    "delivery",
    "queue",
    "topic",
    "password_file",
    "ca",
];

/// What the URL of a sink leads to.
#[derive(Clone, Debug)]
struct Sink;

impl Destination for Sink {
    const NAME: &'static str = "sink";
    const EXAMPLE: &'static str = "write it like { url = \"file:/var/log/hairpin/events.jsonl\" }";
    const EXPECTED: &'static str = "a URL like \"file:/var/log/hairpin/events.jsonl\"";
    const HELP: &'static str = "docs/events.md has an example for each kind";

    fn check(options: &Options) -> Result<(), StoreError> {
        sinks::check(options).map(|_| ())
    }
}

impl Table for RawSink {
    const WHAT: &'static str = "a sink of events";
    const FIELDS: &'static [&'static str] = &FIELDS;
    const EXAMPLE: &'static str = Sink::EXAMPLE;

    fn set(&mut self, name: &str, value: &Node<'_>, report: &mut Report) -> bool {
        match name {
            "kinds" => self.kinds = List::read(value, report),
            "delivery" => self.delivery = Delivery::read(value, report),
            "queue" => self.queue = Queue::read(value, report),
            "topic" => self.topic = Topic::read(value, report),
            other => return self.remote.set(other, value, report),
        }
        true
    }

    fn check(&self, at: &Location, report: &mut Report) {
        self.remote.needs_url(at, report);
    }
}

impl Setting for RawSink {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        table::read(node, report)
    }

    fn write(&self, reveal: bool) -> String {
        let writer = self.remote.write(Writer::new(reveal));
        writer
            .one("kinds", self.kinds.as_ref())
            .one("delivery", self.delivery.as_ref())
            .one("queue", self.queue.as_ref())
            .one("topic", self.topic.as_ref())
            .finish()
    }
}

/// The stream of Redis; the first part of the subject of NATS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Topic(String);

impl FromText for Topic {
    const EXPECTED: &'static str = "a name like \"hairpin.events\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        // A subject of NATS has no blanks, no wildcards and no empty parts.
        let is_fit = |part: &str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_graphic() && !b"*>".contains(&byte))
        };
        match text.len() <= MAX_TOPIC && text.split('.').all(is_fit) {
            true => Ok(Self(text.to_owned())),
            false => Err(Mistake::new(format!(
                "expected {}, of at most {MAX_TOPIC} bytes, without blanks, `*` and `>`",
                Self::EXPECTED
            ))),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

impl FromText for EventKind {
    const EXPECTED: &'static str = "a kind of event, like \"allocation_opened\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        one_of(text, &EventKind::ALL.map(|kind| (kind.name(), kind)))
    }

    fn to_text(&self) -> String {
        self.name().to_owned()
    }
}

const DELIVERIES: [(&str, Delivery); 2] = [
    ("at_least_once", Delivery::AtLeastOnce),
    ("at_most_once", Delivery::AtMostOnce),
];

impl FromText for Delivery {
    const EXPECTED: &'static str = "\"at_least_once\" or \"at_most_once\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        one_of(text, &DELIVERIES)
    }

    fn to_text(&self) -> String {
        let named = DELIVERIES.iter().find(|(_, of)| of == self);
        named.map_or("", |(name, _)| name).to_owned()
    }
}

/// The plain values.
pub(super) fn resolve(settings: &Settings) -> Option<Vec<SinkSettings>> {
    let sinks = super::values(settings.events_sinks.clone()?.value).into_iter();
    sinks.map(RawSink::resolve).collect()
}

impl RawSink {
    fn resolve(self) -> Option<SinkSettings> {
        let delivery = self.delivery.unwrap_or(Delivery::AtLeastOnce);
        let kinds = self.kinds.filter(|list| !list.is_empty());
        Some(SinkSettings {
            options: SinkOptions {
                at: self.remote.options()?,
                topic: self.topic.map_or_else(|| TOPIC.to_owned(), |topic| topic.0),
                is_durable: delivery == Delivery::AtLeastOnce,
            },
            kinds: kinds.map_or_else(|| EventKind::ALL.to_vec(), super::values),
            delivery,
            queue: self.queue.map_or(QUEUE, |queue| queue.0 as usize),
        })
    }
}

/// Reports files that cannot be used, fields that a sink does not read, and too many sinks.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    let Some(list) = &settings.events_sinks else {
        return;
    };
    if let Some(extra) = list.value.get(MAX_SINKS) {
        let message = format!("there are more than {MAX_SINKS} sinks of events");
        report.push(Diagnostic::error(&extra.at, message).help("keep fewer; each has a thread"));
    }
    for sink in list.value.iter().map(|sink| &sink.value) {
        let kind = sink.remote.url.as_ref();
        let kind = kind.and_then(|url| SinkKind::of(url.value.as_str()));
        if kind == Some(SinkKind::File) {
            for file in sink.remote.files() {
                let message = "a file has neither a password nor a certificate";
                report.push(Diagnostic::error(&file.at, message).help("remove it"));
            }
        }
        sink.remote.check_files(report);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Inputs, load};

    fn of(text: &str) -> Result<Vec<SinkSettings>, Vec<String>> {
        let loaded = load(&Inputs {
            file: Some(("test".to_owned(), text.to_owned())),
            ..Inputs::default()
        });
        let lines = loaded.one_line_each();
        loaded.config.map(|config| config.events).ok_or(lines)
    }

    #[test]
    fn a_sink_is_a_url_and_what_differs_from_the_defaults() {
        let sinks = of("[[events.sinks]]\nurl = \"file:/var/log/events\"\n\n[[events.sinks]]\nurl = \"nats://n\"\nkinds = [\"call_closed\"]\ndelivery = \"at_most_once\"\nqueue = 16\ntopic = \"turn.berlin\"\n").unwrap();
        assert_eq!(sinks[0].kinds, EventKind::ALL);
        assert_eq!(
            (sinks[0].queue, sinks[0].delivery),
            (QUEUE, Delivery::AtLeastOnce)
        );
        assert!(sinks[0].options.is_durable && !sinks[1].options.is_durable);
        assert_eq!(sinks[1].kinds, [EventKind::CallClosed]);
        assert_eq!(
            (&*sinks[1].options.topic, sinks[1].queue),
            ("turn.berlin", 16)
        );
    }

    #[test]
    fn a_password_in_the_environment_is_not_shown() {
        let text = "nats://hairpin:hunter2@nats.example.org";
        let loaded = load(&Inputs {
            environment: vec![("HAIRPIN_EVENTS__SINKS".into(), text.into())],
            ..Inputs::default()
        });
        let said = loaded.one_line_each().join("\n");
        assert!(
            said.contains("expected a sink of events, found a text"),
            "{said}"
        );
        assert!(!said.contains("hunter2") && !loaded.diagnostics(false).contains("hunter2"));
    }

    #[test]
    fn mistakes_have_a_place_a_reason_and_advice() {
        for (text, part) in [
            (
                "url = \"kafka://k\"",
                "test:2:7: the URL cannot be used: expected a URL that begins with file:",
            ),
            ("url = \"file:events\"", "expected the whole path"),
            ("url = \"nats://n/subject\"", "the subject is in `topic`"),
            ("kinds = []", "the sink has no url"),
            ("url = \"nats://n\"\nkinds = [\"call\"]", "test:3:10: "),
            (
                "url = \"nats://n\"\ntopic = \"a..b\"",
                "expected a name like",
            ),
            ("url = \"nats://n\"\nqueue = 1", "out of range"),
            ("url = \"nats://n\"\ndelivery = \"once\"", "test:3:12: "),
            (
                "url = \"file:/a\"\npassword_file = \"/nonexistent\"",
                "a file has neither",
            ),
            (
                "url = \"nats://n\"\npassword_file = \"/nonexistent\"",
                "cannot read /nonexistent: ",
            ),
            ("url = \"nats://n\"\nsink = 1", "test:3:1: "),
        ] {
            let said = of(&format!("[[events.sinks]]\n{text}\n"))
                .unwrap_err()
                .join("\n");
            assert!(said.contains(part), "{said}");
        }
        let many = "[[events.sinks]]\nurl = \"file:/a\"\n".repeat(9);
        assert!(of(&many).unwrap_err()[0].contains("more than 8 sinks"));
    }
}
