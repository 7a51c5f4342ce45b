//! Phones in web pages (`interop/browser-phone`). JsSIP in Chromium registers over WSS, gets the credentials for TURN
//! with its registration, and calls the phone of another page. Both may use relays only, and all relays are of the same
//! process.
//!
//! The statistics of the browser and the server's log of allocations show which audio has passed.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::baresip;
use super::browser_linphone;
use super::certificate::Certificate;
use super::console::Console;
use super::domain::{Domain, PASSWORD};
use super::packages;
use super::server::free_ports;
use super::web_server::WebServer;
use super::webdriver::{Browser, Tab};
use crate::tally::Tally;

/// The first three are in pages of JsSIP.
const USERS: [&str; 8] = [
    "alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi",
];
/// baresip over UDP.
const PLAIN: &str = "dave";
/// PJSIP over TCP.
const PJSIP: &str = "frank";
/// baresip over UDP, with ICE and DTLS-SRTP.
const WEBRTC: &str = "erin";
/// SIP.js in a page.
const SIP_JS: &str = "grace";
/// Linphone over UDP.
pub(super) const LINPHONE: &str = "heidi";
const SECRET: &str = "a secret of the phones in the browser";
/// Where the server relays from.
const RELAY_PORTS: std::ops::RangeInclusive<u64> = 60000..=60999;
const FAKE_MEDIA: [&str; 6] = [
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    "--autoplay-policy=no-user-gesture-required",
    // A tab that is not in front must work as fast.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
];

/// The server, and the phones in tabs of one browser.
pub(super) struct Bench<'a> {
    browser: &'a Browser,
    pub(super) domain: Domain,
    web: WebServer,
    wss: u16,
    pub(super) turn: u16,
    pub(super) phones: [Phone<'a>; 3],
    /// A phone made of SIP.js.
    sip_js: Phone<'a>,
    _sip_js_web: WebServer,
}

/// A case of the phones in pages.
type Step<'a> = fn(&Bench<'a>) -> Result<String>;

/// The phone in one tab.
pub(super) struct Phone<'a> {
    browser: &'a Browser,
    tab: Tab,
    pub(super) user: &'static str,
}

/// How each phone in [`Bench::phones`] reaches its relay.
const TRANSPORTS: [&str; 3] = ["udp", "tcp", "udp"];

/// Installs JsSIP. Returns the folder that has it and the page.
pub(crate) fn install(sources: &Path, tools: &Path) -> Result<std::path::PathBuf> {
    let files = ["phone.html", "phone.js", "modules.js"];
    install_pages("browser-phone", &files, sources, tools)
}

/// Installs SIP.js in the same way.
pub(crate) fn install_sip_js(sources: &Path, tools: &Path) -> Result<std::path::PathBuf> {
    install_pages("sip-js", &["phone.html"], sources, tools)
}

fn install_pages(
    name: &str,
    files: &[&str],
    sources: &Path,
    tools: &Path,
) -> Result<std::path::PathBuf> {
    let folder = packages::npm(name, sources, tools)?;
    let own = files.iter().map(|file| sources.join(name).join(file));
    for source in own.chain([sources.join("webrtc/voice.js")]) {
        let file = source.file_name().context("a file without a name")?;
        std::fs::copy(&source, folder.join(file)).with_context(|| source.display().to_string())?;
    }
    Ok(folder)
}

