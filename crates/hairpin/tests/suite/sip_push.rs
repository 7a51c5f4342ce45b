//! Push notifications: a gateway that is told of a call wakes the phone, which registers again and gets the call.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::common::sip::{SipConfig, SipServer};
use crate::common::{fails, file, run};
use crate::sip_client::phone::{Phone, credentials};
use serde_json::Value;
use sip::HeaderKind;
use sip::Method;

/// Longer than anything here takes, also on a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// A gateway that responds with this code to everything. Gives the heads and bodies of the requests.
fn gateway(code: u16) -> (SocketAddr, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, sender) = (stream.unwrap(), sender.clone());
            std::thread::spawn(move || {
                let mut text = String::new();
                loop {
                    let mut buffer = [0; 4096];
                    let len = stream.read(&mut buffer).unwrap_or(0);
                    if len == 0 {
                        return;
                    }
                    text += std::str::from_utf8(&buffer[..len]).unwrap();
                    let Some((head, body)) = text.split_once("\r\n\r\n") else {
                        continue;
                    };
                    let Ok(body) = serde_json::from_str(body) else {
                        continue;
                    };
                    let _ = sender.send((head.to_owned(), body));
                    let response = format!("HTTP/1.1 {code} X\r\nContent-Length: 0\r\n\r\n");
                    stream.write_all(response.as_bytes()).unwrap();
                    text.clear();
                }
            });
        }
    });
    (address, receiver)
}

/// A server with two users.
fn serve(gateway: SocketAddr, keys: &str) -> SipServer {
    SipServer::start(&SipConfig {
        server: "control_socket = \"off\"\n",
        sip: &format!(
            "push_gateway = \"http://{gateway}/wake\"\npush_token = \"t0ken\"\npush_providers = [\"fcm\"]\n{keys}"
        ),
        users: &["user0", "user1"],
        ..SipConfig::default()
    })
}

/// A mobile phone of user1.
struct Mobile {
    phone: Phone,
    contact: String,
    count: u32,
}

impl Mobile {
    fn new(server: SocketAddr, provider: &str) -> Mobile {
        let phone = Phone::udp_at(server, "user1");
        let plain = phone.contact();
        let uri = plain.trim_matches(['<', '>']);
        let contact = format!("<{uri};pn-provider={provider};pn-prid=token:1;pn-param=p%3b1>");
        Mobile {
            phone,
            contact,
            count: 0,
        }
    }

    /// Registers, and returns the final response.
    fn register(&mut self) -> String {
        let plain = self.phone.contact();
        let mut line = String::new();
        loop {
            self.count += 1;
            let (call, count) = ("mobile", self.count);
            let request = self
                .phone
                .request("REGISTER", "sip:example.com", call, count, &line);
            self.phone.send(&request.replace(&plain, &self.contact));
            let response = self.phone.expect("SIP/2.0 ");
            if !response.starts_with("SIP/2.0 401") {
                return response;
            }
            let kind = HeaderKind::Authorization;
            line = credentials(
                &response,
                kind,
                "user1",
                Method::Register,
                "sip:example.com",
            );
        }
    }
}

