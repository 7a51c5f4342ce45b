//! Export to an OpenTelemetry collector. The collector of these tests is strict about the JSON of OTLP.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::controlled::eventually;
use crate::common::turn::Client;
use crate::common::{Serve, run};
use crate::sip_client::phone::Phone;
use crate::sip_insight;
use serde_json::{Map, Value};
use sip::Method;

/// How long a silent collector keeps its connection open.
const SILENCE: Duration = Duration::from_secs(60);

/// What a collector does with a request.
#[derive(Clone, Debug)]
enum Reply {
    /// 200 with this body.
    Accept(&'static str),
    /// This status, with these header fields.
    Status(u16, &'static str),
    /// Closes the connection.
    Close,
    /// Reads no further request, and never responds.
    Silent,
}

/// A request that a collector has got.
#[derive(Clone, Debug)]
struct Request {
    at: Instant,
    path: String,
    /// Names in lower case.
    headers: BTreeMap<String, String>,
    body: Value,
    is_accepted: bool,
}

/// A collector with a script for its replies. After the script, it accepts everything.
struct Collector {
    address: SocketAddr,
    script: Arc<Mutex<VecDeque<Reply>>>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Collector {
    fn start(script: impl IntoIterator<Item = Reply>) -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let collector = Collector {
            address: listener.local_addr().unwrap(),
            script: Arc::new(Mutex::new(script.into_iter().collect())),
            requests: Arc::default(),
        };
        let (script, requests) = (
            Arc::clone(&collector.script),
            Arc::clone(&collector.requests),
        );
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (script, requests) = (Arc::clone(&script), Arc::clone(&requests));
                std::thread::spawn(move || converse(stream, &script, &requests));
            }
        });
        collector
    }

    /// `[telemetry]` for this collector.
    fn config(&self, more: &str) -> String {
        format!("[telemetry]\notlp = \"http://{}\"\n{more}", self.address)
    }

    fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// The log records of all accepted requests, each checked.
    fn logs(&self) -> Vec<Value> {
        let all = self.requests().into_iter().filter(|it| it.is_accepted);
        all.flat_map(|it| log_records(&it)).collect()
    }

    /// The spans of all accepted requests, each checked.
    fn spans(&self) -> Vec<Value> {
        let all = self.requests().into_iter().filter(|it| it.is_accepted);
        all.flat_map(|it| spans(&it)).collect()
    }
}

fn converse(
    stream: TcpStream,
    script: &Mutex<VecDeque<Reply>>,
    requests: &Mutex<Vec<Request>>,
) -> Option<()> {
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    loop {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let path = lines[0].strip_prefix("POST ")?.strip_suffix(" HTTP/1.1")?;
        let headers = lines[1..].iter().filter_map(|line| line.split_once(": "));
        let headers: BTreeMap<_, _> = headers
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let mut body = vec![0; headers["content-length"].parse().unwrap()];
        reader.read_exact(&mut body).ok()?;
        let next = script.lock().unwrap().pop_front();
        let reply = next.unwrap_or(Reply::Accept("{}"));
        requests.lock().unwrap().push(Request {
            at: Instant::now(),
            path: path.to_owned(),
            headers,
            body: serde_json::from_slice(&body).unwrap(),
            is_accepted: matches!(reply, Reply::Accept(_)),
        });
        let (status, more, body) = match reply {
            Reply::Accept(body) => (200, "", body),
            Reply::Status(status, more) => (status, more, ""),
            Reply::Close => return None,
            Reply::Silent => {
                std::thread::sleep(SILENCE);
                return None;
            }
        };
        let length = body.len();
        let response = format!(
            "HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{more}\r\n{body}"
        );
        writer.write_all(response.as_bytes()).ok()?;
    }
}

/// An object with no other members than these.
fn object<'a>(value: &'a Value, members: &[&str]) -> &'a Map<String, Value> {
    let object = value
        .as_object()
        .unwrap_or_else(|| panic!("no object: {value}"));
    for name in object.keys() {
        assert!(
            members.contains(&name.as_str()),
            "{name} is no member: {value}"
        );
    }
    object
}

fn list(value: &Value) -> &Vec<Value> {
    value
        .as_array()
        .unwrap_or_else(|| panic!("no list: {value}"))
}

