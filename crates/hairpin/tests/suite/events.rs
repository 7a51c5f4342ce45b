//! Events of allocations in a file and at a service over HTTP. Redis and NATS: `cargo xtask stores --only redis`.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::controlled::eventually;
use crate::common::{Serve, fails, file, run, stderr, stdout};
use serde_json::Value;

/// How long a silent service keeps its connection open.
const SILENCE: Duration = Duration::from_secs(30);

/// Makes two allocations, relays between them, and ends them.
fn probe(server: &Serve, user: &str) -> bool {
    let target = server.address().to_string();
    run(&["probe", "turn", &target, "--user", user])
        .status
        .success()
}

fn events(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|it| it["kind"].as_str().unwrap())
        .collect()
}

#[test]
fn a_file_has_the_life_of_each_allocation_with_its_totals() {
    let folder = tempfile::tempdir().unwrap();
    let (all, some) = (folder.path().join("all"), folder.path().join("some"));
    let (_config, server) = Serve::with_ann(&format!(
        "[[events.sinks]]\nurl = \"file:{}\"\n[[events.sinks]]\nurl = \"file:{}\"\nkinds = [\"authentication_failed\"]\n",
        all.display(),
        some.display()
    ));
    assert!(probe(&server, "ann:secret"));
    assert!(!probe(&server, "ann:wrong"));
    eventually("all are sent", || {
        server.metric("hairpin_events_sent_total", "sink=\"1\"") >= Some(3.0)
    });
    server.stop();
    let all = events(&all);
    let of_ann: Vec<&Value> = all
        .iter()
        .filter(|it| it["kind"] != "authentication_failed")
        .collect();
    let opened = of_ann
        .iter()
        .find(|it| it["kind"] == "allocation_opened")
        .unwrap();
    assert_eq!(
        (&opened["user"], &opened["realm"]),
        (&"ann".into(), &"example.org".into())
    );
    assert_eq!(
        (&opened["transport"], &opened["lifetime_s"]),
        (&"UDP".into(), &600.into())
    );
    let is_its_end =
        |it: &&&Value| it["kind"] == "allocation_closed" && it["client"] == opened["client"];
    let closed = of_ann.iter().find(is_its_end).unwrap();
    assert_eq!(
        (&closed["client"], &closed["relayed"]),
        (&opened["client"], &opened["relayed"])
    );
    assert_eq!(closed["reason"], "refreshed_to_zero");
    assert!(
        closed["to_peers_packets"].as_u64() > Some(0)
            && closed["to_client_bytes"].as_u64() > Some(0),
        "{closed}"
    );
    assert!(closed["unix_ms"].as_u64() >= opened["unix_ms"].as_u64());
    let some = events(&some);
    assert_eq!(kinds(&some), ["authentication_failed"]);
    // The client hides the name (USERHASH), and gives its SHA-256.
    let user = some[0]["user"].as_str().unwrap();
    assert!(
        user.len() == 64 && some[0]["reason"] == "wrong_password",
        "{some:?}"
    );
    assert_eq!(
        (&some[0]["protocol"], &some[0]["omitted"]),
        (&"turn".into(), &0.into())
    );
    let mut ids: Vec<&str> = all.iter().map(|it| it["id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all.len());
}

/// The status that the service responded with, and the events of the request.
type Bodies = Vec<(u16, Vec<Value>)>;

/// A service that responds with a status that the test can change.
struct Service {
    address: SocketAddr,
    status: Arc<AtomicU16>,
    /// All bodies, also of requests that were refused.
    bodies: Arc<Mutex<Bodies>>,
}

/// With this status the service never responds.
const SILENT: u16 = 0;

impl Service {
    fn start(status: u16) -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let service = Service {
            address: listener.local_addr().unwrap(),
            status: Arc::new(AtomicU16::new(status)),
            bodies: Arc::default(),
        };
        let (status, bodies) = (Arc::clone(&service.status), Arc::clone(&service.bodies));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (status, bodies) = (Arc::clone(&status), Arc::clone(&bodies));
                std::thread::spawn(move || converse(stream, &status, &bodies));
            }
        });
        service
    }

    fn sink(&self, more: &str) -> String {
        format!(
            "[[events.sinks]]\nurl = \"http://{}/hook\"\n{more}",
            self.address
        )
    }

    /// The events of all requests that were accepted.
    fn accepted(&self) -> Vec<Value> {
        let bodies = self.bodies.lock().unwrap();
        let accepted = bodies.iter().filter(|(status, _)| *status == 204);
        accepted.flat_map(|(_, events)| events.clone()).collect()
    }

    /// Asserts that no event came twice, whatever the service said.
    fn has_each_once(&self) {
        let bodies = self.bodies.lock().unwrap();
        let all = bodies.iter().flat_map(|(_, events)| events);
        let mut ids: Vec<&str> = all.map(|it| it["id"].as_str().unwrap()).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!((ids.len(), count), (4, 4));
    }
}

