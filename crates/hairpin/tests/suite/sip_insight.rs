//! `hairpin sip bindings`, `calls`, `trunks` and `trace` ask a running server, with real phones and trunks.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::ops::Deref;
use std::process::Output;
use std::time::{Duration, Instant};

use crate::common::api::TOKEN;
use crate::common::sip::{SipConfig, SipServer};
use crate::common::{Serve, fails, run, stderr, stdout};
use crate::sip_client::phone::{Phone, credentials_of};
use serde_json::{Value, json};
use sip::{HeaderKind, Method};

/// Longer than anything here takes, also on a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A server with SIP, a control socket and the API.
pub(crate) struct Server(pub(crate) SipServer);

impl Deref for Server {
    type Target = SipServer;

    fn deref(&self) -> &SipServer {
        &self.0
    }
}

impl Server {
    pub(crate) fn start(users: usize, more: &str) -> Server {
        Server::start_with(users, "", more)
    }

    /// With these keys of `[sip]`.
    fn start_with(users: usize, keys: &str, more: &str) -> Server {
        let names: Vec<String> = (0..users).map(|number| format!("user{number}")).collect();
        Server(SipServer::start(&SipConfig {
            server: "control_socket = \"FOLDER/control.sock\"\n",
            admin: &format!("tokens = [{TOKEN:?}]\n"),
            sip: &format!("call_log = true\n{keys}"),
            users: &names.iter().map(String::as_str).collect::<Vec<_>>(),
            more,
            ..SipConfig::default()
        }))
    }

    /// Runs `hairpin sip ARGS` at this server.
    fn sip(&self, args: &[&str]) -> Output {
        let socket = self.folder.path().join("control.sock");
        let at = ["--socket", socket.to_str().unwrap()];
        run(&[&["sip"], args, &at[..]].concat())
    }

