//! Log records and spans as OTLP in JSON.
//!
//! OTLP departs from the JSON of Protobuf in two points: IDs are hexadecimal, and enumerations are numbers. 64-bit
//! integers are texts in both. <https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>

use std::hash::{BuildHasher as _, RandomState};

use serde_json::{Map, Value, json};
use tracing::Level;

/// `SPAN_KIND_SERVER`: the server has handled a request of a client.
const SERVER: u8 = 2;
/// `STATUS_CODE_ERROR`.
const ERROR: u8 = 2;

/// A log record.
#[derive(Debug)]
pub(crate) struct LogRecord {
    pub(super) unix_ns: u64,
    pub(super) level: Level,
    pub(super) message: String,
    pub(super) fields: Vec<(&'static str, Value)>,
}

/// What all batches of a process have in common.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    resource: Value,
    scope: Value,
}

impl Origin {
    /// `run` identifies the process. It is also the first part of the `id` of its events.
    pub(super) fn new(run: &str) -> Origin {
        let version = env!("CARGO_PKG_VERSION");
        let attributes = [
            ("service.name", "hairpin"),
            ("service.version", version),
            ("service.instance.id", run),
        ];
        let attributes = attributes.map(|(key, text)| attribute(key, &Value::from(text)));
        Origin {
            resource: json!({ "attributes": attributes }),
            scope: json!({ "name": "hairpin", "version": version }),
        }
    }

    /// An `ExportLogsServiceRequest`.
    pub(super) fn logs(&self, records: &[LogRecord]) -> String {
        let records: Vec<Value> = records.iter().map(log).collect();
        let scope = json!({ "scope": self.scope, "logRecords": records });
        let all = json!({ "resource": self.resource, "scopeLogs": [scope] });
        json!({ "resourceLogs": [all] }).to_string()
    }

    /// An `ExportTraceServiceRequest`. Each event is the JSON object of docs/events.md.
    pub(super) fn traces(&self, ids: &mut Ids, events: &[Map<String, Value>]) -> String {
        let spans: Vec<Value> = events.iter().map(|event| span(ids, event)).collect();
        let scope = json!({ "scope": self.scope, "spans": spans });
        let all = json!({ "resource": self.resource, "scopeSpans": [scope] });
        json!({ "resourceSpans": [all] }).to_string()
    }
}

/// The IDs of traces and spans: a keyed hash of a counter. Sampling requires that all their bits are random.
#[derive(Debug, Default)]
pub(super) struct Ids {
    key: RandomState,
    used: u64,
}

impl Ids {
    /// The next 8 bytes in hexadecimal. All zeros would be no ID.
    fn next(&mut self) -> String {
        self.used += 1;
        format!("{:016x}", self.key.hash_one(self.used).max(1))
    }
}

fn log(record: &LogRecord) -> Value {
    let (number, name) = severity(record.level);
    let time = record.unix_ns.to_string();
    let fields = record.fields.iter();
    let attributes: Vec<_> = fields.map(|(key, value)| attribute(key, value)).collect();
    json!({
        "timeUnixNano": time,
        "observedTimeUnixNano": time,
        "severityNumber": number,
        "severityText": name,
        "body": { "stringValue": record.message },
        "attributes": attributes,
    })
}

/// The lowest `SeverityNumber` of a level, and its name.
const fn severity(level: Level) -> (u8, &'static str) {
    match level {
        Level::ERROR => (17, "ERROR"),
        Level::WARN => (13, "WARN"),
        Level::INFO => (9, "INFO"),
        Level::DEBUG => (5, "DEBUG"),
        Level::TRACE => (1, "TRACE"),
    }
}

/// The span of an allocation or a call that has ended.
fn span(ids: &mut Ids, event: &Map<String, Value>) -> Value {
    let number = |name: &str| event.get(name).and_then(Value::as_u64);
    let end = number("unix_ms").unwrap_or(0);
    let begin = end.saturating_sub(number("duration_ms").unwrap_or(0));
    let is_call = event.contains_key("call_id");
    let mut span = json!({
        "traceId": ids.next() + &ids.next(),
        "spanId": ids.next(),
        "name": if is_call { "SIP call" } else { "TURN allocation" },
        "kind": SERVER,
        "startTimeUnixNano": nanos(begin),
        "endTimeUnixNano": nanos(end),
        "attributes": attributes(event),
    });
    if is_call {
        span["events"] = Value::from(moments(begin, event));
        // A response of 4xx or 6xx is the answer of a client or a callee: busy, for example.
        if let Some(code) = number("code").filter(|code| (500..600).contains(code)) {
            span["status"] = json!({ "code": ERROR, "message": code.to_string() });
        }
    }
    span
}

/// Fields of an event that the span has in other members.
const ELSEWHERE: [&str; 2] = ["kind", "unix_ms"];

fn attributes(event: &Map<String, Value>) -> Vec<Value> {
    let fields = event.iter();
    let fields = fields.filter(|(key, _)| !ELSEWHERE.contains(&key.as_str()));
    fields.map(|(key, value)| attribute(key, value)).collect()
}