#[test]
fn a_call_waits_for_the_phone_that_the_gateway_wakes_rfc8599_5_6_2() {
    let (address, pushes) = gateway(202);
    let server = serve(address, "");
    let mut mobile = Mobile::new(server.sip, "fcm");
    let response = mobile.register();
    assert!(response.starts_with("SIP/2.0 200"), "{response}");
    assert!(
        response.contains("\r\nFeature-Caps: *;+sip.pns=\"fcm\"\r\n"),
        "{response}"
    );
    // Until then it counts as awake.
    std::thread::sleep(Duration::from_secs(11));
    let mut caller = Phone::udp_at(server.sip, "user0");
    caller.register();
    caller.ask(Method::Invite, "sip:user1@example.com", "wake");
    let (head, body) = pushes.recv_timeout(MAX_WAIT).unwrap();
    assert!(head.starts_with("POST /wake HTTP/1.1\r\n"), "{head}");
    let head = head.to_ascii_lowercase();
    assert!(head.contains("authorization: bearer t0ken"), "{head}");
    assert_eq!(
        (&body["reason"], &body["provider"]),
        (&"call".into(), &"fcm".into())
    );
    assert_eq!(
        (&body["prid"], &body["param"]),
        (&"token:1".into(), &"p;1".into())
    );
    assert_eq!(body["aor"], "user1@example.com");
    assert_eq!(body["from"], "sip:user0@example.com");
    assert_eq!(
        (&body["call_id"], &body["expires_s"]),
        (&"wake@test".into(), &20.into())
    );
    assert!(mobile.register().starts_with("SIP/2.0 200"));
    let invite = mobile.phone.expect("INVITE ");
    mobile.phone.respond(&invite, "200 OK");
    let ok = caller.expect("SIP/2.0 200");
    caller.in_dialog(&ok, "ACK");
    mobile.phone.expect("ACK ");
    // Now it is awake: the next call rings at once.
    caller.ask(Method::Invite, "sip:user1@example.com", "again");
    let invite = mobile.phone.expect("INVITE ");
    mobile.phone.respond(&invite, "486 Busy Here");
    caller.expect("SIP/2.0 486");
    assert!(pushes.try_recv().is_err());
    // The gateway's response counts once the server has read it, which may be after the call.
    let line = "hairpin_sip_pushes_total{outcome=\"accepted\"} 1\n";
    let begun = Instant::now();
    while !get(server.serve.value("admin"), "/metrics").contains(line) {
        assert!(begun.elapsed() < MAX_WAIT, "no {line}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_gateway_that_refuses_and_a_phone_that_stays_asleep_are_480() {
    let (address, pushes) = gateway(500);
    let server = serve(address, "push_timeout = \"2s\"\n");
    let mut mobile = Mobile::new(server.sip, "fcm");
    assert!(mobile.register().starts_with("SIP/2.0 200"));
    std::thread::sleep(Duration::from_secs(11));
    let mut caller = Phone::udp_at(server.sip, "user0");
    caller.register();
    let begun = Instant::now();
    caller.ask(Method::Invite, "sip:user1@example.com", "asleep");
    caller.expect("SIP/2.0 480");
    let waited = begun.elapsed();
    assert!(
        waited >= Duration::from_secs(2) && waited < MAX_WAIT,
        "{waited:?}"
    );
    pushes.recv_timeout(MAX_WAIT).unwrap();
    server.serve.signal("TERM");
    let (_, log) = server.serve.wait();
    assert!(log.contains("push notification failed"), "{log}");
    assert!(log.contains("the gateway responds with 500"), "{log}");
}

#[test]
fn a_phone_with_another_push_service_is_555_rfc8599_8_1() {
    let (address, _pushes) = gateway(200);
    let server = serve(address, "");
    let response = Mobile::new(server.sip, "acme").register();
    let line = "SIP/2.0 555 Push Notification Service Not Supported\r\n";
    assert!(response.starts_with(line), "{response}");
    assert!(
        response.contains("\r\nFeature-Caps: *;+sip.pns=\"fcm\"\r\n"),
        "{response}"
    );
}

#[test]
fn the_configuration_of_push_is_checked() {
    let check = |keys: &str| {
        let (_folder, path) = file(&format!("[sip]\n{keys}"));
        run(&["check", path.to_str().unwrap()])
    };
    let gateway = "push_gateway = \"https://push.example.org/sip\"\n";
    fails(&check(gateway), 1, "there is no push service");
    fails(
        &check("push_gateway = \"push.example.org\"\n"),
        1,
        "is not an HTTP URL",
    );
    fails(
        &check("push_gateway = \"ftp://a\"\n"),
        1,
        "is not an HTTP URL",
    );
    fails(
        &check("push_providers = [\"a b\"]\n"),
        1,
        "is not a push service",
    );
    fails(&check("push_token = \"a b\"\n"), 1, "the token has a space");
    fails(&check("push_timeout = \"5m\"\n"), 1, "push_timeout");
    fails(&check("push_refresh = \"120s\"\n"), 1, "push_refresh");
    let short = format!(
        "{gateway}push_providers = [\"fcm\"]\nregister_expires = \"1m\"\nregister_max = \"2m10s\"\n"
    );
    fails(
        &check(&short),
        0,
        "no phone is woken to refresh its registration",
    );
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
