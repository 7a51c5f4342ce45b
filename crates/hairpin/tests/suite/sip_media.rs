//! Calls through a trunk whose media go through rtpengine: a small server of the ng protocol takes its place.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::common::sip::{SipConfig, SipServer};
use crate::common::{Serve, fails, file, run};
use crate::sip_client::phone::{Phone, credentials, value};
use sip::{HeaderKind, Method};

/// Longer than anything here takes, also on a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(30);

const OFFER: &str = "v=0\r\no=- 1 1 IN IP4 192.0.2.9\r\nm=audio 9 UDP/TLS/RTP/SAVPF 0\r\n";
const ANSWER: &str = "v=0\r\no=- 2 2 IN IP4 192.0.2.8\r\nm=audio 8 RTP/AVP 0\r\n";

/// How the relay of a test behaves.
#[derive(Clone, Copy, PartialEq)]
enum Mood {
    /// It answers, but only the second copy of each request. Before that, others answer with the right cookie, and it
    /// sends garbage.
    Good,
    Refuses,
    Silent,
}

/// The text of a key of a dictionary of strings, if there is one. The values that the test looks for have no other
/// meaning.
fn text_of(message: &str, key: &str) -> Option<String> {
    let key = format!("{}:{key}", key.len());
    let rest = &message[message.find(&key)? + key.len()..];
    let (len, rest) = rest.split_once(':')?;
    Some(rest[..len.parse().ok()?].to_owned())
}

/// Starts a relay. Gives the requests, each once.
fn relay(mood: Mood) -> (SocketAddr, Receiver<String>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65_535];
        let mut seen = Vec::new();
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let text = String::from_utf8(buffer[..len].to_vec()).unwrap();
            let (cookie, dictionary) = text.split_once(' ').unwrap();
            assert!(cookie.len() >= 16 && cookie.bytes().all(|it| it.is_ascii_hexdigit()));
            let is_first = !seen.contains(&cookie.to_owned());
            if is_first {
                seen.push(cookie.to_owned());
                let _ = sender.send(dictionary.to_owned());
            }
            let sdp = text_of(dictionary, "sdp").unwrap_or_default();
            let sdp = format!("{sdp}a=relayed\r\n");
            let response = match mood {
                Mood::Silent => continue,
                Mood::Refuses => format!("{cookie} d12:error-reason4:full6:result5:errore"),
                Mood::Good if sdp.starts_with("v=0") => {
                    format!("{cookie} d3:sdp{}:{sdp}6:result2:oke", sdp.len())
                }
                Mood::Good => format!("{cookie} d7:createdi17e6:result2:oke"),
            };
            if is_first && mood == Mood::Good {
                let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
                let forged = format!("{cookie} d3:sdp8:forged\r\n6:result2:oke");
                stranger.send_to(forged.as_bytes(), from).unwrap();
                for bad in ["", " ", "d", "zz d6:result2:oke"] {
                    socket.send_to(bad.as_bytes(), from).unwrap();
                }
                continue;
            }
            socket.send_to(response.as_bytes(), from).unwrap();
        }
    });
    (address, receiver)
}

/// A server with a user, whose numbers go to the trunk with this port.
fn serve(relay: SocketAddr, trunk: SocketAddr) -> SipServer {
    SipServer::start(&SipConfig {
        server: "control_socket = \"off\"\n",
        sip: &format!("rtpengine = \"{relay}\"\n"),
        users: &["user0"],
        more: &format!(
            "[[sip.trunk]]\nname = \"carrier\"\nto = [\"sip:{trunk}\"]\nprobe_interval = \"0s\"\nmedia = \"relay\"\n\
             [[sip.route]]\nprefixes = [\"+\"]\ntrunks = [\"carrier\"]\n"
        ),
        ..SipConfig::default()
    })
}

/// The same message with a session description.
fn with_sdp(text: &str, sdp: &str) -> String {
    let end = format!(
        "Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{sdp}",
        sdp.len()
    );
    text.replace("Content-Length: 0\r\n\r\n", &end)
}

/// The body of a message, which must be as long as it says.
fn body(text: &str) -> &str {
    let body = text.split_once("\r\n\r\n").unwrap().1;
    assert_eq!(value(text, "Content-Length"), body.len().to_string());
    body
}

const CALLED: &str = "sip:+4930@example.com";

/// Sends an INVITE with a session description to the trunk. Returns the request.
fn call(caller: &mut Phone, call: &str) -> String {
    let invite = caller.request("INVITE", CALLED, call, 1, "");
    caller.send(&with_sdp(&invite, OFFER));
    let challenge = caller.expect("SIP/2.0 407");
    caller.acknowledge(&invite, &challenge);
    let kind = HeaderKind::ProxyAuthorization;
    let line = credentials(&challenge, kind, "user0", Method::Invite, CALLED);
    let invite = caller.request("INVITE", CALLED, call, 2, &line);
    caller.send(&with_sdp(&invite, OFFER));
    invite
}

/// The socket of the trunk. Its address is not that of the phones, which would count as a trunk otherwise.
fn trunk_socket() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.2:0").unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn trunk_at(socket: UdpSocket, sip: SocketAddr) -> Phone {
    Phone::of(crate::sip_client::Client::of(socket, sip), "trunk")
}

