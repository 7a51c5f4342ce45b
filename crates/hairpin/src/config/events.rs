//! Sinks of events, as the user writes them.

use stores::Options;
use stores::sinks::{self, SinkKind, SinkOptions};

use super::diagnostics::{Diagnostic, Report};
use super::node::{Node, Raw};
use super::schema::Settings;
use super::setting::{Bounded, FromText, List, Mistake, Setting, one_of, wrong_type};
use super::sip_tls::RootFile;
use super::source::Located;
use super::stores::{located, password};
use super::walk::unknown_key;
use crate::events::{Delivery, EventKind, SinkSettings};

/// Each sink has a thread.
const MOST_SINKS: usize = 8;
/// Events that wait: half a kilobyte each.
type Queue = Bounded<16, 1_000_000>;
const QUEUE: usize = 10_000;
const TOPIC: &str = "hairpin.events";
/// Longer names are hardly meant.
const MAX_TOPIC: usize = 128;

/// One sink.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    url: Option<Located<Url>>,
    kinds: Option<List<EventKind>>,
    delivery: Option<Delivery>,
    queue: Option<Queue>,
    topic: Option<Topic>,
    password_file: Option<Located<RootFile>>,
    ca: Option<Located<RootFile>>,
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

const EXAMPLE: &str = "write it like { url = \"file:/var/log/hairpin/events.jsonl\" }";

impl Setting for Written {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let Raw::Toml(toml::de::DeValue::Table(table)) = &node.raw else {
            let help = format!("{EXAMPLE}, in a configuration file");
            report.push(wrong_type(node, "a sink of events").help(&help));
            return None;
        };
        let source = node.at.source;
        let errors = report.errors();
        let mut sink = Written::default();
        for (name, value) in table.iter() {
            let value = Node::toml(source, value);
            match &name.get_ref()[..] {
                "url" => sink.url = located(&value, report),
                "kinds" => sink.kinds = List::read(&value, report),
                "delivery" => sink.delivery = Delivery::read(&value, report),
                "queue" => sink.queue = Queue::read(&value, report),
                "topic" => sink.topic = Topic::read(&value, report),
                "password_file" => sink.password_file = located(&value, report),
                "ca" => sink.ca = located(&value, report),
                _ => report.push(unknown_key(source, name, "a sink of events", &FIELDS, &[])),
            }
        }
        if sink.url.is_none() && report.errors() == errors {
            report.push(Diagnostic::error(&node.at, "the sink has no url").help(EXAMPLE));
        }
        (report.errors() == errors).then_some(sink)
    }

    fn write(&self, reveal: bool) -> String {
        fn one<T: Setting>(name: &str, value: Option<&T>, reveal: bool) -> Option<String> {
            value.map(|value| format!("{name} = {}", value.write(reveal)))
        }
        fn bare<T>(value: &Option<Located<T>>) -> Option<&T> {
            value.as_ref().map(|value| &value.value)
        }
        let fields = [
            one("url", bare(&self.url), reveal),
            one("kinds", self.kinds.as_ref(), reveal),
            one("delivery", self.delivery.as_ref(), reveal),
            one("queue", self.queue.as_ref(), reveal),
            one("topic", self.topic.as_ref(), reveal),
            one("password_file", bare(&self.password_file), reveal),
            one("ca", bare(&self.ca), reveal),
        ];
        let fields: Vec<_> = fields.into_iter().flatten().collect();
        format!("{{ {} }}", fields.join(", "))
    }
}

/// Where a sink is. It may have a password in it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Url(String);

impl std::fmt::Debug for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Url(***)")
    }
}

impl FromText for Url {
    const EXPECTED: &'static str = "a URL like \"file:/var/log/hairpin/events.jsonl\"";
    const SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let at = Options {
            url: text.to_owned(),
            ..Options::default()
        };
        match sinks::check(&at) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(error) => Err(Mistake::new(format!("the URL cannot be used: {error}"))
                .help("docs/events.md has an example for each kind")),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
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
    sinks.map(Written::resolve).collect()
}

impl Written {
    fn resolve(self) -> Option<SinkSettings> {
        let file = self.password_file.as_ref();
        let delivery = self.delivery.unwrap_or(Delivery::AtLeastOnce);
        let kinds = self.kinds.filter(|list| !list.is_empty());
        Some(SinkSettings {
            options: SinkOptions {
                at: Options {
                    url: self.url?.value.0,
                    // Files have been checked.
                    password: file.and_then(|file| password(&file.value.0).ok()),
                    ca: self.ca.map(|file| file.value.0),
                },
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
    if let Some(extra) = list.value.get(MOST_SINKS) {
        let message = format!("there are more than {MOST_SINKS} sinks of events");
        report.push(Diagnostic::error(&extra.at, message).help("keep fewer; each has a thread"));
    }
    for sink in list.value.iter().map(|sink| &sink.value) {
        let kind = sink.url.as_ref();
        let kind = kind.and_then(|url| SinkKind::of(&url.value.0));
        for file in [&sink.password_file, &sink.ca].into_iter().flatten() {
            if kind == Some(SinkKind::File) {
                let message = "a file has neither a password nor a certificate";
                report.push(Diagnostic::error(&file.at, message).help("remove it"));
            }
        }
        if let Some(file) = &sink.password_file
            && let Err(error) = password(&file.value.0)
        {
            let message = format!("cannot read {}: {error}", file.value.0.display());
            let help = "the file must have the password of the sink, and the server's user must be able to read it";
            report.push(Diagnostic::error(&file.at, message).help(help));
        }
        if let Some(file) = &sink.ca
            && let Err(error) = server::certificates::Certificates::roots(&[&file.value.0])
        {
            let help = "give a PEM file with the certificates of the issuers";
            report.push(Diagnostic::error(&file.at, error.to_string()).help(help));
        }
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
