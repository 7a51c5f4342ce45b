//! SIP peers that others wrote, over TLS and WSS, in both directions.
//!
//! - baresip 1.0: a registration and a call over TLS; it verifies no certificate.
//! - PJSIP, by pjsua2 for Python: the same, with verification: it refuses a server of another issuer.
//! - SIP.js in Chromium: a registration and a call over WSS, from a web page.
//! - Kamailio: next hop of our UAC and client of our UAS over TLS, with verification at each end. Requests of our
//!   server over TLS.

use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::baresip;
use super::certificate::Certificate;
use super::sip::{START_TIMEOUT, SipTestServer, finish, free_port, start};
use super::web_server::WebServer;
use super::webdriver::Browser;
use super::{packages, program};
use crate::process::{self, Ended, Process};
use crate::tally::Tally;

/// How long one peer program may run.
const PEER_TIMEOUT: Duration = Duration::from_secs(90);
/// How long baresip calls before it hangs up and ends.
const CALL_TIME_S: &str = "3";

/// Installed packages that Debian does not have.
pub(crate) struct InstalledPackages {
    pub(crate) pjsua2: PathBuf,
    pub(crate) sip_js: PathBuf,
}

/// A server over TLS and WSS, and the authority that its peers trust.
struct TlsServer<'a> {
    sip_server: SipTestServer<'a>,
    certificate: &'a Certificate,
    /// The certificate of another authority.
    stranger: Certificate,
    tls: u16,
    wss: u16,
}

/// Runs all cases.
pub(crate) fn run(
    binary: &Path,
    root: &Path,
    logs: &Path,
    certificate: &Certificate,
    packages: &InstalledPackages,
) -> Result<Tally> {
    let binary = &binary.canonicalize().context("no such binary")?;
    let chain = certificate.chain.display();
    let pair = format!("tls.certificates={chain}:{}", certificate.key.display());
    let authority = certificate.authority.display();
    let next_hops = format!("sip.next_hop_ca={authority}");
    let settings = [
        "sip.listen_tls=127.0.0.1:0",
        "sip.listen_wss=127.0.0.1:0",
        // 64*T1 are 3.2 s: then a call without an ACK is ended with a BYE.
        "sip.t1=50ms",
        &pair,
        &next_hops,
    ];
    let mut sip_server = start(binary, root, logs, "sip-tls-server.log", &settings)?;
    let mut port_of = |scheme: &str| {
        sip_server.process.wait_for(START_TIMEOUT, |output| {
            let (_, rest) = output.split_once(&format!(" {scheme}127.0.0.1:"))?;
            rest.split_whitespace().next()?.parse().ok()
        })
    };
    let mut tls_server = TlsServer {
        tls: port_of("sips:")?,
        wss: port_of("wss://")?,
        stranger: Certificate::make(&logs.join("stranger"))?,
        certificate,
        sip_server,
    };
    let mut tally = Tally::default();
    phone(&tls_server, &mut tally);
    tally.add(pjsua(&tls_server, &packages.pjsua2)?);
    let outcome = sip_js(&tls_server, &packages.sip_js);
    tally.record("SIP.js in Chromium registers and calls over WSS", &outcome);
    kamailio(&tls_server, &mut tally);
    let outcome = finish(&mut tls_server.sip_server);
    tally.record("the SIP server over TLS stops when asked", &outcome);
    Ok(tally)
}

/// Runs baresip, which registers, calls, and ends after a while. Returns all that it prints.
fn run_baresip(tls_server: &TlsServer<'_>) -> Result<String> {
    let folder = tls_server.sip_server.logs.join("baresip");
    std::fs::create_dir_all(&folder)?;
    let authority = tls_server.certificate.authority.display();
    let modules = baresip::module_folder()?;
    let config = format!(
        "module_path {modules}\nmodule g711.so\nmodule ausine.so\nmodule_tmp account.so\nmodule_app menu.so\n\
         sip_listen 127.0.0.1:0\nsip_cafile {authority}\n\
         audio_player ausine,440\naudio_source ausine,440\naudio_alert ausine,440\n"
    );
    let port = tls_server.tls;
    let account = format!("<sip:alice@127.0.0.1:{port};transport=tls>;auth_pass=x;regint=60\n");
    for (file, text) in [
        ("config", &config[..]),
        ("accounts", &account),
        ("contacts", ""),
    ] {
        std::fs::write(folder.join(file), text)?;
    }
    let mut command = process::command("baresip");
    command.arg("-f").arg(&folder).arg("-s");
    command.args(["-t", CALL_TIME_S, "-e"]);
    command.arg(format!("/dial sip:test@127.0.0.1:{port};transport=tls"));
    let log = tls_server.sip_server.logs.join("baresip.log");
    let mut process = Process::start("baresip", command, log)?;
    let ended = process.wait(PEER_TIMEOUT)?;
    ensure!(ended != Ended::Killed, "it hung: {}", process.tail());
    Ok(process.output())
}

