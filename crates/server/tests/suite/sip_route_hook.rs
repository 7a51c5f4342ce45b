//! A program that embeds the server decides where calls go.

use crate::sip_client::phone::{Phone, value};
use crate::sip_routes::{Carrier, Peer, response, route, serve, settings};
use hairpin_server::Running;
use hairpin_server::sip::routes::{NextHop, ProbeConfig, TrunkChoice};
use hairpin_server::sip::{
    Preview, PreviewRequest, Previewer, RouteChoice, RouteHook, RouteRequest, RouteSender,
    Transport, Trunk,
};
use sip::Method;
use std::collections::HashMap;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a hook has seen of each request.
type Seen = Arc<Mutex<Vec<String>>>;

fn choose(request: &RouteRequest<'_>) -> RouteChoice {
    match &*request.called() {
        "tables" => RouteChoice::Tables,
        "refused" => RouteChoice::Reject(606, "Not Here".to_owned()),
        "relayed" => RouteChoice::Trunks(TrunkChoice::new(["b"])),
        "nowhere" => RouteChoice::Trunks(TrunkChoice {
            from_trunks: true,
            ..TrunkChoice::new(["nobody"])
        }),
        called => RouteChoice::Trunks(TrunkChoice {
            user: Some(format!("0{called}")),
            from_trunks: true,
            ..TrunkChoice::new(["b", "a"])
        }),
    }
}

fn hook(seen: &Seen) -> RouteHook {
    let seen = Arc::clone(seen);
    RouteHook::new(move |request| {
        let RouteSender::Trunk(sender) = request.sender() else {
            panic!("{request:?}");
        };
        seen.lock().unwrap().push(format!(
            "{} {} from {} to {} {} of {sender}, {} over {:?}, {:?}",
            request.method(),
            request.uri(),
            request.from(),
            request.to(),
            request.call_id(),
            request.source(),
            request.transport(),
            request.headers("x-region"),
        ));
        choose(request)
    })
}

/// A trunk whose requests arrive at this socket.
fn trunk(name: &str, sink: &UdpSocket) -> Trunk {
    let to = format!("sip:{}", sink.local_addr().expect("an address"));
    Trunk {
        name: name.to_owned(),
        to: vec![NextHop::new(&to).expect("a next hop")],
        domain: Some(format!("{name}.example")),
        probe: ProbeConfig {
            interval: Duration::ZERO,
            ..ProbeConfig::default()
        },
        ..Trunk::default()
    }
}

/// The Request-URI at the trunk, or the code of the response.
fn outcome(peer: &Peer, sink: &UdpSocket, call: &str) -> String {
    let mut buffer = vec![0; 65_536];
    let end = Instant::now() + Duration::from_secs(60);
    let mut forwarded = None;
    loop {
        assert!(Instant::now() < end, "nothing came of {call}");
        if let Ok((len, from)) = sink.recv_from(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..len]).into_owned();
            if value(&text, "Call-ID") == call {
                let ok = response(&text, 200);
                sink.send_to(ok.as_bytes(), from).expect("sent");
                forwarded = text.split(' ').nth(1).map(str::to_owned);
            }
        }
        let answer = peer.receive();
        if let Some(text) = answer.filter(|text| value(text, "Call-ID") == call) {
            return forwarded.unwrap_or_else(|| text[8..11].to_owned());
        }
    }
}

fn previewed(previewer: &Previewer, peer: &Peer, uri: &str, call_id: &str) -> String {
    let previewed = previewer.preview(&PreviewRequest {
        method: "MESSAGE",
        from: "sip:+4930@peer.example",
        to: uri,
        source: peer.0.local_addr().expect("an address"),
        transport: Transport::Udp,
        certificate: None,
        headers: &["X-Region: north".to_owned()],
        call_id,
        draw: 0,
    });
    match previewed.expect("a decision").outcome {
        Preview::Forwarded(targets) => targets[0].uri.clone(),
        Preview::Refused(code, _) => code.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_hook_sees_the_request_and_decides_as_the_preview_says() {
    let sink = UdpSocket::bind("127.0.0.51:0").expect("a socket");
    let step = Some(Duration::from_millis(1));
    sink.set_read_timeout(step).expect("an option");
    let from = Trunk {
        name: "x".to_owned(),
        addresses: vec!["127.0.0.52/32".parse().expect("a network")],
        ..Trunk::default()
    };
    let mut by_table = route("t", &["a"]);
    by_table.from_trunks = vec!["x".to_owned()];
    let trunks = vec![trunk("a", &sink), trunk("b", &sink), from];
    let mut settings = settings(trunks, vec![by_table]);
    let seen = Seen::default();
    settings.route_hook = Some(hook(&seen));
    let server: Running = serve(settings.clone());
    let peer = Peer::new("127.0.0.52", &server);
    let at = peer.0.local_addr().expect("an address");
    let listeners = server.sip_listeners().to_vec();
    let previewer = Previewer::new(&settings, &["user1"], &listeners).expect("settings");
    for (called, wanted) in [
        ("tables", "sip:tables@a.example"),
        ("refused", "606"),
        ("relayed", "403"),
        ("nowhere", "503"),
        ("30", "sip:030@b.example"),
    ] {
        let uri = format!("sip:{called}@example.com");
        let call = format!("hook-{called}");
        assert_eq!(previewed(&previewer, &peer, &uri, &call), wanted);
        peer.send("MESSAGE", &uri, &call, "X-Region: north\r\n");
        assert_eq!(outcome(&peer, &sink, &call), wanted, "{called}");
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        assert!(seen.len() >= 2, "the preview and the server: {seen:?}");
        let expected = format!(
            "MESSAGE {uri} from sip:+4930@peer.example to {uri} {call} of x, {at} over Udp, [\"north\"]"
        );
        assert!(seen.iter().all(|it| *it == expected), "{seen:?}");
    }
}

#[test]
fn a_hook_without_routes_sends_the_call_of_a_user_to_the_next_trunk() {
    let busy = Carrier::new("127.0.0.53", &[(0, 503)]);
    let other = Carrier::new("127.0.0.54", &[(20, 180), (60, 200)]);
    let trunks = vec![busy.trunk("busy"), other.trunk("other")];
    let mut settings = settings(trunks, Vec::new());
    settings.route_hook = Some(RouteHook::new(|request| match request.sender() {
        RouteSender::User(user) if user == "user1@example.com" => {
            RouteChoice::Trunks(TrunkChoice::new(["busy", "other"]))
        }
        _ => RouteChoice::Reject(403, String::new()),
    }));
    let server = serve(settings);
    let mut phone = Phone::udp(&server, "user1");
    phone.ask(Method::Invite, "sip:+49301234@example.com", "hooked");
    let ok = phone.expect("SIP/2.0 200");
    phone.in_dialog(&ok, "ACK");
    let trunks: HashMap<_, _> = server.observer().sip_trunks().into_iter().collect();
    assert_eq!((busy.requests(), trunks["busy"].moved_on), (1, 1));
    assert_eq!((other.requests(), trunks["other"].calls), (1, 1));
}