/// An enumeration is a number: its name is not permitted.
fn enumeration(value: &Value, most: u64) -> u64 {
    let number = value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"));
    assert!(number <= most, "{number}");
    number
}

/// A 64-bit integer is a text.
fn integer<T: std::str::FromStr>(value: &Value) -> T {
    let text = value.as_str().unwrap_or_else(|| panic!("no text: {value}"));
    text.parse().unwrap_or_else(|_| panic!("no number: {text}"))
}

/// An ID is hexadecimal, not base64, and not zero.
fn id(value: &Value, bytes: usize) -> String {
    let text = value.as_str().unwrap_or_else(|| panic!("no text: {value}"));
    assert_eq!(text.len(), 2 * bytes, "{text}");
    assert!(text.bytes().all(|byte| byte.is_ascii_hexdigit()), "{text}");
    assert!(text.bytes().any(|byte| byte != b'0'), "{text}");
    text.to_owned()
}

/// An `AnyValue`: at most one of its members. Returns it as plain JSON.
fn any(value: &Value) -> Value {
    let members = [
        "stringValue",
        "boolValue",
        "intValue",
        "doubleValue",
        "arrayValue",
    ];
    let member = object(value, &members);
    assert!(member.len() <= 1, "{value}");
    let Some((name, inner)) = member.iter().next() else {
        return Value::Null;
    };
    match name.as_str() {
        "stringValue" => assert!(inner.is_string(), "{value}"),
        "boolValue" => assert!(inner.is_boolean(), "{value}"),
        "doubleValue" => assert!(inner.is_number(), "{value}"),
        "intValue" => return integer::<i64>(inner).into(),
        _ => {
            let values = list(&object(inner, &["values"])["values"]);
            return values.iter().map(any).collect();
        }
    }
    inner.clone()
}

/// Attributes with different keys, as plain JSON.
fn attributes(value: &Value) -> Map<String, Value> {
    let mut all = Map::new();
    for pair in list(value) {
        let pair = object(pair, &["key", "value"]);
        let key = pair["key"].as_str().unwrap();
        assert!(!key.is_empty());
        let before = all.insert(key.to_owned(), any(&pair["value"]));
        assert_eq!(before, None, "{key} twice");
    }
    all
}

