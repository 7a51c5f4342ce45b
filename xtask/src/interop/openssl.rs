//! OpenSSL's `s_client` over DTLS and TLS: it verifies the server's certificate, sends a Binding request and must get
//! the success response.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::{DriverContext, stun};
use crate::process::{self, Ended, Process};
use crate::tally::Tally;

/// How long a handshake may take, with several retransmissions.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

struct Case {
    name: &'static str,
    flags: &'static str,
    host: &'static str,
    expected: ExpectedResult,
}

enum ExpectedResult {
    Response,
    /// `s_client` ends without a response, and says this.
    Refusal(&'static str),
}

const fn case(name: &'static str, flags: &'static str, host: &'static str) -> Case {
    Case {
        name,
        flags,
        host,
        expected: ExpectedResult::Response,
    }
}

const fn refused(name: &'static str, flags: &'static str, text: &'static str) -> Case {
    Case {
        name,
        flags,
        host: "127.0.0.1",
        expected: ExpectedResult::Refusal(text),
    }
}

const CASES: &[Case] = &[
    case("DTLS 1.2", "-dtls1_2", "127.0.0.1"),
    case("DTLS 1.2, IPv6", "-dtls1_2", "[::1]"),
    case(
        "DTLS 1.2, server name and ALPN",
        "-dtls1_2 -servername localhost -verify_hostname localhost -alpn stun.turn",
        "127.0.0.1",
    ),
    case(
        "DTLS 1.2, AES-256-GCM, P-384",
        "-dtls1_2 -cipher ECDHE-ECDSA-AES256-GCM-SHA384 -curves P-384:P-256",
        "127.0.0.1",
    ),
    case(
        "DTLS 1.2, ChaCha20-Poly1305, X25519",
        "-dtls1_2 -cipher ECDHE-ECDSA-CHACHA20-POLY1305 -curves X25519:P-256",
        "127.0.0.1",
    ),
    case(
        "DTLS 1.2, small datagrams",
        "-dtls1_2 -mtu 256",
        "127.0.0.1",
    ),
    refused(
        "DTLS 1.0",
        "-dtls1 -cipher DEFAULT@SECLEVEL=0",
        "protocol version",
    ),
    refused(
        "DTLS 1.2, a name that the certificate does not have",
        "-dtls1_2 -verify_hostname turn.example.org",
        "hostname mismatch",
    ),
    case("TLS 1.2", "-tls1_2", "127.0.0.1"),
    case("TLS 1.3", "-tls1_3", "127.0.0.1"),
    case("TLS 1.3, IPv6", "-tls1_3", "[::1]"),
    refused(
        "TLS 1.1",
        "-tls1_1 -cipher DEFAULT@SECLEVEL=0",
        "SSL alert number",
    ),
];

pub(crate) fn run(context: &DriverContext) -> Result<Tally> {
    let request = context.logs.join("binding-request.bin");
    std::fs::write(&request, stun::BINDING_REQUEST)?;
    let mut tally = Tally::default();
    for case in CASES {
        let outcome = attempt(context, case, &request);
        tally.record(&format!("s_client {}", case.name), &outcome);
    }
    Ok(tally)
}

fn attempt(context: &DriverContext, case: &Case, request: &PathBuf) -> Result<String> {
    let mut process = start(context, case, request)?;
    match case.expected {
        ExpectedResult::Response => process
            .wait_for_bytes(HANDSHAKE_TIMEOUT, stun::is_success_in)
            .map(|()| "a success response".to_owned()),
        ExpectedResult::Refusal(text) => {
            ensure!(
                process.wait(HANDSHAKE_TIMEOUT)? != Ended::Killed,
                "it was not refused"
            );
            let output = process.output();
            if !output.contains(text) {
                bail!("it does not say {text:?}: {}", process.tail());
            }
            Ok(text.to_owned())
        }
    }
}

fn start(context: &DriverContext, case: &Case, request: &PathBuf) -> Result<Process> {
    let mut command: Command = process::command("openssl");
    command
        .args(["s_client", "-quiet", "-verify_return_error", "-verify", "2"])
        .arg("-connect")
        .arg(format!("{}:{}", case.host, context.server.port))
        .arg("-CAfile")
        .arg(&context.certificate.authority)
        .args(case.flags.split_whitespace());
    let name: String = case
        .name
        .chars()
        .map(|c| if c.is_alphanumeric() { c } else { '-' })
        .collect();
    let input = File::open(request).context("the request")?;
    let log = context.logs.join(format!("s_client-{name}.log"));
    Process::start_with_input("openssl s_client", command, log, input.into())
}