fn phone(tls_server: &TlsServer<'_>, tally: &mut Tally) {
    let registers = |output: &str| {
        let registered = output.contains("200 OK") && output.contains("REGISTER sip:");
        ensure!(registered, "it is not registered");
        Ok("200".to_owned())
    };
    let calls = |output: &str| {
        ensure!(output.contains("Call established"), "no call");
        // The 200 of the BYE is what it sees last of the call.
        let ended = output.rsplit_once(" BYE\r\n").map(|(before, _)| before);
        let ended = ended.and_then(|before| before.rsplit_once("SIP/2.0 ").map(|(_, rest)| rest));
        ensure!(
            ended.is_some_and(|rest| rest.starts_with("200 ")),
            "the call is not ended"
        );
        Ok("set up and ended".to_owned())
    };
    let output = run_baresip(tls_server);
    let judge = |judge: &dyn Fn(&str) -> Result<String>| match &output {
        Ok(output) => judge(output),
        Err(error) => Err(anyhow::anyhow!("{error:#}")),
    };
    tally.record("baresip registers over TLS", &judge(&registers));
    tally.record("baresip calls over TLS", &judge(&calls));
}

fn pjsua(tls_server: &TlsServer<'_>, packages: &Path) -> Result<Tally> {
    let trusting = run_pjsua(tls_server, packages, &tls_server.certificate.authority, &[])?;
    let mut tally = program::record("PJSIP", trusting, 2, PEER_TIMEOUT)?;
    // Otherwise the cases before do not show that the certificate is verified. A process has one PJSIP.
    let refusing = run_pjsua(
        tls_server,
        packages,
        &tls_server.stranger.authority,
        &["--refuses"],
    )?;
    tally.add(program::record("PJSIP", refusing, 1, PEER_TIMEOUT)?);
    Ok(tally)
}

fn run_pjsua(
    tls_server: &TlsServer<'_>,
    packages: &Path,
    authority: &Path,
    more: &[&str],
) -> Result<Process> {
    let logs = tls_server.sip_server.logs;
    let name = format!("pjsua2{}", more.concat());
    let mut command = process::command("python3");
    command
        .env("PYTHONPATH", packages)
        .arg(tls_server.sip_server.sources.join("../pjsua2/main.py"))
        .args(["--port", &tls_server.tls.to_string()])
        .arg("--ca")
        .arg(authority)
        .arg("--log")
        .arg(logs.join(format!("{name}-pjsip.log")))
        .args(more);
    Process::start("PJSIP", command, logs.join(format!("{name}.log")))
}

fn sip_js(tls_server: &TlsServer<'_>, packages: &Path) -> Result<String> {
    let page = tls_server.sip_server.sources.join("../sip-js/call.html");
    std::fs::copy(&page, packages.join("call.html"))?;
    let web = WebServer::start(packages, tls_server.sip_server.logs)?;
    let browser = Browser::start(tls_server.sip_server.logs, |home| {
        tls_server.certificate.trust_in(home)
    })?;
    browser.open(&format!("{}/call.html", web.origin()))?;
    let script = "const [server, host, done] = arguments; phone(server, host).then(done);";
    let host = format!("localhost:{}", tls_server.wss);
    let outcome = browser.run(script, &json!([format!("wss://{host}"), host]))?;
    let steps = json!(["connected", "registered", "established", "ended 200"]);
    ensure!(
        outcome["failure"].is_null() && outcome["steps"] == steps,
        "{outcome:#}"
    );
    Ok("set up and ended".to_owned())
}