#[test]
fn offers_and_answers_of_a_trunk_go_through_rtpengine_rfc3264() {
    let (address, requests) = relay(Mood::Good);
    let (socket, at) = trunk_socket();
    let server = serve(address, at);
    let mut trunk = trunk_at(socket, server.sip);
    let mut caller = Phone::udp_at(server.sip, "user0");
    call(&mut caller, "media");
    let invite = trunk.expect("INVITE ");
    assert_eq!(body(&invite), format!("{OFFER}a=relayed\r\n"));
    let offer = requests.recv_timeout(MAX_WAIT).unwrap();
    let has = |request: &str, key: &str| text_of(request, key);
    assert_eq!(has(&offer, "command").as_deref(), Some("offer"));
    let session = has(&offer, "call-id").unwrap();
    assert!(session.starts_with("media@test;"), "{session}");
    assert_eq!(has(&offer, "via-branch").as_deref(), Some("0"));
    assert_eq!(has(&offer, "from-tag").as_deref(), Some("fmedia"));
    assert_eq!(has(&offer, "ICE").as_deref(), Some("remove"));
    assert_eq!(
        has(&offer, "transport-protocol").as_deref(),
        Some("RTP/AVP")
    );
    let ok = with_sdp(&trunk.response(&invite, "200 OK"), ANSWER);
    trunk.send(&ok);
    let ok = caller.expect("SIP/2.0 200");
    assert_eq!(body(&ok), format!("{ANSWER}a=relayed\r\n"));
    let answer = requests.recv_timeout(MAX_WAIT).unwrap();
    assert_eq!(has(&answer, "command").as_deref(), Some("answer"));
    assert_eq!(has(&answer, "to-tag").as_deref(), Some("ttrunk"));
    caller.in_dialog(&ok, "ACK");
    trunk.expect("ACK ");
    caller.in_dialog(&ok, "BYE");
    let bye = trunk.expect("BYE ");
    trunk.respond(&bye, "200 OK");
    caller.expect("SIP/2.0 200");
    let delete = requests.recv_timeout(MAX_WAIT).unwrap();
    assert_eq!(has(&delete, "command").as_deref(), Some("delete"));
    assert_eq!(has(&delete, "call-id"), Some(session));
    assert_eq!(has(&delete, "from-tag").as_deref(), Some("fmedia"));
    assert_eq!(has(&delete, "to-tag").as_deref(), Some("ttrunk"));
    counts(&server.serve, "rewritten", 2);
}

#[test]
fn without_rtpengine_the_caller_gets_503_and_the_log_says_why() {
    let refusing = relay(Mood::Refuses).0;
    let silent = relay(Mood::Silent).0;
    // Nobody listens there.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let closed = socket.local_addr().unwrap();
    drop(socket);
    for (address, outcome, log) in [
        (refusing, "refused", "rtpengine has refused a request"),
        (silent, "no_answer", "rtpengine does not respond"),
        (closed, "no_answer", "rtpengine does not respond"),
    ] {
        let (socket, at) = trunk_socket();
        let server = serve(address, at);
        let mut caller = Phone::udp_at(server.sip, "user0");
        let invite = call(&mut caller, "refused");
        let refusal = caller.expect("SIP/2.0 503");
        assert_eq!(value(&refusal, "Retry-After"), "1");
        caller.acknowledge(&invite, &refusal);
        // The trunk has got nothing.
        socket.set_nonblocking(true).unwrap();
        assert!(socket.recv(&mut [0; 16]).is_err());
        counts(&server.serve, outcome, 1);
        server.serve.signal("TERM");
        let (_, text) = server.serve.wait();
        assert!(text.contains(log), "{text}");
        assert!(text.contains(&address.to_string()), "{text}");
    }
}

/// Waits until the server has counted so many outcomes.
fn counts(serve: &Serve, outcome: &str, count: u32) {
    let line = format!("hairpin_sip_media_requests_total{{outcome=\"{outcome}\"}} {count}\n");
    let begun = Instant::now();
    while !get(serve.value("admin"), "/metrics").contains(&line) {
        assert!(begun.elapsed() < MAX_WAIT, "no {line}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn the_configuration_of_the_relay_is_checked() {
    let check = |keys: &str, trunk: &str| {
        let (_folder, path) = file(&format!(
            "[sip]\n{keys}[[sip.domain]]\nname = \"example.com\"\n\
             [[sip.trunk]]\nname = \"c\"\nto = [\"sip:192.0.2.7\"]\n{trunk}"
        ));
        run(&["check", path.to_str().unwrap()])
    };
    let relay = "media = \"relay\"\n";
    let message = "the media of the trunk `c` go through a relay, and there is none";
    fails(&check("", relay), 1, message);
    let two = format!("{relay}[[sip.trunk]]\nname = \"d\"\nto = [\"sip:192.0.2.8\"]\n{relay}");
    fails(&check("", &two), 1, message);
    fails(&check("", &two), 1, "the media of the trunk `d` go through");
    fails(&check("", "media = \"both\"\n"), 1, "unknown value `both`");
    for (bad, message) in [
        ("127.0.0.1", "is not an IP address with a port"),
        ("udp:127.0.0.1:22222", "is not an IP address with a port"),
        (
            "rtpengine.example:22222",
            "is not an IP address with a port",
        ),
        (
            "0.0.0.0:22222",
            "is no address that requests can be sent to",
        ),
        ("127.0.0.1:0", "has no port"),
    ] {
        let key = format!("rtpengine = \"{bad}\"\n");
        fails(&check(&key, relay), 1, message);
    }
    let output = check("rtpengine = \"[::1]:22222\"\n", "media = \"direct\"\n");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("rtpengine has no effect"), "{text}");
    for (key, trunk) in [
        ("rtpengine = \"127.0.0.1:22222\"\n", relay),
        ("", "media = \"direct\"\n"),
    ] {
        let output = check(key, trunk);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !text.contains("media") && !text.contains("rtpengine"),
            "{text}"
        );
    }
}

/// The body of a page of the admin listener.
fn get(url: &str, path: &str) -> String {
    let address = url.split('/').nth(2).unwrap();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}