/// Runs all cases.
pub(crate) fn run(
    binary: &Path,
    (root, logs): (&Path, &Path),
    certificate: &Certificate,
    [pages, pjsua2, sip_js]: [&Path; 3],
) -> Result<Tally> {
    let sip_js_logs = logs.join("sip-js-pages");
    std::fs::create_dir_all(&sip_js_logs)?;
    let webs = [
        WebServer::start(pages, logs)?,
        WebServer::start(sip_js, &sip_js_logs)?,
    ];
    let browser = Browser::start_with(logs, &FAKE_MEDIA, |home| certificate.trust_in(home))?;
    let mut bench = Bench::start(binary, logs, certificate, &browser, webs)?;
    let mut tally = Tally::default();
    let steps: [(&str, Step<'_>); 11] = [
        (
            "phones register over WSS and get TURN credentials",
            Bench::register,
        ),
        ("a page of another origin is refused", Bench::other_origin),
        ("a wrong password is refused", Bench::wrong_password),
        (
            "a call with media by relays of the same process",
            Bench::media,
        ),
        ("a call is held and resumed", Bench::hold),
        ("the caller hangs up", Bench::caller_hangs_up),
        ("the called phone hangs up", Bench::called_hangs_up),
        ("a call to who is busy", |bench| bench.refused(486)),
        ("a call that is declined", |bench| bench.refused(603)),
        ("a call is cancelled", Bench::cancelled),
        ("a call is transferred", Bench::transferred),
    ];
    for (name, run) in steps {
        tally.record(&format!("JsSIP in Chromium: {name}"), &run(&bench));
    }
    let desk_phones = desk_phones(logs, &bench, &mut tally);
    tally.record("baresip registers beside phones in pages", &desk_phones);
    let pjsip = super::desk_phones::pjsip::start((root, logs), pjsua2, PJSIP, bench.domain.port);
    let mut calls = |name: &str, outcome: Result<String>| {
        tally.record(&format!("JsSIP in Chromium: {name}"), &outcome);
    };
    match pjsip {
        Ok(mut pjsip) => {
            let outcome = bench.called_by_pjsip(&mut pjsip);
            calls("PJSIP without SRTP that calls gets 488", outcome);
            let outcome = bench.calls_without_srtp(&bench.phones[0], PJSIP);
            calls("a call to PJSIP without SRTP gets 488", outcome);
        }
        Err(error) => calls("PJSIP registers beside phones in pages", Err(error)),
    }
    browser_linphone::run(&bench, logs, &mut tally);
    let outcome = bench.stop();
    tally.record("phones in pages unregister", &outcome);
    let outcome = bench.domain.finish();
    tally.record(
        "the server of the phones in pages stops when asked",
        &outcome,
    );
    Ok(tally)
}

/// Calls between a page and a phone over UDP.
fn desk_phones(logs: &Path, bench: &Bench<'_>, tally: &mut Tally) -> Result<String> {
    let [alice, sip_js] = [&bench.phones[0], &bench.sip_js];
    let registered = bench.register_sip_js();
    tally.record("SIP.js in Chromium: it registers over WSS", &registered);
    let plain = &mut desk_phone(logs, bench, PLAIN, ["", ""])?;
    for (name, page, code) in [
        ("JsSIP", alice, "488"),
        // SIP.js sends this code for each session description that the browser refuses.
        ("SIP.js", sip_js, "480"),
    ] {
        let name = format!("{name} in Chromium: a phone without DTLS-SRTP that calls gets {code}");
        let outcome = bench.called_by_plain(page, plain, code);
        tally.record(&name, &outcome);
    }
    for (name, page) in [("JsSIP", alice), ("SIP.js", sip_js)] {
        let name = format!("{name} in Chromium: a call to a phone without DTLS-SRTP gets 488");
        let outcome = plain
            .forget()
            .and_then(|()| bench.calls_without_srtp(page, PLAIN));
        tally.record(&name, &outcome);
    }
    // Its ICE skips loopback addresses, so that it requires the address that the server sees.
    let parameters = format!(
        ";mediaenc=dtls_srtp;medianat=ice;stunserver=\"stun:127.0.0.1:{}\"",
        bench.turn
    );
    let modules = "module ice.so\nmodule dtls_srtp.so\nrtcp_mux yes\n";
    let webrtc = &mut desk_phone(logs, bench, WEBRTC, [modules, &parameters])?;
    for (name, page) in [("JsSIP", alice), ("SIP.js", sip_js)] {
        let outcome = bench.calls_webrtc(page, webrtc);
        let name = format!("{name} in Chromium");
        tally.record(
            &format!("{name}: a call to baresip with ICE and DTLS-SRTP"),
            &outcome,
        );
        let outcome = bench.called_by_webrtc(page, webrtc);
        tally.record(
            &format!("{name}: a call of baresip with ICE and DTLS-SRTP"),
            &outcome,
        );
    }
    Ok("2 phones".to_owned())
}

/// Starts baresip, which registers over UDP.
fn desk_phone(
    logs: &Path,
    bench: &Bench<'_>,
    user: &str,
    more: [&str; 2],
) -> Result<baresip::Phone> {
    let name = format!("{user}-beside-pages");
    let port = bench.domain.port;
    let mut phone = baresip::Phone::start_with(logs, &name, user, port, "udp", more)?;
    phone.wait_registered()?;
    Ok(phone)
}

/// Starts a server with the listeners and the credentials of docs/how-to/webrtc-phones.md.
fn start_server(
    binary: &Path,
    logs: &Path,
    certificate: &Certificate,
    origins: [String; 2],
    [wss, turn]: [u16; 2],
) -> Result<Domain> {
    let more = format!(
        "listen_wss = [\"127.0.0.1:{wss}\"]\nws_origins = {origins:?}\n\
         ice_servers = [\"turn:127.0.0.1:{turn}?transport=udp\", \"turns:localhost:{turn}?transport=tcp\"]\n\
         # JsSIP and baresip 1.0 support MD5 alone, and read no more than the first challenge.\n\
         digest_algorithms = [\"MD5\"]\n"
    );
    let Certificate { chain, key, .. } = certificate;
    let (first, last) = (RELAY_PORTS.start(), RELAY_PORTS.end());
    let arguments = vec![
        format!("--listen=127.0.0.1:{turn}"),
        format!("--port-range={first}-{last}"),
        format!("--secret={SECRET}"),
        format!(
            "--set=tls.certificates={}:{}",
            chain.display(),
            key.display()
        ),
    ];
    let users = USERS.map(str::to_owned);
    Domain::start_with(
        binary,
        logs,
        "browser-phones",
        &users,
        ["", &more],
        arguments,
    )
}

impl<'a> Bench<'a> {
    fn start(
        binary: &Path,
        logs: &Path,
        certificate: &Certificate,
        browser: &'a Browser,
        [web, sip_js_web]: [WebServer; 2],
    ) -> Result<Bench<'a>> {
        let [wss, turn] = [free_ports(1)?, free_ports(1)?];
        let origins = [web.origin(), sip_js_web.origin()];
        let domain = start_server(binary, logs, certificate, origins, [wss, turn])?;
        let phone = |web: &WebServer, user| {
            Phone::open(browser, &format!("{}/phone.html", web.origin()), user)
        };
        let phones = [
            phone(&web, USERS[0])?,
            phone(&web, USERS[1])?,
            phone(&web, USERS[2])?,
        ];
        Ok(Bench {
            browser,
            domain,
            web,
            wss,
            turn,
            phones,
            sip_js: phone(&sip_js_web, SIP_JS)?,
            _sip_js_web: sip_js_web,
        })
    }

    fn server(&self) -> String {
        format!("wss://localhost:{}", self.wss)
    }

    fn register(&self) -> Result<String> {
        for (phone, transport) in self.phones.iter().zip(TRANSPORTS) {
            let outcome = phone.register(&self.server(), PASSWORD, transport)?;
            ensure!(outcome["code"] == 200, "{}: {outcome}", phone.user);
            let servers = outcome["servers"].as_str().context("no Ice-Servers")?;
            let servers: Value = serde_json::from_str(servers)?;
            let name = servers[0]["username"].as_str().unwrap_or_default();
            let owner = format!(":{}@example.org", phone.user);
            ensure!(name.ends_with(&owner), "{}: {servers}", phone.user);
        }
        Ok(format!("{} phones", self.phones.len()))
    }

    fn register_sip_js(&self) -> Result<String> {
        let outcome = self.sip_js.register(&self.server(), PASSWORD, "udp")?;
        ensure!(outcome["code"] == 200, "{outcome}");
        ensure!(outcome["servers"].is_string(), "no Ice-Servers: {outcome}");
        Ok("200".to_owned())
    }

    /// Loads the page under another name of this machine. Its origin is not in `ws_origins`, so it cannot register.
    fn other_origin(&self) -> Result<String> {
        let url = format!("http://localhost:{}/phone.html", self.web.port);
        let stranger = Phone::open(self.browser, &url, USERS[0])?;
        let outcome = stranger.register(&self.server(), PASSWORD, "udp")?;
        ensure!(outcome["code"].is_null(), "it is registered: {outcome}");
        let cause = outcome["cause"].as_str().unwrap_or_default();
        ensure!(cause.starts_with("no connection"), "{outcome}");
        Ok(cause.to_owned())
    }

    fn wrong_password(&self) -> Result<String> {
        let url = format!("{}/phone.html", self.web.origin());
        let stranger = Phone::open(self.browser, &url, USERS[0])?;
        let outcome = stranger.register(&self.server(), "guessed", "udp")?;
        ensure!(outcome["code"] == 401, "{outcome}");
        Ok("401".to_owned())
    }

    /// Lets alice call bob. Returns when bob's phone rings.
    fn dial(&self) -> Result<()> {
        let [alice, bob, _] = &self.phones;
        for phone in &self.phones {
            phone.ask("forget", json!([]))?;
        }
        alice.ask("call", json!(["sip:bob@example.org"]))?;
        let incoming = bob.wait("incoming")?;
        ensure!(incoming["from"] == "sip:alice@example.org", "{incoming}");
        Ok(())
    }

    /// Lets alice call bob, who answers.
    fn establish(&self) -> Result<()> {
        let [alice, bob, _] = &self.phones;
        self.dial()?;
        bob.ask("answer", json!([]))?;
        alice.wait("confirmed")?;
        bob.wait("confirmed")?;
        Ok(())
    }

    /// One side ends the call of alice and bob.
    fn end(&self, by: usize) -> Result<()> {
        let (ends, other) = (&self.phones[by], &self.phones[1 - by]);
        ends.ask("terminate", json!([]))?;
        let ended = ends.wait("ended")?;
        ensure!(ended["originator"] == "local", "{ended}");
        let ended = other.wait("ended")?;
        ensure!(
            ended["originator"] == "remote" && ended["cause"] == "Terminated",
            "{ended}"
        );
        Ok(())
    }

    fn media(&self) -> Result<String> {
        self.establish()?;
        let [alice, bob, _] = &self.phones;
        let sides = [
            alice.ask("receives", json!([]))?,
            bob.ask("receives", json!([]))?,
        ];
        self.end(0)?;
        let log = self.domain.output();
        let mut bytes = Vec::new();
        for ((side, phone), transport) in sides.iter().zip(&self.phones).zip(TRANSPORTS) {
            let report = judge(side, self.turn, transport)
                .with_context(|| format!("{}: {side:#}", phone.user))?;
            ensure!(
                is_relay_of(&log, phone.user, report.port),
                "the server has logged no allocation of {} at port {}",
                phone.user,
                report.port
            );
            bytes.push(report.received.to_string());
        }
        Ok(format!("{} bytes of audio received", bytes.join(" and ")))
    }

    fn hold(&self) -> Result<String> {
        self.establish()?;
        let [alice, bob, _] = &self.phones;
        alice.ask("hold", json!([]))?;
        let held = bob.wait("hold")?;
        ensure!(held["originator"] == "remote", "{held}");
        alice.ask("receivesNothing", json!([]))?;
        alice.ask("unhold", json!([]))?;
        let resumed = bob.wait("unhold")?;
        ensure!(resumed["originator"] == "remote", "{resumed}");
        alice.ask("receives", json!([]))?;
        bob.ask("receives", json!([]))?;
        self.end(0)?;
        Ok("audio stops and comes again".to_owned())
    }

    fn caller_hangs_up(&self) -> Result<String> {
        self.establish()?;
        self.end(0).map(|()| "both have ended".to_owned())
    }

    fn called_hangs_up(&self) -> Result<String> {
        self.establish()?;
        self.end(1).map(|()| "both have ended".to_owned())
    }

    /// Bob refuses a call of alice with this code.
    fn refused(&self, code: u16) -> Result<String> {
        self.dial()?;
        let [alice, bob, _] = &self.phones;
        bob.ask("terminate", json!([code]))?;
        let failed = alice.wait("failed")?;
        ensure!(failed["code"] == code, "{failed}");
        Ok(code.to_string())
    }

    fn cancelled(&self) -> Result<String> {
        self.dial()?;
        let [alice, bob, _] = &self.phones;
        // JsSIP sends its CANCEL after a provisional response only.
        alice.wait("progress")?;
        alice.ask("terminate", json!([]))?;
        alice.wait("failed")?;
        let failed = bob.wait("failed")?;
        ensure!(
            failed["originator"] == "remote" && failed["cause"] == "Canceled",
            "{failed}"
        );
        Ok("both have ended".to_owned())
    }

    /// Alice sends bob to carol (REFER) and hangs up.
    fn transferred(&self) -> Result<String> {
        self.establish()?;
        let [alice, bob, carol] = &self.phones;
        // `refer` only sends the REFER. Carol must answer before `transferred` comes.
        alice.ask("refer", json!(["sip:carol@example.org"]))?;
        let referred = bob.wait("refer")?;
        ensure!(referred["to"] == "sip:carol@example.org", "{referred}");
        let incoming = carol.wait("incoming")?;
        ensure!(incoming["from"] == "sip:bob@example.org", "{incoming}");
        carol.ask("answer", json!([]))?;
        let told = alice.wait("transferred")?;
        ensure!(told["code"] == 200, "{told}");
        bob.wait("confirmed")?;
        carol.wait("confirmed")?;
        alice.ask("terminate", json!([]))?;
        alice.wait("ended")?;
        bob.wait("ended")?;
        bob.ask("receives", json!([]))?;
        carol.ask("receives", json!([]))?;
        carol.ask("terminate", json!([]))?;
        bob.wait("ended")?;
        Ok("audio both ways after the transfer".to_owned())
    }

    /// A phone without DTLS-SRTP calls a page, which refuses the call (RFC 8827 §6.5). The server converts no media, so
    /// `code` is that of the phone in the page.
    fn called_by_plain(
        &self,
        page: &Phone<'_>,
        plain: &mut baresip::Phone,
        code: &str,
    ) -> Result<String> {
        page.ask("forget", json!([]))?;
        plain.forget()?;
        plain.command("dial", &page.uri())?;
        let incoming = page.wait("incoming")?;
        ensure!(incoming["from"] == "sip:dave@example.org", "{incoming}");
        page.ask("answer", json!([]))?;
        let closed = plain.wait("CALL_CLOSED")?;
        let reason = closed["param"].as_str().unwrap_or_default();
        ensure!(reason.starts_with(code), "{closed}");
        Ok(reason.to_owned())
    }

    fn called_by_pjsip(&self, pjsip: &mut Console) -> Result<String> {
        let alice = &self.phones[0];
        alice.ask("forget", json!([]))?;
        pjsip.forget();
        pjsip.command("dial sip:alice@example.org")?;
        let incoming = alice.wait("incoming")?;
        ensure!(incoming["from"] == "sip:frank@example.org", "{incoming}");
        alice.ask("answer", json!([]))?;
        let code = pjsip.take("ended ")?;
        ensure!(code == "488", "it ended with {code}");
        Ok(code)
    }

    pub(super) fn calls_without_srtp(&self, page: &Phone<'_>, user: &str) -> Result<String> {
        page.ask("forget", json!([]))?;
        page.ask("call", json!([format!("sip:{user}@example.org")]))?;
        let failed = page.wait("failed")?;
        ensure!(failed["code"] == 488, "{failed}");
        Ok("488".to_owned())
    }

    /// The server forwards the media descriptions untouched, so any phone with ICE and DTLS-SRTP will do.
    fn calls_webrtc(&self, page: &Phone<'_>, phone: &mut baresip::Phone) -> Result<String> {
        page.ask("forget", json!([]))?;
        phone.forget()?;
        page.ask("call", json!(["sip:erin@example.org"]))?;
        phone.wait("CALL_INCOMING")?;
        phone.command("accept", "")?;
        page.wait("confirmed")?;
        let outcome = self.hears(page)?;
        page.ask("terminate", json!([]))?;
        phone.wait("CALL_CLOSED")?;
        Ok(outcome)
    }

    fn called_by_webrtc(&self, page: &Phone<'_>, phone: &mut baresip::Phone) -> Result<String> {
        page.ask("forget", json!([]))?;
        phone.forget()?;
        phone.command("dial", &page.uri())?;
        page.wait("incoming")?;
        page.ask("answer", json!([]))?;
        phone.wait("CALL_ESTABLISHED")?;
        let outcome = self.hears(page)?;
        phone.command("hangup", "")?;
        let ended = page.wait("ended")?;
        ensure!(ended["originator"] == "remote", "{ended}");
        Ok(outcome)
    }

    /// Waits until a page receives sound through its relay. baresip sends back what it receives, so the sound has gone
    /// both ways.
    pub(super) fn hears(&self, phone: &Phone<'_>) -> Result<String> {
        let side = phone.ask("receives", json!([]))?;
        let now = &side["now"];
        ensure!(
            now["local"] == "relay" && now["dtls"] == "connected",
            "{side}"
        );
        let port = now["localPort"].as_u64().context("no port")?;
        ensure!(
            is_relay_of(&self.domain.output(), phone.user, port),
            "{side}"
        );
        Ok(format!("{} bytes of audio received", now["received"]))
    }

    fn stop(&self) -> Result<String> {
        for phone in self.phones.iter().chain([&self.sip_js]) {
            phone.ask("stop", json!([]))?;
        }
        Ok(format!("{} phones", self.phones.len() + 1))
    }
}