fn converse(stream: TcpStream, status: &AtomicU16, bodies: &Mutex<Bodies>) {
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let status = status.load(Ordering::Relaxed);
        let events = serde_json::from_slice(&body).unwrap();
        bodies.lock().unwrap().push((status, events));
        if status == SILENT {
            std::thread::sleep(SILENCE);
            return;
        }
        let response = format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n");
        if writer.write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}

#[test]
fn a_service_that_fails_for_a_while_gets_each_event_in_the_end() {
    let service = Service::start(503);
    let (_config, server) =
        Serve::with_ann(&service.sink("kinds = [\"allocation_opened\", \"allocation_closed\"]\n"));
    for _ in 0..5 {
        assert!(
            probe(&server, "ann:secret"),
            "relaying does not depend on the sink"
        );
    }
    eventually("an attempt fails", || {
        server.metric("hairpin_events_send_failures_total", "sink=\"1\"") > Some(0.0)
    });
    assert!(server.metric("hairpin_events_waiting", "kind=\"http\"") > Some(0.0));
    service.status.store(204, Ordering::Relaxed);
    eventually("all are sent", || service.accepted().len() >= 20);
    let log = server.stop();
    assert!(
        log.contains("events wait: ") && log.contains("503"),
        "{log}"
    );
    let all = service.accepted();
    let opened = all.iter().filter(|it| it["kind"] == "allocation_opened");
    assert_eq!((opened.count(), all.len()), (10, 20));
}

#[test]
fn rejected_events_are_not_sent_again() {
    let service = Service::start(422);
    let (_config, server) = Serve::with_ann(&service.sink("kinds = [\"allocation_opened\"]\n"));
    assert!(probe(&server, "ann:secret"));
    eventually("it is refused", || {
        server.metric("hairpin_events_lost_total", "reason=\"refused\"") == Some(2.0)
    });
    service.status.store(204, Ordering::Relaxed);
    assert!(probe(&server, "ann:secret"));
    eventually("the next ones are sent", || service.accepted().len() == 2);
    server.stop();
    service.has_each_once();
}

#[test]
fn a_silent_service_costs_a_bounded_queue_and_no_allocation() {
    let service = Service::start(SILENT);
    let (_config, server) = Serve::with_ann(
        &service.sink("queue = 16\nkinds = [\"allocation_opened\", \"allocation_closed\"]\n"),
    );
    let begun = Instant::now();
    for _ in 0..20 {
        assert!(probe(&server, "ann:secret"));
    }
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "nothing waits for the sink"
    );
    let waiting = server
        .metric("hairpin_events_waiting", "kind=\"http\"")
        .unwrap();
    let full = server
        .metric("hairpin_events_lost_total", "reason=\"full\"")
        .unwrap();
    // One batch is on its way, and 16 events wait.
    assert!((16.0..=32.0).contains(&waiting), "{waiting} wait");
    assert_eq!(waiting + full, 80.0, "four events for each probe");
    let begun = Instant::now();
    let log = server.stop();
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "{:?}",
        begun.elapsed()
    );
    assert!(log.contains("events lost: the server has ended"), "{log}");
}

#[test]
fn at_most_once_drops_a_batch_that_fails() {
    let service = Service::start(500);
    let (_config, server) = Serve::with_ann(
        &service.sink("delivery = \"at_most_once\"\nkinds = [\"allocation_opened\"]\n"),
    );
    assert!(probe(&server, "ann:secret"));
    eventually("it is dropped", || {
        server.metric("hairpin_events_lost_total", "reason=\"failed\"") == Some(2.0)
    });
    service.status.store(204, Ordering::Relaxed);
    assert!(probe(&server, "ann:secret"));
    eventually("the next ones are sent", || service.accepted().len() == 2);
    server.stop();
    service.has_each_once();
}

#[test]
fn a_file_that_cannot_be_opened_stops_the_start() {
    let (_folder, config) = file("[[events.sinks]]\nurl = \"file:/nonexistent/events\"\n");
    let config = config.display().to_string();
    let check = run(&["check", &config]);
    assert!(
        check.status.success(),
        "{}{}",
        stdout(&check),
        stderr(&check)
    );
    let output = run(&[
        "serve",
        "--config",
        &config,
        "--set",
        "server.control_socket=off",
        "--admin",
        "off",
        "--listen",
        "127.0.0.1:0",
    ]);
    fails(
        &output,
        1,
        "sink 1 of events (file): cannot open /nonexistent/events",
    );
}