/// The records of one request, below its resource and its scope.
fn records(request: &Request, path: &str, [all, scopes, records]: [&str; 3]) -> Vec<Value> {
    assert_eq!(request.headers["content-type"], "application/json");
    assert_eq!(request.path, path);
    let [whole] = &list(&object(&request.body, &[all])[all])[..] else {
        panic!("one resource: {}", request.body);
    };
    let whole = object(whole, &["resource", scopes]);
    let resource = attributes(&object(&whole["resource"], &["attributes"])["attributes"]);
    assert_eq!(resource["service.name"], "hairpin");
    assert_eq!(resource["service.version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(resource["service.instance.id"].as_str().unwrap().len(), 16);
    let [scope] = &list(&whole[scopes])[..] else {
        panic!("one scope: {whole:?}");
    };
    let scope = object(scope, &["scope", records]);
    let about = object(&scope["scope"], &["name", "version"]);
    assert_eq!(about["name"], "hairpin");
    list(&scope[records]).clone()
}

fn log_records(request: &Request) -> Vec<Value> {
    if request.path != "/v1/logs" {
        return Vec::new();
    }
    let names = ["resourceLogs", "scopeLogs", "logRecords"];
    let all = records(request, "/v1/logs", names);
    for record in &all {
        let record = object(
            record,
            &[
                "timeUnixNano",
                "observedTimeUnixNano",
                "severityNumber",
                "severityText",
                "body",
                "attributes",
            ],
        );
        let time: u64 = integer(&record["timeUnixNano"]);
        assert!(time > 1_700_000_000_000_000_000, "{time}");
        assert!(integer::<u64>(&record["observedTimeUnixNano"]) >= time);
        let number = enumeration(&record["severityNumber"], 24);
        let name = record["severityText"].as_str().unwrap();
        let expected = BTreeMap::from([("ERROR", 17), ("WARN", 13), ("INFO", 9), ("DEBUG", 5)]);
        assert_eq!(number, expected[name]);
        any(&record["body"]);
        attributes(&record["attributes"]);
    }
    all
}

fn spans(request: &Request) -> Vec<Value> {
    if request.path != "/v1/traces" {
        return Vec::new();
    }
    let names = ["resourceSpans", "scopeSpans", "spans"];
    let all = records(request, "/v1/traces", names);
    for span in &all {
        let span = object(
            span,
            &[
                "traceId",
                "spanId",
                "name",
                "kind",
                "startTimeUnixNano",
                "endTimeUnixNano",
                "attributes",
                "events",
                "status",
            ],
        );
        id(&span["traceId"], 16);
        id(&span["spanId"], 8);
        assert_eq!(enumeration(&span["kind"], 5), 2, "a server");
        let time = |name: &str| integer::<u64>(&span[name]);
        assert!(time("startTimeUnixNano") <= time("endTimeUnixNano"));
        attributes(&span["attributes"]);
        for event in span.get("events").map_or(&[][..], |events| list(events)) {
            let event = object(event, &["timeUnixNano", "name", "attributes"]);
            let at: u64 = integer(&event["timeUnixNano"]);
            assert!((time("startTimeUnixNano")..=time("endTimeUnixNano")).contains(&at));
            assert!(event["name"].is_string());
            attributes(&event["attributes"]);
        }
        if let Some(status) = span.get("status") {
            enumeration(&object(status, &["code", "message"])["code"], 2);
        }
    }
    all
}

/// Makes two allocations, relays between them, and ends them.
fn probe(server: &Serve) {
    let target = server.address().to_string();
    let output = run(&["probe", "turn", &target, "--user", "ann:secret"]);
    assert!(
        output.status.success(),
        "relaying does not depend on the collector"
    );
}

/// Makes one allocation and ends it.
fn allocate(server: &Serve) {
    let mut client = Client::of(server.address(), [127, 0, 0, 1].into(), "ann", "secret");
    assert_eq!(client.allocate().code, 0);
    assert_eq!(client.refresh(0).code, 0);
}

/// The JSON objects of a file, one per line.
fn lines(path: &Path) -> Vec<Map<String, Value>> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn message_of(record: &Value) -> Value {
    any(&record["body"])
}

#[test]
fn the_log_and_each_ended_allocation_are_exported() {
    let folder = tempfile::tempdir().unwrap();
    let (headers, events) = (folder.path().join("headers"), folder.path().join("events"));
    std::fs::write(
        &headers,
        "Authorization: Bearer t0ken\nX-Scope-OrgID: turn\n",
    )
    .unwrap();
    let collector = Collector::start([]);
    let config = collector.config(&format!(
        "headers_file = {headers:?}\n[[events.sinks]]\nurl = \"file:{}\"\nkinds = [\"allocation_closed\"]\n\
         [log]\nformat = \"json\"\n",
        events.display()
    ));
    let (_config, server) = Serve::with_ann(&config);
    probe(&server);
    eventually("both spans are there", || collector.spans().len() == 2);
    eventually("both are counted", || {
        server.metric("hairpin_telemetry_sent_total", "signal=\"traces\"") == Some(2.0)
    });
    let log = server.stop();
    for request in collector.requests() {
        assert_eq!(request.headers["authorization"], "Bearer t0ken");
        assert_eq!(request.headers["x-scope-orgid"], "turn");
    }
    // A span has the fields of its event, with the same names.
    let (events, spans) = (lines(&events), collector.spans());
    let mut ids = BTreeSet::new();
    for span in &spans {
        assert_eq!(span["name"], "TURN allocation");
        let fields = attributes(&span["attributes"]);
        let is_its_event = |event: &&Map<String, Value>| event["id"] == fields["id"];
        let mut event = events.iter().find(is_its_event).unwrap().clone();
        event.remove("kind");
        let end = event.remove("unix_ms").unwrap().as_u64().unwrap();
        let begin = end - event["duration_ms"].as_u64().unwrap();
        assert_eq!(integer::<u64>(&span["endTimeUnixNano"]), end * 1_000_000);
        assert_eq!(
            integer::<u64>(&span["startTimeUnixNano"]),
            begin * 1_000_000
        );
        assert_eq!(fields["user"], "ann");
        assert_eq!(fields, event);
        ids.extend([id(&span["traceId"], 16), id(&span["spanId"], 8)]);
    }
    assert_eq!(ids.len(), 4);
    the_collector_has_the_log(&collector, &log);
}

/// The log records are the lines of the log, with their fields. The last lines come after the end of the export.
fn the_collector_has_the_log(collector: &Collector, log: &str) {
    let mut records = collector.logs().into_iter();
    let lines = log.lines().filter(|line| line.starts_with('{'));
    let lines: Vec<Map<String, Value>> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let named = |name: &str| lines.iter().find(|line| line["message"] == name);
    for name in ["serving", "allocation opened", "allocation closed"] {
        let line = named(name).unwrap_or_else(|| panic!("{name} is not in {log}"));
        let record = records.by_ref().find(|record| message_of(record) == name);
        let record = record.unwrap_or_else(|| panic!("{name} is not exported"));
        let mut line = line.clone();
        let level = line.remove("level");
        line.remove("timestamp");
        line.remove("message");
        assert_eq!(level.as_ref(), Some(&record["severityText"]));
        let fields = attributes(&record["attributes"]);
        let names = |object: &Map<String, Value>| object.keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(names(&fields), names(&line));
        if name == "serving" {
            assert_eq!(fields, line);
        }
    }
}

#[test]
fn an_ended_call_is_a_span_with_its_attempts_and_responses() {
    let folder = tempfile::tempdir().unwrap();
    let events = folder.path().join("events");
    let collector = Collector::start([]);
    let sink = format!(
        "[[events.sinks]]\nurl = \"file:{}\"\nkinds = [\"call_closed\"]\n",
        events.display()
    );
    let server = sip_insight::Server::start(
        2,
        &collector.config(&format!("signals = [\"traces\"]\n{sink}")),
    );
    let mut caller = Phone::udp_at(server.sip, "user0");
    let (mut busy, mut called) = (
        Phone::udp_at(server.sip, "user1"),
        Phone::tcp_at(server.sip, "user1"),
    );
    for phone in [&mut caller, &mut busy, &mut called] {
        phone.register();
    }
    caller.ask(Method::Invite, "sip:user1@example.com", "one");
    let (invite, other) = (called.expect("INVITE "), busy.expect("INVITE "));
    busy.respond(&other, "486 Busy Here");
    busy.expect("ACK ");
    called.respond(&invite, "180 Ringing");
    caller.expect("SIP/2.0 180");
    called.respond(&invite, "200 OK");
    let ok = caller.expect("SIP/2.0 200");
    caller.in_dialog(&ok, "ACK");
    called.expect("ACK ");
    called.hang_up(&invite);
    let bye = caller.expect("BYE ");
    caller.respond(&bye, "200 OK");
    called.expect("SIP/2.0 200");
    eventually("the span is there", || !collector.spans().is_empty());
    server.0.serve.stop();
    let (spans, events) = (collector.spans(), lines(&events));
    let ([span], [event]) = (&spans[..], &events[..]) else {
        panic!("{spans:?} {events:?}");
    };
    assert_eq!(span["name"], "SIP call");
    let fields = attributes(&span["attributes"]);
    assert_eq!(
        (&fields["failed"], &fields["call_id"]),
        (&"486".into(), &"one@test".into())
    );
    for (name, value) in &fields {
        assert_eq!(event.get(name), Some(value), "{name}");
    }
    let begin: u64 = integer(&span["startTimeUnixNano"]);
    let moments = list(&span["events"]).iter().map(|moment| {
        let after = integer::<u64>(&moment["timeUnixNano"]) - begin;
        (moment["name"].as_str().unwrap(), after / 1_000_000)
    });
    let ms = |name: &str| event[name].as_u64().unwrap();
    let failed_ms = event["failed_ms"][0].as_u64().unwrap();
    let expected = [
        ("attempt failed", failed_ms),
        ("ringing", ms("ring_ms")),
        ("answered", ms("answer_ms")),
    ];
    assert!(moments.eq(expected), "{span}");
    assert!(failed_ms <= ms("ring_ms"), "{event:?}");
    let outcome = attributes(&span["events"][0]["attributes"]);
    assert_eq!(outcome["outcome"], "486");
}

#[test]
fn a_collector_that_is_down_or_busy_gets_everything_later() {
    // The first request has no response. The second must not be repeated for a second.
    let collector = Collector::start([
        Reply::Close,
        Reply::Status(503, "Retry-After: 1\r\n"),
        Reply::Status(429, ""),
        Reply::Status(502, ""),
        Reply::Status(504, ""),
    ]);
    let (_config, server) = Serve::with_ann(&collector.config("signals = [\"traces\"]\n"));
    probe(&server);
    eventually("both spans are there", || collector.spans().len() == 2);
    let failures = server.metric("hairpin_telemetry_send_failures_total", "signal=\"traces\"");
    // The client repeats a request by itself only on a connection that was idle.
    assert_eq!(failures, Some(5.0));
    let requests = collector.requests();
    let [_, busy, next, ..] = &requests[..] else {
        panic!("{requests:?}");
    };
    assert!(next.at - busy.at >= Duration::from_secs(1));
    // A batch that is sent again is the same: the collector can recognise it.
    let bodies: BTreeSet<String> = requests.iter().map(|it| it.body.to_string()).collect();
    let accepted = requests.iter().filter(|it| it.is_accepted);
    assert_eq!(bodies.len(), accepted.count());
    let log = server.stop();
    assert!(
        log.contains("events wait: ") && log.contains("events are sent again"),
        "{log}"
    );
    assert_eq!(collector.spans().len(), 2);
}

#[test]
fn what_a_collector_refuses_is_counted_and_not_sent_again() {
    let collector = Collector::start([
        Reply::Status(400, ""),
        Reply::Accept(r#"{"partialSuccess":{"rejectedSpans":"1","errorMessage":"too old"}}"#),
    ]);
    let (_config, server) = Serve::with_ann(&collector.config("signals = [\"traces\"]\n"));
    let lost = |count: f64| {
        server.metric(
            "hairpin_telemetry_lost_total",
            "signal=\"traces\",reason=\"refused\"",
        ) == Some(count)
    };
    allocate(&server);
    eventually("a batch is refused", || lost(1.0));
    allocate(&server);
    eventually("a span is rejected", || lost(2.0));
    allocate(&server);
    eventually("the next one is accepted", || {
        server.metric("hairpin_telemetry_sent_total", "signal=\"traces\"") == Some(1.0)
    });
    let log = server.stop();
    for part in ["events lost: the collector responds with 400", "too old"] {
        assert!(log.contains(part), "{log}");
    }
    let bodies: BTreeSet<_> = collector
        .requests()
        .iter()
        .map(|it| it.body.to_string())
        .collect();
    assert_eq!((bodies.len(), collector.requests().len()), (3, 3));
}

#[test]
fn a_silent_collector_costs_a_bounded_queue_and_no_allocation() {
    let collector = Collector::start(vec![Reply::Silent; 100]);
    let (_config, server) = Serve::with_ann(&collector.config("queue = 16\n"));
    let metric = |name: &str, labels: &str| server.metric(name, labels).unwrap();
    eventually("the first log records are on their way", || {
        !collector.requests().is_empty()
    });
    // Each probe makes four log lines.
    for _ in 0..8 {
        probe(&server);
    }
    let waiting = metric("hairpin_telemetry_waiting", "signal=\"logs\"");
    let full = metric(
        "hairpin_telemetry_lost_total",
        "signal=\"logs\",reason=\"full\"",
    );
    // One batch is on its way, and 16 records wait.
    assert!(
        (16.0..=16.0 + 256.0).contains(&waiting) && full > 0.0,
        "{waiting} {full}"
    );
    let log = server.stop();
    assert!(log.contains("events lost: the server has ended"), "{log}");
}

#[test]
fn the_lines_of_an_export_are_in_the_log_and_not_exported() {
    let collector = Collector::start([Reply::Status(503, "")]);
    let (_config, server) = Serve::with_ann(&collector.config("signals = [\"logs\"]\n"));
    eventually("it has worked again", || !collector.logs().is_empty());
    allocate(&server);
    let has = |message: &str| collector.logs().iter().any(|it| message_of(it) == message);
    eventually("a later line is exported", || has("allocation closed"));
    let log = server.stop();
    assert!(
        log.contains("events wait: the collector responds with 503"),
        "{log}"
    );
    let is_of_export = |record: &Value| message_of(record).as_str().unwrap().starts_with("events ");
    assert!(!collector.logs().iter().any(is_of_export));
}