impl<'a> Phone<'a> {
    /// Opens the page in a tab of its own.
    fn open(browser: &'a Browser, url: &str, user: &'static str) -> Result<Phone<'a>> {
        let tab = browser.open_tab()?;
        browser.open(url)?;
        Ok(Phone { browser, tab, user })
    }

    /// Its address of record.
    pub(super) fn uri(&self) -> String {
        format!("sip:{}@example.org", self.user)
    }

    /// Calls a function of the page's phone, such as `call` or `wait`, with a list of parameters. Waits for its result,
    /// and fails if the function fails.
    pub(super) fn ask(&self, function: &str, parameters: Value) -> Result<Value> {
        self.browser.switch_to(&self.tab)?;
        let script =
            "const [name, parameters, done] = arguments; ask(name, parameters).then(done);";
        let outcome = self.browser.run(script, &json!([function, parameters]))?;
        ensure!(
            outcome["failure"].is_null(),
            "{function} of {}: {outcome}",
            self.user
        );
        Ok(outcome["value"].clone())
    }

    /// Waits for the next event of this name, such as `incoming`. Returns its fields.
    pub(super) fn wait(&self, event: &str) -> Result<Value> {
        self.ask("wait", json!([event]))
    }

    /// Registers at `server`. The phone reaches its relays over `transport`.
    fn register(&self, server: &str, password: &str, transport: &str) -> Result<Value> {
        self.ask("register", json!([server, self.user, password, transport]))
    }
}

