//! Two RTCPeerConnections of a page in headless Chromium that may only use relayed candidates.
//!
//! What passed is judged by the browser's own statistics: the selected pair must be relay on both ends, and each
//! side must have received every message of the other, in order.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Bench;
use super::server::Credentials;
use super::webdriver::Browser;
use crate::tally::Tally;

/// From each side to the other.
const MESSAGES: u64 = 1000;

pub(crate) fn run(bench: &Bench) -> Tally {
    let mut tally = Tally::default();
    for (name, family) in [
        ("IPv4", IpAddr::V4(Ipv4Addr::LOCALHOST)),
        ("IPv6", IpAddr::V6(Ipv6Addr::LOCALHOST)),
    ] {
        let outcome = bench.server.rest_credentials().and_then(|credentials| {
            let url = format!("turn:{}?transport=udp", bench.server.address(family));
            exchange(bench, &url, &credentials)
        });
        tally.record(&format!("Chromium, relay to relay over {name}"), &outcome);
    }
    tally
}

fn exchange(bench: &Bench, url: &str, credentials: &Credentials) -> Result<String> {
    let browser = Browser::start(&bench.logs)?;
    let page = bench.sources.join("chromium/relay.html");
    browser.open(&format!("file://{}", page.display()))?;
    let servers =
        json!([{ "urls": url, "username": credentials.user, "credential": credentials.password }]);
    // The page's own `exchange`; an exception in it is part of what it returns.
    let script = "const [servers, count, done] = arguments; exchange(servers, count).then(done);";
    let outcome = browser.run(script, &json!([servers, MESSAGES]))?;
    judge(&outcome).with_context(|| format!("{outcome:#}"))
}

fn judge(outcome: &Value) -> Result<String> {
    ensure!(outcome["error"].is_null(), "the page failed");
    for side in ["left", "right"] {
        let side = &outcome[side];
        ensure!(
            side["sent"] == MESSAGES && side["received"] == MESSAGES,
            "messages are missing"
        );
        let pair = &side["pair"];
        ensure!(
            pair["local"] == "relay" && pair["remote"] == "relay",
            "the selected pair is not relay to relay"
        );
        ensure!(
            pair["protocol"] == "udp",
            "the relay is not reached over UDP"
        );
    }
    Ok(format!(
        "{MESSAGES} messages each way, relay at {}",
        outcome["left"]["pair"]["address"]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Value {
        let side = json!({
            "sent": MESSAGES, "received": MESSAGES,
            "pair": { "local": "relay", "remote": "relay", "protocol": "udp", "address": "192.0.2.1" },
        });
        json!({ "left": side, "right": side })
    }

    #[test]
    fn only_a_whole_exchange_between_relays_passes() {
        assert!(judge(&good()).is_ok());
        for (pointer, value) in [
            ("/left/received", json!(999)),
            ("/right/pair/local", json!("host")),
            ("/left/pair/remote", json!("prflx")),
            ("/right/pair", Value::Null),
        ] {
            let mut bad = good();
            *bad.pointer_mut(pointer).unwrap() = value;
            assert!(judge(&bad).is_err(), "{pointer}");
        }
        assert!(judge(&json!({ "error": "no candidate" })).is_err());
    }
}