/// The events of the span of a call: its attempts that have failed, and its responses.
fn moments(begin_ms: u64, call: &Map<String, Value>) -> Vec<Value> {
    let moment = |name: &str, ms: &Value, attributes: Vec<Value>| {
        let time = nanos(begin_ms.saturating_add(ms.as_u64()?));
        Some(json!({ "timeUnixNano": time, "name": name, "attributes": attributes }))
    };
    let times = call.get("failed_ms").and_then(Value::as_array);
    let names = call.get("failed").and_then(Value::as_str);
    let failed = times
        .into_iter()
        .flatten()
        .zip(names.unwrap_or_default().split(' '));
    let failed = failed.filter_map(|(ms, attempt)| {
        // The name of a trunk has no colon.
        let (trunk, outcome) = attempt.rsplit_once(':').unwrap_or(("", attempt));
        let trunk = Some(trunk).filter(|trunk| !trunk.is_empty());
        let trunk = trunk.map(|trunk| attribute("trunk", &Value::from(trunk)));
        let outcome = attribute("outcome", &Value::from(outcome));
        moment(
            "attempt failed",
            ms,
            trunk.into_iter().chain([outcome]).collect(),
        )
    });
    let responses = [("ringing", "ring_ms"), ("answered", "answer_ms")];
    let responses = responses
        .into_iter()
        .filter_map(|(name, field)| moment(name, call.get(field)?, Vec::new()));
    failed.chain(responses).collect()
}

fn nanos(unix_ms: u64) -> String {
    unix_ms.saturating_mul(1_000_000).to_string()
}

/// A `KeyValue`.
fn attribute(key: &str, value: &Value) -> Value {
    json!({ "key": key, "value": any(value) })
}

/// An `AnyValue`. An empty one is null.
fn any(value: &Value) -> Value {
    match value {
        Value::Null => json!({}),
        Value::Bool(truth) => json!({ "boolValue": truth }),
        Value::String(text) => json!({ "stringValue": text }),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => json!({ "intValue": whole.to_string() }),
            // An integer has 63 bits and a sign.
            _ if number.is_u64() => json!({ "stringValue": number.to_string() }),
            (_, double) => json!({ "doubleValue": double }),
        },
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(any).collect();
            json!({ "arrayValue": { "values": values } })
        }
        Value::Object(fields) => {
            let values: Vec<_> = fields
                .iter()
                .map(|(key, value)| attribute(key, value))
                .collect();
            json!({ "kvlistValue": { "values": values } })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn each_type_of_a_field_has_its_member() {
        for (value, expected) in [
            (json!(-7), json!({ "intValue": "-7" })),
            (
                json!(i64::MAX),
                json!({ "intValue": "9223372036854775807" }),
            ),
            (
                json!(u64::MAX),
                json!({ "stringValue": "18446744073709551615" }),
            ),
            (json!(0.5), json!({ "doubleValue": 0.5 })),
            (json!(true), json!({ "boolValue": true })),
            (json!(null), json!({})),
            (
                json!(["a", 1]),
                json!({ "arrayValue": { "values": [{ "stringValue": "a" }, { "intValue": "1" }] } }),
            ),
            (
                json!({ "a": 1 }),
                json!({ "kvlistValue": { "values": [{ "key": "a", "value": { "intValue": "1" } }] } }),
            ),
        ] {
            assert_eq!(any(&value), expected);
        }
    }

    #[test]
    fn a_call_has_its_attempts_and_responses_as_events_and_a_5xx_is_an_error() {
        let call = event(json!({
            "kind": "call_closed", "id": "run-7", "unix_ms": 1_795_000_010_000_u64, "call_id": "a@b",
            "failed": "carrier-a:silent 486", "failed_ms": [4_000, 4_100],
            "ring_ms": 5_000, "answer_ms": 6_000, "duration_ms": 10_000, "code": 200,
        }));
        let span = span(&mut Ids::default(), &call);
        assert_eq!(span["startTimeUnixNano"], "1795000000000000000");
        assert_eq!(span["endTimeUnixNano"], "1795000010000000000");
        assert!(span.get("status").is_none());
        let text = |value: &str| json!({ "stringValue": value });
        let events = json!([
            {
                "timeUnixNano": "1795000004000000000", "name": "attempt failed",
                "attributes": [
                    { "key": "trunk", "value": text("carrier-a") }, { "key": "outcome", "value": text("silent") },
                ],
            },
            {
                "timeUnixNano": "1795000004100000000", "name": "attempt failed",
                "attributes": [{ "key": "outcome", "value": text("486") }],
            },
            { "timeUnixNano": "1795000005000000000", "name": "ringing", "attributes": [] },
            { "timeUnixNano": "1795000006000000000", "name": "answered", "attributes": [] },
        ]);
        assert_eq!(span["events"], events);
        for (code, status) in [
            (503, json!({ "code": 2, "message": "503" })),
            (486, json!(null)),
            (603, json!(null)),
        ] {
            let call = event(json!({ "call_id": "a@b", "code": code }));
            assert_eq!(super::span(&mut Ids::default(), &call)["status"], status);
        }
    }

    #[test]
    fn all_bits_of_ids_differ() {
        let mut ids = Ids::default();
        let ids: Vec<u64> = (0..64)
            .map(|_| u64::from_str_radix(&ids.next(), 16).unwrap())
            .collect();
        let ones = ids.iter().fold(0, |all, id| all | id);
        let zeros = ids.iter().fold(0, |all, id| all | !id);
        assert_eq!((ones, zeros), (u64::MAX, u64::MAX));
    }
}