/// Starts Kamailio over TLS in front of the server: it verifies the server, and its clients verify it.
fn start_kamailio(tls_server: &TlsServer<'_>) -> Result<(Process, u16)> {
    let sip_server = &tls_server.sip_server;
    let port = free_port()?;
    let template = sip_server.sources.join("kamailio-tls.cfg");
    let mut text = std::fs::read_to_string(&template)
        .with_context(|| format!("cannot read {}", template.display()))?;
    let certificate = tls_server.certificate;
    for (name, value) in [
        ("PORT", port.to_string()),
        ("NEXT", tls_server.tls.to_string()),
        ("CHAIN", certificate.chain.display().to_string()),
        ("KEY", certificate.key.display().to_string()),
        ("AUTHORITY", certificate.authority.display().to_string()),
    ] {
        text = text.replace(name, &value);
    }
    let file = sip_server.logs.join("kamailio-tls.cfg");
    std::fs::write(&file, text)?;
    let run = sip_server.logs.join("kamailio-tls-run");
    std::fs::create_dir_all(&run)?;
    let mut command = process::command("kamailio");
    command.args(["-DD", "-E", "-m", "64", "-M", "8", "-f"]);
    command.arg(&file).arg("-Y").arg(&run);
    let log = sip_server.logs.join("kamailio-tls.log");
    let mut proxy = Process::start("Kamailio over TLS", command, log)?;
    let deadline = Instant::now() + START_TIMEOUT;
    while std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        proxy.assert_running()?;
        ensure!(Instant::now() < deadline, "it is deaf: {}", proxy.tail());
        sleep(Duration::from_millis(50));
    }
    Ok((proxy, port))
}

fn kamailio(tls_server: &TlsServer<'_>, tally: &mut Tally) {
    let (mut proxy, port) = match start_kamailio(tls_server) {
        Ok(started) => started,
        Err(error) => return tally.record("Kamailio starts with TLS", &Err(error)),
    };
    let authority = tls_server.certificate.authority.display().to_string();
    let uri = format!("sip:test@127.0.0.1:{port};transport=tls");
    for (name, workload) in [
        ("calls through Kamailio over TLS", "call"),
        ("registrations through Kamailio over TLS", "register"),
    ] {
        let trust = ["--ca", &authority];
        let outcome = tls_server
            .sip_server
            .load_with(name, &uri, workload, "0%", &trust);
        tally.record(name, &outcome);
    }
    let stranger = tls_server.stranger.authority.display().to_string();
    let name = "our UAC refuses Kamailio with an unknown authority";
    let trust = ["--ca", &stranger];
    let outcome = match tls_server
        .sip_server
        .load_with(name, &uri, "register", "0%", &trust)
    {
        Ok(_) => Err(anyhow::anyhow!("it was accepted")),
        Err(error) if format!("{error:#}").contains("proves nothing that is trusted") => {
            Ok("refused".to_owned())
        }
        Err(error) => Err(error),
    };
    tally.record(name, &outcome);
    let outcome = server_connects(tls_server, &mut proxy, port);
    tally.record("our server connects to Kamailio over TLS", &outcome);
    let stopped = proxy
        .stop(Duration::from_secs(5))
        .map(|_| "it did".to_owned());
    tally.record("Kamailio over TLS stops", &stopped);
}

/// A call over UDP that nobody acknowledges, and whose Contact is Kamailio over TLS: that is where the server sends its
/// BYE.
fn server_connects(tls_server: &TlsServer<'_>, proxy: &mut Process, port: u16) -> Result<String> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let here = socket.local_addr()?;
    let invite = format!(
        "INVITE sip:test@127.0.0.1 SIP/2.0\r\nVia: SIP/2.0/UDP {here};rport;branch=z9hG4bKconnects\r\n\
         From: <sip:a@example.org>;tag=1\r\nTo: <sip:test@127.0.0.1>\r\nCall-ID: connects\r\nCSeq: 1 INVITE\r\n\
         Max-Forwards: 70\r\nContact: <sip:caller@127.0.0.1:{port};transport=tls>\r\nContent-Length: 0\r\n\r\n"
    );
    socket.send_to(
        invite.as_bytes(),
        (Ipv4Addr::LOCALHOST, tls_server.sip_server.port),
    )?;
    proxy.wait_for(Duration::from_secs(20), |output| {
        output.contains("BYE of connects over tls").then_some(())
    })?;
    Ok("a BYE came".to_owned())
}

/// Installs the packages that Debian does not have.
pub(crate) fn install(sources: &Path, tools: &Path) -> Result<InstalledPackages> {
    Ok(InstalledPackages {
        pjsua2: packages::python("pjsua2", sources, tools)?,
        sip_js: packages::npm("sip-js", sources, tools)?,
    })
}
