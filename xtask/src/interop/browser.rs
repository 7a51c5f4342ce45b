//! Two RTCPeerConnections of a page in headless Chromium that may only use relayed candidates.
//!
//! The browser's statistics decide. The selected pair must be relay on both ends. Each side must have received
//! every message of the other, in order.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Bench;
use super::webdriver::Browser;
use crate::tally::Tally;

/// From each side to the other.
const MESSAGES: u64 = 1000;

/// A way to reach the server.
struct Case {
    name: &'static str,
    scheme: &'static str,
    host: &'static str,
    transport: &'static str,
    /// How the browser's statistics call it.
    protocol: &'static str,
}

const fn case(name: &'static str, scheme: &'static str, host: &'static str) -> Case {
    Case {
        name,
        scheme,
        host,
        transport: "tcp",
        protocol: "tcp",
    }
}

const CASES: &[Case] = &[
    Case {
        transport: "udp",
        protocol: "udp",
        ..case("UDP", "turn", "127.0.0.1")
    },
    Case {
        transport: "udp",
        protocol: "udp",
        ..case("UDP, IPv6", "turn", "[::1]")
    },
    case("TCP", "turn", "127.0.0.1"),
    case("TCP, IPv6", "turn", "[::1]"),
    Case {
        protocol: "tls",
        ..case("TLS", "turns", "127.0.0.1")
    },
    Case {
        protocol: "tls",
        ..case("TLS by name", "turns", "localhost")
    },
];

pub(crate) fn run(bench: &Bench) -> Tally {
    let mut tally = Tally::default();
    for case in CASES {
        let outcome = attempt(bench, case, true);
        tally.record(
            &format!("Chromium, relay to relay over {}", case.name),
            &outcome,
        );
    }
    let outcome = refuses_unknown_authority(bench);
    tally.record("Chromium refuses an unknown authority over TLS", &outcome);
    tally
}

fn attempt(bench: &Bench, case: &Case, trusts: bool) -> Result<String> {
    let outcome = exchange(bench, case, trusts)?;
    judge(&outcome, case.protocol).with_context(|| format!("{outcome:#}"))
}

/// Otherwise the cases over TLS do not show that the certificate is verified.
fn refuses_unknown_authority(bench: &Bench) -> Result<String> {
    let case = CASES
        .iter()
        .find(|case| case.protocol == "tls")
        .context("no case over TLS")?;
    let outcome = exchange(bench, case, false)?;
    let candidates = outcome["candidates"].as_array().map(Vec::len);
    ensure!(
        !outcome["failure"].is_null() && candidates == Some(0),
        "it was accepted: {outcome:#}"
    );
    Ok("no candidate".to_owned())
}

fn exchange(bench: &Bench, case: &Case, trusts: bool) -> Result<Value> {
    let credentials = bench.server.rest_credentials()?;
    let browser = Browser::start(&bench.logs, |home| {
        if trusts {
            bench.certificate.trust_in(home)?;
        }
        Ok(())
    })?;
    let url = format!(
        "{}:{}:{}?transport={}",
        case.scheme, case.host, bench.server.port, case.transport
    );
    let page = bench.sources.join("chromium/relay.html");
    browser.open(&format!("file://{}", page.display()))?;
    let servers =
        json!([{ "urls": url, "username": credentials.user, "credential": credentials.password }]);
    // The page's own `exchange`; an exception in it is part of what it returns.
    let script = "const [servers, count, done] = arguments; exchange(servers, count).then(done);";
    browser.run(script, &json!([servers, MESSAGES]))
}

fn judge(outcome: &Value, protocol: &str) -> Result<String> {
    ensure!(outcome["failure"].is_null(), "the page failed");
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
            pair["protocol"] == protocol,
            "the relay is not reached over {protocol}"
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
        assert!(judge(&good(), "udp").is_ok());
        assert!(judge(&good(), "tls").is_err());
        for (pointer, value) in [
            ("/left/received", json!(999)),
            ("/right/pair/local", json!("host")),
            ("/left/pair/remote", json!("prflx")),
            ("/right/pair", Value::Null),
        ] {
            let mut bad = good();
            *bad.pointer_mut(pointer).unwrap() = value;
            assert!(judge(&bad, "udp").is_err(), "{pointer}");
        }
        assert!(judge(&json!({ "failure": "no candidate" }), "udp").is_err());
    }
}