/// What the statistics of one side say.
struct Report {
    /// Bytes of audio.
    received: u64,
    /// The port of its relayed transport address.
    port: u64,
}

/// Checks that one side has received audio. Both ends must use relays of the server at port `turn`, and this side must
/// reach its relay over `transport`.
fn judge(side: &Value, turn: u16, transport: &str) -> Result<Report> {
    let (first, now) = (&side["first"], &side["now"]);
    let received = |report: &Value| report["received"].as_u64();
    let count = received(now).context("no count of bytes")?;
    ensure!(received(first) < Some(count), "no more bytes");
    ensure!(now["energy"].as_f64() > Some(0.0), "silence");
    ensure!(now["dtls"] == "connected", "no DTLS-SRTP");
    ensure!(
        now["local"] == "relay" && now["remote"] == "relay",
        "the selected pair is not relay to relay"
    );
    let url = now["url"].as_str().unwrap_or_default();
    ensure!(
        url.ends_with(&format!(":{turn}?transport={transport}")),
        "the relay is not of the server over {transport}"
    );
    let port = |key: &str| {
        let port = now[key].as_u64().filter(|port| RELAY_PORTS.contains(port));
        port.with_context(|| format!("{key} is no relay port of the server"))
    };
    port("remotePort")?;
    Ok(Report {
        received: count,
        port: port("localPort")?,
    })
}