    /// A request to the API. Returns the JSON of its response.
    fn api(&self, method: &str, path: &str) -> Value {
        let address = self.serve.value("admin").split('/').nth(2).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        let request = format!(
            "{method} /api/v1{path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (_, body) = text.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The objects that a command prints, one per line.
    fn objects(&self, args: &[&str]) -> Vec<Value> {
        let output = self.sip(args);
        let text = stdout(&output);
        let objects = text.lines().map(serde_json::from_str);
        objects
            .collect::<Result<_, _>>()
            .unwrap_or_else(|error| panic!("{error}: {text}{}", stderr(&output)))
    }
}

#[test]
fn bindings_are_listed_in_parts_and_by_address() {
    const PHONES: usize = 300;
    let server = Server::start(PHONES, "");
    let phones: Vec<Phone> = (0..PHONES)
        .map(|number| {
            let user = format!("user{number}");
            let mut phone = match number % 2 {
                0 => Phone::udp_at(server.sip, &user),
                _ => Phone::tcp_at(server.sip, &user),
            };
            phone.register();
            phone
        })
        .collect();
    let all = server.objects(&["bindings", "--json"]);
    let mut aors: Vec<&str> = all.iter().map(|it| it["aor"].as_str().unwrap()).collect();
    aors.sort_unstable();
    aors.dedup();
    assert_eq!((all.len(), aors.len()), (PHONES, PHONES));
    let workers = all.iter().filter(|it| it["worker"] == 0).count();
    assert!(workers > 0 && workers < PHONES, "both workers have some");
    let one = server.objects(&["bindings", "--json", "--aor", "user7@example.com"]);
    let [one] = &one[..] else {
        panic!("{one:?}");
    };
    assert_eq!(one["transport"], "tcp");
    assert_eq!(
        format!("<{}>", one["contact"].as_str().unwrap()),
        phones[7].contact()
    );
    assert_eq!(one["user_agent"], crate::sip_client::phone::AGENT);
    let expires = one["expires_s"].as_u64().unwrap();
    assert!((3000..=3600).contains(&expires), "{one}");
    let text = stdout(&server.sip(&["bindings", "--limit", "3"]));
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.contains("  expires in "), "{text}");
    let agent = format!("  user agent {}\n", crate::sip_client::phone::AGENT);
    assert_eq!(text.matches(&agent).count(), 3, "{text}");
    assert!(
        server
            .objects(&["bindings", "--json", "--aor", "nobody@example.com"])
            .is_empty()
    );
    fails(
        &server.sip(&["bindings", "--aor", "alice"]),
        1,
        "is not an address of record",
    );
    the_api_has_the_same_pages(&server, &aors);
    bindings_are_removed(&server, &phones[7].contact());
}

/// The API lists each binding once, in pages of the wanted length, and finds one.
fn the_api_has_the_same_pages(server: &Server, aors: &[&str]) {
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = server.api("GET", &format!("/sip/bindings?limit=70{after}"));
        let list = page["bindings"].as_array().unwrap();
        assert!(list.len() <= 70, "{}", list.len());
        seen.extend(list.iter().map(|it| it["aor"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, aors);
    let found = server.api("GET", "/sip/bindings?search=USER299@");
    assert_eq!(found["bindings"][0]["aor"], "user299@example.com");
    let wrong = server.api("GET", "/sip/bindings?after=x");
    assert_eq!(wrong["status"], 400, "{wrong}");
    assert_eq!(server.api("GET", "/sip/calls")["calls"], json!([]));
    assert_eq!(server.api("GET", "/sip/trunks")["trunks"], json!([]));
}

/// One binding by the API, one by the command.
fn bindings_are_removed(server: &Server, contact: &str) {
    let contact = contact.trim_matches(['<', '>']);
    let path = format!(
        "/sip/bindings?aor=user7@example.com&contact={}",
        contact.replace(';', "%3B").replace('=', "%3D")
    );
    assert_eq!(server.api("DELETE", &path)["removed"], 1);
    let again = server.api("DELETE", &path);
    assert_eq!(again["status"], 404, "{again}");
    let of_user = ["bindings", "--json", "--aor", "user7@example.com"];
    assert!(server.objects(&of_user).is_empty());
    let removed = server.sip(&["remove", "user8@example.com"]);
    assert_eq!(stdout(&removed), "1 binding removed\n");
    let again = server.sip(&["remove", "user8@example.com"]);
    fails(&again, 1, "has no such binding");
    assert_eq!(server.objects(&["bindings", "--json"]).len(), 298);
}

#[test]
fn a_trunk_says_why_it_gets_no_calls() {
    let (alive, dead) = (socket(), socket());
    let more = format!(
        "[[sip.trunk]]\nname = \"alive\"\nto = [\"sip:{}\"]\nprobe_interval = \"1s\"\n\
         [[sip.trunk]]\nname = \"dead\"\nto = [\"sip:{}\"]\nprobe_interval = \"1s\"\nprobe_failures = 1\n",
        alive.local_addr().unwrap(),
        dead.local_addr().unwrap(),
    );
    let server = Server::start(1, &more);
    std::thread::spawn(move || answer_options(&alive));
    let end = Instant::now() + MAX_WAIT;
    let trunks = loop {
        let trunks = server.objects(&["trunks", "--json"]);
        let is_done = trunks[1]["addresses"][0]["state"] == "down"
            && trunks[0]["probes_answered"].as_u64() > Some(0);
        if is_done {
            break trunks;
        }
        assert!(Instant::now() < end, "{trunks:?}");
        std::thread::sleep(Duration::from_millis(200));
    };
    assert_eq!(trunks[0]["name"], "alive");
    assert_eq!(trunks[0]["addresses"][0]["state"], "up");
    assert_eq!(trunks[0]["addresses"][0]["last_error"], Value::Null);
    assert_eq!(trunks[1]["addresses"][0]["last_error"], "no response");
    let output = server.sip(&["trunks"]);
    assert_eq!(output.status.code(), Some(1), "a trunk has no address");
    let text = stdout(&output);
    assert!(
        text.contains("down, ") && text.contains("last error no response"),
        "{text}"
    );
    fails(&server.sip(&["trace", "x"]), 1, "set sip.trace_memory");
}

fn shows_the_answered_call(server: &Server) {
    let [call] = &server.objects(&["calls", "--json"])[..] else {
        panic!("one call");
    };
    assert_eq!(
        (&call["state"], &call["call_id"]),
        (&"answered".into(), &"one@test".into())
    );
    assert_eq!(call["target"], "user1@example.com");
    let expires = call["expires_s"].as_u64().unwrap();
    assert!((1700..=43_200).contains(&expires), "{call}");
    let text = stdout(&server.sip(&["calls"]));
    assert!(
        text.contains("one@test  answered for ") && text.contains(" -> user1@example.com (TCP "),
        "{text}"
    );
}

/// Ends the server. Returns the lines that it wrote of calls.
fn call_lines(server: Server) -> Vec<Value> {
    server.serve.signal("TERM");
    let (_, log) = server.0.serve.wait();
    let lines = log.lines().filter(|line| line.contains("\"call ended\""));
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_call_has_one_line_with_its_times_and_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let events = folder.path().join("events.jsonl");
    let more = format!(
        "[log]\nformat = \"json\"\n[[events.sinks]]\nurl = \"file:{}\"\n",
        events.display()
    );
    let server = Server::start(2, &more);
    let mut caller = Phone::udp_at(server.sip, "user0");
    let mut called = Phone::tcp_at(server.sip, "user1");
    caller.register();
    called.register();
    caller.ask(Method::Invite, "sip:user1@example.com", "one");
    let invite = called.expect("INVITE ");
    called.respond(&invite, "180 Ringing");
    caller.expect("SIP/2.0 180");
    let ringing = server.objects(&["calls", "--json"]);
    assert_eq!(
        (ringing.len(), &ringing[0]["state"]),
        (1, &"ringing".into())
    );
    assert_eq!(ringing[0]["target"], Value::Null);
    called.respond(&invite, "200 OK");
    let ok = caller.expect("SIP/2.0 200");
    caller.in_dialog(&ok, "ACK");
    called.expect("ACK ");
    shows_the_answered_call(&server);
    called.hang_up(&invite);
    let bye = caller.expect("BYE ");
    caller.respond(&bye, "200 OK");
    called.expect("SIP/2.0 200");
    assert!(server.objects(&["calls", "--json"]).is_empty());
    let none = stderr(&server.sip(&["calls"]));
    assert!(none.contains("no recorded call; 0 dialogs"), "{none}");
    caller.ask(Method::Invite, "sip:user1@example.com", "two");
    let invite = called.expect("INVITE ");
    called.respond(&invite, "486 Busy Here");
    caller.expect("SIP/2.0 486");
    let lines = call_lines(server);
    let [one, two] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert_eq!(
        (&one["call_id"], &one["source"]),
        (&"one@test".into(), &"user0".into())
    );
    assert_eq!(one["to"], "sip:user1@example.com");
    assert_eq!(
        (&one["source_transport"], &one["target_transport"]),
        (&"UDP".into(), &"TCP".into())
    );
    assert_eq!(one["target"], "user1@example.com");
    assert_eq!(
        (&one["code"], &one["ended_by"]),
        (&200.into(), &"called".into())
    );
    let ms = |name: &str| one[name].as_u64().unwrap();
    assert!(
        ms("ring_ms") <= ms("answer_ms") && ms("answer_ms") <= ms("end_ms"),
        "{one}"
    );
    assert_eq!(
        (&two["code"], &two["ended_by"]),
        (&486.into(), &"called".into())
    );
    assert_eq!(two["answer_ms"], Value::Null);
    the_events_say_the_same(&events, (one, two));
}

/// An event has the fields of the log line, and those of a call in progress.
fn the_events_say_the_same(file: &std::path::Path, (one, two): (&Value, &Value)) {
    let text = std::fs::read_to_string(file).unwrap();
    let events: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let kinds: Vec<&str> = events
        .iter()
        .map(|it| it["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["call_opened", "call_closed", "call_closed"]);
    for (event, line) in events[1..].iter().zip([one, two]) {
        for field in [
            "call_id",
            "from",
            "to",
            "source",
            "target",
            "tried",
            "code",
            "ended_by",
            "source_address",
        ] {
            assert_eq!(event[field], line[field], "{field}");
        }
        assert_eq!(event["duration_ms"], line["end_ms"]);
    }
    let opened = &events[0];
    assert_eq!(
        (&opened["call_id"], &opened["code"]),
        (&one["call_id"], &200.into())
    );
    assert_eq!(opened["ended_by"], Value::Null);
    assert!(opened["answer_ms"].as_u64() <= opened["duration_ms"].as_u64());
}

/// Sends a REGISTER with a wrong password.
fn fail_to_register(phone: &mut Phone, user: &str, call: &str) {
    let request = phone.request("REGISTER", "sip:example.com", call, 1, "");
    phone.send(&request);
    let challenge = phone.expect("SIP/2.0 401");
    let (kind, claimed) = (HeaderKind::Authorization, (user, "a wrong password"));
    let line = credentials_of(
        &challenge,
        kind,
        claimed,
        Method::Register,
        "sip:example.com",
    );
    let request = phone.request("REGISTER", "sip:example.com", call, 2, &line);
    phone.send(&request);
    phone.expect("SIP/2.0 401");
}

#[test]
fn a_refreshed_session_and_a_wrong_digest_are_events() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    let more = format!(
        "[[events.sinks]]\nurl = \"file:{}\"\nkinds = [\"call_refreshed\", \"authentication_failed\"]\n",
        file.display()
    );
    let server = Server::start(2, &more);
    let mut caller = Phone::udp_at(server.sip, "user0");
    let mut called = Phone::tcp_at(server.sip, "user1");
    caller.register();
    called.register();
    caller.ask(Method::Invite, "sip:user1@example.com", "one");
    let invite = called.expect("INVITE ");
    called.respond(&invite, "200 OK");
    let ok = caller.expect("SIP/2.0 200");
    caller.in_dialog(&ok, "ACK");
    called.expect("ACK ");
    // RFC 4028 §7.4: an UPDATE or a re-INVITE that is accepted refreshes the session; one that is not does not.
    for (method, code) in [
        ("UPDATE", "488 Not Acceptable Here"),
        ("UPDATE", "200 OK"),
        ("INVITE", "200 OK"),
    ] {
        caller.in_dialog(&ok, method);
        let request = called.expect(method);
        called.respond(&request, code);
        caller.expect(&format!("SIP/2.0 {code}"));
    }
    caller.in_dialog(&ok, "ACK");
    called.expect("ACK ");

    let mut guessing = Phone::udp_at(server.sip, "user0");
    fail_to_register(&mut guessing, "user0", "wrong");
    // Each worker reports one failure per second.
    std::thread::sleep(Duration::from_millis(1_100));
    let mut unknown = Phone::tcp_at(server.sip, "nobody");
    fail_to_register(&mut unknown, "nobody", "unknown");
    server.serve.signal("TERM");
    server.0.serve.wait();
    let text = std::fs::read_to_string(&file).unwrap();
    let events: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [first, refreshed, wrong, nobody] = &events[..] else {
        panic!("{events:#?}");
    };
    for event in [first, refreshed] {
        assert_eq!(
            (&event["kind"], &event["call_id"]),
            (&"call_refreshed".into(), &"one@test".into())
        );
    }
    assert_eq!(
        (&refreshed["source"], &refreshed["target"]),
        (&"user0".into(), &"user1@example.com".into())
    );
    assert_eq!(
        (&refreshed["code"], &refreshed["ended_by"]),
        (&200.into(), &Value::Null)
    );
    assert!(refreshed["duration_ms"].as_u64() >= refreshed["answer_ms"].as_u64());
    for (event, user, transport) in [(wrong, "user0", "UDP"), (nobody, "nobody", "TCP")] {
        let expected = json!({
            "kind": "authentication_failed", "id": event["id"], "unix_ms": event["unix_ms"], "protocol": "sip",
            "client": event["client"], "transport": transport, "realm": "example.com", "user": user,
            "reason": "wrong_password", "omitted": 0,
        });
        assert_eq!(event, &expected);
    }
    let client = wrong["client"].as_str().unwrap();
    assert!(guessing.contact().contains(client), "{client}");
}

#[test]
fn calls_that_are_refused_or_in_progress_at_the_end_have_a_line() {
    let server = Server::start(2, "[log]\nformat = \"json\"\n");
    let mut caller = Phone::udp_at(server.sip, "user0");
    let mut called = Phone::tcp_at(server.sip, "user1");
    caller.register();
    called.register();
    caller.ask(Method::Invite, "sip:nobody@example.com", "refused");
    caller.expect("SIP/2.0 404");
    caller.ask(Method::Invite, "sip:user1@example.com", "ringing");
    let ringing = called.expect("INVITE ");
    called.respond(&ringing, "180 Ringing");
    caller.expect("SIP/2.0 180");
    caller.ask(Method::Invite, "sip:user1@example.com", "answered");
    let invite = called.expect("INVITE ");
    called.respond(&invite, "200 OK");
    caller.expect("SIP/2.0 200");
    let lines = call_lines(server);
    let [refused, last @ ..] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert_eq!(
        (&refused["call_id"], &refused["code"]),
        (&"refused@test".into(), &404.into())
    );
    assert_eq!(
        (&refused["source"], &refused["ended_by"]),
        (&"user0".into(), &"proxy".into())
    );
    let ended: Vec<_> = last
        .iter()
        .map(|it| (&it["call_id"], &it["code"], &it["ended_by"]))
        .collect();
    let by_server =
        |call: &str, code: u16| (Value::from(call), Value::from(code), Value::from("server"));
    let (ringing, answered) = (
        by_server("ringing@test", 0),
        by_server("answered@test", 200),
    );
    assert_eq!(ended.len(), 2, "{last:?}");
    for (call, code, by) in [&ringing, &answered] {
        assert!(ended.contains(&(call, code, by)), "{last:?}");
    }
}

/// Makes a call. Returns what the server must have received and sent: the direction, the transport, and how the message
/// begins.
fn call(server: &Server) -> Vec<(&'static str, &'static str, &'static str)> {
    let mut caller = Phone::udp_at(server.sip, "user0");
    let mut called = Phone::tcp_at(server.sip, "user1");
    caller.register();
    called.register();
    caller.ask(Method::Invite, "sip:user1@example.com", "one");
    let invite = called.expect("INVITE ");
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
    vec![
        ("received", "UDP", "INVITE "),
        ("sent", "UDP", "SIP/2.0 407 "),
        ("received", "UDP", "ACK "),
        ("received", "UDP", "INVITE "),
        ("sent", "TCP", "INVITE "),
        ("received", "TCP", "SIP/2.0 180 "),
        ("sent", "UDP", "SIP/2.0 180 "),
        ("received", "TCP", "SIP/2.0 200 "),
        ("sent", "UDP", "SIP/2.0 200 "),
        ("received", "UDP", "ACK "),
        ("sent", "TCP", "ACK "),
        ("received", "TCP", "BYE "),
        ("sent", "UDP", "BYE "),
        ("received", "UDP", "SIP/2.0 200 "),
        ("sent", "TCP", "SIP/2.0 200 "),
    ]
}

/// The chunks of a HEP version 3 packet, by type. Panics if lengths do not fit.
fn hep_chunks(packet: &[u8]) -> HashMap<u16, Vec<u8>> {
    let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    assert_eq!(&packet[..4], b"HEP3");
    assert_eq!(usize::from(word(4)), packet.len());
    let (mut chunks, mut at) = (HashMap::new(), 6);
    while at < packet.len() {
        assert_eq!(word(at), 0, "the vendor of standard chunks");
        let length = usize::from(word(at + 4));
        let value = packet[at + 6..at + length].to_vec();
        assert!(chunks.insert(word(at + 2), value).is_none());
        at += length;
    }
    chunks
}

/// Checks a HEP packet against the same message of `hairpin sip trace`.
fn is_same(packet: &HashMap<u16, Vec<u8>>, message: &Value) -> bool {
    let number = |kind: u16| {
        let bytes = packet[&kind].iter();
        bytes.fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let address = |ip: u16, port: u16| {
        let ip: [u8; 4] = packet[&ip][..].try_into().unwrap();
        SocketAddr::from((ip, u16::try_from(number(port)).unwrap())).to_string()
    };
    let (source, destination) = match message["direction"] == "sent" {
        true => ("local", "remote"),
        false => ("remote", "local"),
    };
    let protocol = if message["transport"] == "UDP" { 17 } else { 6 };
    assert_eq!((number(1), number(11), number(12)), (2, 1, 7));
    assert_eq!(packet[&14], b"homer");
    number(9) * 1_000_000 + number(10) == message["unix_us"].as_u64().unwrap()
        && packet[&15] == message["message"].as_str().unwrap().as_bytes()
        && number(2) == protocol
        && message[source] == address(3, 7)
        && message[destination] == address(4, 8)
}

#[test]
fn a_trace_shows_each_message_of_a_call_in_order() {
    let collector = socket();
    collector.set_read_timeout(Some(MAX_WAIT)).unwrap();
    let keys = format!(
        "trace_memory = \"4MiB\"\ntrace_hep = [\"{}\"]\ntrace_hep_id = 7\ntrace_hep_password = \"homer\"\n",
        collector.local_addr().unwrap()
    );
    let server = Server::start_with(2, &keys, "");
    let expected = call(&server);
    let messages = server.objects(&["trace", "one@test", "--json"]);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut seen = messages
        .iter()
        .map(|it| {
            (
                text(&it["direction"]),
                text(&it["transport"]),
                text(&it["message"]),
            )
        })
        .filter(|(_, _, message)| !message.starts_with("SIP/2.0 100 "))
        .collect::<Vec<_>>();
    // A busy machine may repeat messages over UDP.
    seen.dedup();
    assert_eq!(seen.len(), expected.len(), "{seen:#?}");
    for (seen, expected) in seen.iter().zip(&expected) {
        assert_eq!(
            (&seen.0[..], &seen.1[..]),
            (expected.0, expected.1),
            "{seen:?}"
        );
        assert!(seen.2.starts_with(expected.2), "{seen:?}");
    }
    let ladder = stdout(&server.sip(&["trace", "one@test"]));
    assert_eq!(ladder.lines().count(), 1 + messages.len(), "{ladder}");
    assert!(ladder.contains(" 180 Ringing (INVITE) "), "{ladder}");
    let file = server.folder.path().join("call.pcap");
    let written = server.sip(&["trace", "one@test", "--pcap", file.to_str().unwrap()]);
    assert!(written.status.success(), "{}", stderr(&written));
    let file = std::fs::read(file).unwrap();
    let bytes: usize = messages.iter().map(|it| text(&it["message"]).len()).sum();
    // A header of 24 bytes; per message a header of 16 bytes, IPv4 and UDP.
    assert_eq!(file.len(), 24 + messages.len() * (16 + 20 + 8) + bytes);
    let unknown = server.sip(&["trace", "other@test"]);
    fails(&unknown, 1, "no message with the Call-ID `other@test`");
    let (mut left, mut packet) = (messages, [0; 65_535]);
    while !left.is_empty() {
        let length = collector.recv(&mut packet).expect("a packet per message");
        let chunks = hep_chunks(&packet[..length]);
        left.retain(|message| !is_same(&chunks, message));
    }
    malformed_messages_are_traced(&server);
}

fn malformed_messages_are_traced(server: &Server) {
    let mut phone = Phone::tcp_at(server.sip, "user0");
    let request = phone.request("OPTIONS", "sip:user1@example.com", "bad", 1, "");
    phone.send(&request.replace("Content-Length: 0", "Content-Length: -1"));
    phone.expect("SIP/2.0 400");
    let messages = server.objects(&["trace", "bad@test", "--json"]);
    let directions: Vec<&Value> = messages.iter().map(|it| &it["direction"]).collect();
    assert_eq!(directions, ["received", "sent"], "{messages:?}");
}

#[test]
fn a_server_without_sip_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let set = format!("server.control_socket={}", socket.display());
    let _serve = Serve::start(&["--set", &set]);
    let output = run(&["sip", "trunks", "--socket", socket.to_str().unwrap()]);
    fails(&output, 1, "no SIP listener");
}

fn socket() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").unwrap()
}

/// Answers OPTIONS for as long as the test runs.
fn answer_options(socket: &UdpSocket) {
    let mut buffer = [0; 4096];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let copied: String = text
            .split_inclusive("\r\n")
            .filter(|line| {
                let names = ["Via:", "From:", "To:", "Call-ID:", "CSeq:"];
                names.iter().any(|name| line.starts_with(name))
            })
            .collect();
        let answer = format!("SIP/2.0 200 OK\r\n{copied}Content-Length: 0\r\n\r\n");
        socket.send_to(answer.as_bytes(), from).unwrap();
    }
}
