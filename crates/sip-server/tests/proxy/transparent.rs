//! What a proxy does not know it passes on byte by byte (RFC 3261 §16.6 step 1).

use proptest::prelude::*;

use sip::flow::Transport;

use crate::node::{Script, UAC, UAS, request};
use crate::world::World;

/// A header field that nobody knows: any name, any white space around the colon, folds, and bytes above 127.
fn field() -> impl Strategy<Value = String> {
    let name = "[A-Za-z!%*_+`'~.-]{1,20}";
    let colon = "[ \t]{0,2}:[ \t]{0,2}";
    let value = "[ -~äß😀]{0,60}(\r\n[ \t][!-~]{1,20})?";
    (name, colon, value).prop_map(|(name, colon, value)| format!("X-{name}{colon}{value}\r\n"))
}

/// The lines of a message that begin with `X-`, with their folds, and the body.
fn unknown(text: &str) -> (String, String) {
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = String::new();
    let mut is_unknown = false;
    for line in head.split("\r\n").skip(1) {
        let is_fold = line.starts_with([' ', '\t']);
        is_unknown = if is_fold {
            is_unknown
        } else {
            line.starts_with("X-")
        };
        if is_unknown {
            lines += line;
            lines += "\r\n";
        }
    }
    (lines, body.to_owned())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn unknown_methods_fields_and_bodies_pass_unchanged(
        method in "[A-Z][A-Za-z0-9!%*_+`'~.-]{0,15}",
        fields in prop::collection::vec(field(), 0..8),
        body in "[ -~äß\r\n]{0,200}",
        answer in prop::collection::vec(field(), 0..8),
    ) {
        prop_assume!(!["INVITE", "ACK", "CANCEL"].contains(&&method[..]));
        let mut world = World::new();
        world.bind_bob(&[None]);
        world.nodes[UAS].script = Script {
            other: vec![(10, 299, answer.concat())],
            ..Script::default()
        };
        let extra = fields.concat();
        let text = request(&method, "sip:bob@example.com", 1, &extra);
        let text = text.replace("Content-Length: 0", &format!("Content-Length: {}", body.len()));
        world.send(UAC, Transport::Tcp, &(text + &body));
        world.run_until(1_000);
        let got = world.last(UAS);
        let start = format!("{method} sip:bob@192.0.2.3:5060 SIP/2.0\r\n");
        prop_assert!(got.starts_with(&start), "{}", got);
        prop_assert_eq!(unknown(got), (extra, body));
        let back = world.last(UAC);
        prop_assert!(back.starts_with("SIP/2.0 299 "), "{}", back);
        prop_assert_eq!(unknown(back).0, answer.concat());
    }
}

#[test]
fn malformed_fields_that_no_proxy_needs_pass_as_well_rfc3261_16_3_1() {
    let mut world = World::new();
    world.bind_bob(&[None]);
    let wrong = "Date: yesterday\r\nContact: \"open <sip:x\r\nExpires: soon\r\nSupported: a,,b\r\n";
    let text = request("NOTIFY", "sip:bob@example.com", 1, wrong);
    world.send(UAC, Transport::Udp, &text);
    world.run_until(500);
    assert!(world.last(UAS).contains(wrong), "{}", world.last(UAS));
    assert_eq!(world.heard(UAC), ["200 NOTIFY"]);
}