/// Whether the server's log says that it gave this user this relayed transport address.
fn is_relay_of(log: &str, user: &str, port: u64) -> bool {
    let owner = format!(":{user}@example.org");
    let relayed = format!("127.0.0.1:{port}");
    let opened = log
        .lines()
        .filter(|line| line.contains("allocation opened"));
    opened
        .filter(|line| line.contains(&owner))
        .any(|line| line.split(['"', ' ', '=']).any(|word| word == relayed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Value {
        let report = |received| {
            json!({
                "received": received, "energy": 0.5, "dtls": "connected", "local": "relay", "remote": "relay",
                "url": "turn:127.0.0.1:3478?transport=udp", "localPort": 60001, "remotePort": 60002,
            })
        };
        json!({ "first": report(100), "now": report(200) })
    }

    #[test]
    fn only_audio_by_relays_of_the_server_passes() {
        let report = judge(&good(), 3478, "udp").unwrap();
        assert_eq!((report.received, report.port), (200, 60001));
        assert!(judge(&good(), 3479, "udp").is_err());
        assert!(judge(&good(), 3478, "tcp").is_err());
        for (pointer, value) in [
            ("/first/received", json!(200)),
            ("/now/received", Value::Null),
            ("/now/energy", json!(0.0)),
            ("/now/energy", Value::Null),
            ("/now/dtls", json!("new")),
            ("/now/local", json!("host")),
            ("/now/remote", json!("prflx")),
            ("/now/localPort", json!(50000)),
            ("/now/remotePort", json!(50000)),
            ("/now/url", Value::Null),
        ] {
            let mut bad = good();
            *bad.pointer_mut(pointer).unwrap() = value;
            assert!(judge(&bad, 3478, "udp").is_err(), "{pointer}");
        }
    }

    #[test]
    fn an_allocation_belongs_to_its_user_and_port() {
        let log = "INFO allocation opened user=\"17:alice@example.org\" relayed=127.0.0.1:60001 lifetime_s=600\n";
        assert!(is_relay_of(log, "alice", 60001));
        assert!(!is_relay_of(log, "bob", 60001));
        assert!(!is_relay_of(log, "alice", 6000));
        assert!(!is_relay_of("", "alice", 60001));
    }
}
