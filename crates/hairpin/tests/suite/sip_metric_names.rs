//! No user name and no number of a call is in `/metrics`: whoever reads metrics must not learn who calls whom.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use crate::common::sip::{SipConfig, SipServer};
use crate::sip_client::phone::Phone;
use sip::Method;

/// Longer than anything here takes, also on a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The page, as soon as it has these samples.
fn page_with(server: &SipServer, samples: &[&str]) -> String {
    let end = Instant::now() + MAX_WAIT;
    loop {
        let page = server.serve.get("/metrics");
        let missing = samples.iter().find(|sample| !page.contains(**sample));
        let Some(missing) = missing else {
            return page;
        };
        assert!(Instant::now() < end, "no `{missing}` in {page}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_metrics_have_no_user_names_and_no_numbers() {
    // Nobody answers there, so the number waits for a response. Its address differs from that of the phones, because
    // requests from the address of a trunk need no credentials.
    let trunk = UdpSocket::bind("127.0.0.8:0").unwrap();
    let more = format!(
        "[[sip.trunk]]\nname = \"carrier\"\nto = [\"sip:{}\"]\nprobe_interval = \"0s\"\n\
         [[sip.route]]\nprefixes = [\"+49\"]\ntrunks = [\"carrier\"]\n",
        trunk.local_addr().unwrap()
    );
    let server = SipServer::start(&SipConfig {
        sip: "call_log = true\nuser_calls = 5\n",
        users: &["zaphod", "trillian"],
        more: &more,
        ..SipConfig::default()
    });
    let mut caller = Phone::udp_at(server.sip, "zaphod");
    let mut called = Phone::tcp_at(server.sip, "trillian");
    caller.register();
    called.register();
    // A call that goes on, one that is refused, one to nobody, and one to a number.
    caller.ask(Method::Invite, "sip:trillian@example.com", "slartibartfast");
    let invite = called.expect("INVITE ");
    called.respond(&invite, "200 OK");
    let ok = caller.expect("SIP/2.0 200");
    caller.in_dialog(&ok, "ACK");
    called.expect("ACK ");
    caller.ask(Method::Invite, "sip:trillian@example.com", "refused");
    let invite = called.expect("INVITE ");
    called.respond(&invite, "486 Busy Here");
    caller.expect("SIP/2.0 486");
    caller.ask(Method::Invite, "sip:marvin@example.com", "nobody");
    caller.expect("SIP/2.0 404");
    caller.ask(Method::Invite, "sip:+49424242424@example.com", "number");
    let mut guessing = Phone::udp_at(server.sip, "agrajag");
    let request = guessing.request("REGISTER", "sip:example.com", "guess", 1, "");
    guessing.send(&request);
    guessing.expect("SIP/2.0 401");
    let page = page_with(
        &server,
        &[
            "\nhairpin_sip_bindings 2\n",
            "\nhairpin_sip_calls 1\n",
            "hairpin_sip_trunk_requests_total{trunk=\"carrier\",event=\"sent\"} 1\n",
        ],
    );
    let page = page.to_lowercase();
    for name in [
        "zaphod",
        "trillian",
        "marvin",
        "agrajag",
        "424242",
        "slartibartfast",
        "example.com",
    ] {
        let line = page.lines().find(|line| line.contains(name));
        assert_eq!(line, None, "{name}");
    }
}
