//! Two RTCPeerConnections of a page in headless Chromium that may only use relayed candidates.
//!
//! The browser's statistics decide. The selected pair must be relay on both ends. Each side must have received
//! every message of the other, in order.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::DriverContext;
use super::webdriver::Browser;
use crate::tally::Tally;

/// How many messages each side sends.
const MESSAGE_COUNT: u64 = 1000;

/// A way to reach the server.
struct Case {
    name: &'static str,
    scheme: &'static str,
    host: &'static str,
    transport: &'static str,
    /// Its name in the statistics of the browser.
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

pub(crate) fn run(context: &DriverContext) -> Tally {
    let mut tally = Tally::default();
    for case in CASES {
        let outcome = attempt(context, case, true);
        tally.record(
            &format!("Chromium, relay to relay over {}", case.name),
            &outcome,
        );
    }
    let outcome = refuses_unknown_authority(context);
    tally.record("Chromium refuses an unknown authority over TLS", &outcome);
    tally
}

fn attempt(context: &DriverContext, case: &Case, trusts: bool) -> Result<String> {
    let outcome = exchange(context, case, trusts)?;
    judge(&outcome, case.protocol).with_context(|| format!("{outcome:#}"))
}

/// Checks that the browser verifies the certificate. Otherwise the cases over TLS do not prove it.
fn refuses_unknown_authority(context: &DriverContext) -> Result<String> {
    let case = CASES
        .iter()
        .find(|case| case.protocol == "tls")
        .context("no case over TLS")?;
    let outcome = exchange(context, case, false)?;
    let candidates = outcome["candidates"].as_array().map(Vec::len);
    ensure!(
        !outcome["failure"].is_null() && candidates == Some(0),
        "it was accepted: {outcome:#}"
    );
    Ok("no candidate".to_owned())
}

fn exchange(context: &DriverContext, case: &Case, trusts: bool) -> Result<Value> {
    let credentials = context.server.rest_credentials()?;
    let browser = Browser::start(&context.logs, |home| {
        if trusts {
            context.certificate.trust_in(home)?;
        }
        Ok(())
    })?;
    let url = format!(
        "{}:{}:{}?transport={}",
        case.scheme, case.host, context.server.port, case.transport
    );
    let page = context.sources.join("chromium/relay.html");
    browser.open(&format!("file://{}", page.display()))?;
    let servers =
        json!([{ "urls": url, "username": credentials.user, "credential": credentials.password }]);
    // The page's own `exchange`; an exception in it is part of what it returns.
    let script = "const [servers, count, done] = arguments; exchange(servers, count).then(done);";
    browser.run(script, &json!([servers, MESSAGE_COUNT]))
}

fn judge(outcome: &Value, protocol: &str) -> Result<String> {
    ensure!(outcome["failure"].is_null(), "the page failed");
    for side in ["left", "right"] {
        let side = &outcome[side];
        ensure!(
            side["sent"] == MESSAGE_COUNT && side["received"] == MESSAGE_COUNT,
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
        "{MESSAGE_COUNT} messages each way, relay at {}",
        outcome["left"]["pair"]["address"]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Value {
        let side = json!({
            "sent": MESSAGE_COUNT, "received": MESSAGE_COUNT,
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
