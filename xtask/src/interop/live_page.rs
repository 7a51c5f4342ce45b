//! Opens the live page of a server under load in headless Chromium. It checks every view, the end of a session, the
//! test of the server, and the findings of axe-core about keyboards and screen readers. Screenshots of each view are
//! beside the logs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::certificate::Certificate;
use super::packages;
use super::server::free_ports;
use super::webdriver::Browser;
use crate::process::{self, Process};
use crate::tally::Tally;

const SECRET: &str = "a secret of the live page's test";
const TOKEN: &str = "a-token-of-the-live-pages-test";
const VIEWS: [&str; 7] = [
    "now",
    "sessions",
    "sip",
    "nodes",
    "failures",
    "configuration",
    "test",
];
/// Window sizes: those of a desktop and of a phone.
const DESKTOP_SIZE: [u32; 2] = [1180, 860];
const PHONE_SIZE: [u32; 2] = [390, 844];
/// How long a view may take to load and show its data.
const VIEW_TIMEOUT: Duration = Duration::from_secs(20);

/// The number of SIP users. Their numbers have one digit.
const PHONE_COUNT: usize = 8;

/// A server under load, and its live page.
struct LivePageServer {
    _engine: Process,
    _server: Process,
    _load: Process,
    _phones: Process,
    port: u16,
    url: String,
    logs: PathBuf,
    axe: String,
}

/// Installs axe-core. Returns its script.
pub(super) fn install(sources: &Path, tools: &Path) -> Result<String> {
    let folder = packages::npm("live-page", sources, tools)?;
    let script = folder.join("node_modules/axe-core/axe.min.js");
    std::fs::read_to_string(&script).with_context(|| script.display().to_string())
}

pub(super) fn run(
    binary: &Path,
    logs: &Path,
    certificate: &Certificate,
    axe: String,
) -> Result<Tally> {
    let mut tally = Tally::default();
    let server = LivePageServer::start(binary, logs, certificate, axe)?;
    let trusting = Browser::start(logs, |home| certificate.trust_in(home))?;
    let browser = &trusting;
    server.open(browser)?;
    tally.record("the live page shows every view", &server.views(browser));
    tally.record("the live page fits a phone, dark", &server.phone(browser));
    tally.record("the live page ends a session", &server.end_session(browser));
    tally.record(
        "the live page removes a binding",
        &server.remove_binding(browser),
    );
    let outcome = server.test_server(browser, ["works"; 3], "live-test.png");
    tally.record("the live page's test finds UDP, TCP and TLS", &outcome);
    let firewall = Firewall::closing_udp(server.port)?;
    let outcome = server.test_server(
        browser,
        ["fails", "works", "works"],
        "live-test-firewall.png",
    );
    drop(firewall);
    tally.record(
        "the live page's test names UDP when a firewall closes it",
        &outcome,
    );
    drop(trusting);
    // Both browsers use the same folder, so the second one starts after chromedriver of the first one has ended.
    let doubting = Browser::start(logs, |_| Ok(()))?;
    server.open(&doubting)?;
    let outcome = server.test_server(&doubting, ["works", "works", "fails"], "live-test-tls.png");
    tally.record("the live page's test names TLS when it fails", &outcome);
    Ok(tally)
}

impl LivePageServer {
    fn start(
        binary: &Path,
        logs: &Path,
        certificate: &Certificate,
        axe: String,
    ) -> Result<LivePageServer> {
        let (port, admin, engine) = (free_ports(2)?, free_ports(2)?, free_ports(1)?);
        let file = logs.join("live-page.toml");
        std::fs::write(&file, configuration(port, admin, engine, certificate))?;
        let mut command = process::command("redis-server");
        command.args([
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--port",
            &engine.to_string(),
        ]);
        let log = logs.join("live-page-redis.log");
        let mut redis = Process::start("redis-server", command, log)?;
        redis.wait_for(VIEW_TIMEOUT, |output| {
            output.contains("Ready to accept connections").then_some(())
        })?;
        let mut command = process::command(binary);
        command.args(["serve", "--dev", "--config"]).arg(&file);
        let mut server = Process::start("the server", command, logs.join("live-page.log"))?;
        server.wait_for(VIEW_TIMEOUT, |output| {
            output.contains("Stop with Ctrl-C").then_some(())
        })?;
        let mut command = process::command(binary);
        command
            .args([
                "load",
                "turn",
                &format!("127.0.0.1:{port}"),
                "--secret",
                SECRET,
            ])
            .args([
                "--clients",
                "40",
                "--rate",
                "4000",
                "--duration",
                "10m",
                "--size",
                "400",
            ]);
        let load = Process::start("the load", command, logs.join("live-page-load.log"))?;
        let phones = start_phones(binary, port + 1, logs)?;
        provoke_failures(binary, port)?;
        Ok(LivePageServer {
            _engine: redis,
            _server: server,
            _load: load,
            _phones: phones,
            port,
            url: format!("http://127.0.0.1:{admin}/"),
            logs: logs.to_owned(),
            axe,
        })
    }

    /// Loads the page, and enters the token with its controls.
    fn open(&self, browser: &Browser) -> Result<()> {
        browser.resize(DESKTOP_SIZE)?;
        browser.open(&self.url)?;
        let script = "const [token, done] = arguments;
            document.getElementById('token').click();
            document.getElementById('token-value').value = token;
            document.getElementById('token-ok').click();
            setTimeout(done, 500);";
        browser.run(script, &json!([TOKEN])).map(|_| ())
    }

    /// Shows a view, and waits until it contains a text.
    fn show(&self, browser: &Browser, view: &str, text: &str) -> Result<()> {
        let script = "const [view, text, limit, done] = arguments;
            location.hash = view;
            const end = Date.now() + limit;
            const look = () => {
                const shown = document.getElementById('view').innerText;
                if (shown.includes(text) || Date.now() > end) done(shown);
                else setTimeout(look, 100);
            };
            setTimeout(look, 300);";
        let limit = u64::try_from(VIEW_TIMEOUT.as_millis())?;
        let shown = browser.run(script, &json!([view, text, limit]))?;
        let shown = shown.as_str().unwrap_or_default();
        ensure!(
            shown.contains(text),
            "{view} does not show `{text}`: {shown}"
        );
        Ok(())
    }

    fn views(&self, browser: &Browser) -> Result<String> {
        // The charts need some samples.
        std::thread::sleep(Duration::from_secs(6));
        let mut findings = Vec::new();
        for (view, text) in [
            ("now", "Processor time of workers"),
            ("sessions", "Relayed address"),
            ("sip", "example-carrier"),
            ("sip", "@example.org"),
            ("sip", "answered"),
            ("nodes", "frankfurt (this node)"),
            ("failures", "wrong password"),
            ("configuration", "live-page.toml:"),
            ("test", "Test now"),
        ] {
            self.show(browser, view, text)?;
            std::thread::sleep(Duration::from_millis(600));
            browser.screenshot(&self.logs.join(format!("live-{view}.png")))?;
            findings.extend(self.audit(browser, view)?);
        }
        ensure!(findings.is_empty(), "axe-core: {}", findings.join("; "));
        Ok(format!(
            "{} views, no serious finding of axe-core",
            VIEWS.len()
        ))
    }

    fn phone(&self, browser: &Browser) -> Result<String> {
        browser.resize(PHONE_SIZE)?;
        browser.prefer_dark(true)?;
        let mut findings = Vec::new();
        for view in VIEWS {
            self.show(browser, view, "")?;
            std::thread::sleep(Duration::from_millis(1200));
            browser.screenshot(&self.logs.join(format!("live-{view}-phone.png")))?;
            let script = "arguments[0](document.documentElement.scrollWidth - document.documentElement.clientWidth);";
            let beyond = browser.run(script, &json!([]))?;
            ensure!(
                beyond == json!(0),
                "the view {view} is {beyond} pixels wider than the window"
            );
            findings.extend(self.audit(browser, view)?);
        }
        browser.prefer_dark(false)?;
        browser.resize(DESKTOP_SIZE)?;
        ensure!(findings.is_empty(), "axe-core: {}", findings.join("; "));
        Ok(format!("{} pixels wide, nothing is cut off", PHONE_SIZE[0]))
    }

    /// The serious and critical findings of axe-core.
    fn audit(&self, browser: &Browser, view: &str) -> Result<Vec<String>> {
        let script = format!(
            "const done = arguments[0]; {};
            axe.run(document).then((found) => done(found.violations), (error) => done(String(error)));",
            self.axe
        );
        let violations = browser.run(&script, &json!([]))?;
        let list = violations
            .as_array()
            .with_context(|| format!("axe-core: {violations}"))?;
        let is_serious =
            |of: &&Value| matches!(of["impact"].as_str(), Some("serious" | "critical"));
        let say = |of: &Value| {
            let node = &of["nodes"][0];
            format!(
                "{view}: {} at {}: {}",
                of["id"], node["target"], node["failureSummary"]
            )
        };
        Ok(list.iter().filter(is_serious).map(say).collect())
    }

    fn end_session(&self, browser: &Browser) -> Result<String> {
        self.show(browser, "sessions", "End")?;
        self.press_first(browser, "has ended.", "session.end")
    }

    fn remove_binding(&self, browser: &Browser) -> Result<String> {
        self.show(browser, "sip", "@example.org")?;
        self.press_first(browser, "is removed.", "sip.binding.remove")
    }

    /// Presses the first button of the table, and confirms. The row must go, and the page must say so.
    fn press_first(&self, browser: &Browser, said_at_end: &str, audit: &str) -> Result<String> {
        let script = "const [limit, end_of_text, done] = arguments;
            const button = document.querySelector('button.danger.small');
            const row = button.getAttribute('aria-label');
            button.click();
            document.getElementById('confirm-ok').click();
            const end = Date.now() + limit;
            const look = () => {
                const said = document.getElementById('message').textContent;
                const isThere = [...document.querySelectorAll('button.danger.small')]
                    .some((button) => button.getAttribute('aria-label') === row);
                if ((said.endsWith(end_of_text) && !isThere) || Date.now() > end) done({ said, isThere });
                else setTimeout(look, 100);
            };
            look();";
        let limit = u64::try_from(VIEW_TIMEOUT.as_millis())?;
        let outcome = browser.run(script, &json!([limit, said_at_end]))?;
        let said = outcome["said"].as_str().unwrap_or_default();
        ensure!(
            said.ends_with(said_at_end) && outcome["isThere"] == json!(false),
            "{outcome}"
        );
        let log = std::fs::read_to_string(self.logs.join("live-page.log"))?;
        ensure!(
            log.contains(&format!("audit: {audit}")),
            "live-page.log has no line `audit: {audit}` for what the page has changed"
        );
        Ok(said.to_owned())
    }

    /// Runs the page's test of the server. The results of UDP, TCP and TLS must be `expected`.
    fn test_server(&self, browser: &Browser, expected: [&str; 3], picture: &str) -> Result<String> {
        self.show(browser, "test", "Test now")?;
        let script = "const [done] = arguments;
            document.getElementById('test-start').click();
            const list = document.getElementById('test-results');
            const look = () => {
                if (list.dataset.state !== 'done') return setTimeout(look, 100);
                const results = [...list.children].map((card) => [card.dataset.transport, card.dataset.result]);
                done({ results, text: list.innerText });
            };
            look();";
        let outcome = browser.run(script, &json!([]))?;
        browser.screenshot(&self.logs.join(picture))?;
        let results = outcome["results"].as_array().cloned().unwrap_or_default();
        for (transport, expected) in ["udp", "tcp", "tls"].into_iter().zip(expected) {
            let of = |result: &&Value| result[0] == json!(transport);
            let mut found = results.iter().filter(of).peekable();
            ensure!(found.peek().is_some(), "no URI of {transport}: {outcome:#}");
            ensure!(
                found.all(|result| result[1] == json!(expected)),
                "{transport} at port {} is not `{expected}`: {outcome:#}",
                self.port
            );
        }
        let [udp, tcp, tls] = expected;
        Ok(format!(
            "UDP {udp}, TCP {tcp}, TLS {tls}; {} URIs",
            results.len()
        ))
    }
}

/// An nftables table. It is removed when this value is dropped.
struct Firewall;

const NFT_TABLE: &str = "hairpin_live_page";

impl Firewall {
    /// Drops UDP to a port of this machine.
    fn closing_udp(port: u16) -> Result<Firewall> {
        let firewall = Firewall;
        nft(&format!(
            "table inet {NFT_TABLE} {{ chain input {{ type filter hook input priority 0; udp dport {port} drop; }}; }}"
        ))?;
        Ok(firewall)
    }
}

impl Drop for Firewall {
    fn drop(&mut self) {
        // If it is not there, the test has failed already.
        let _ = nft(&format!("delete table inet {NFT_TABLE}"));
    }
}

fn nft(commands: &str) -> Result<()> {
    let status = process::command("nft").arg(commands).status()?;
    ensure!(status.success(), "nft refuses `{commands}`: {status}");
    Ok(())
}

/// Clients with a wrong password and with an unknown name, for the view of failures.
fn provoke_failures(binary: &Path, port: u16) -> Result<()> {
    for user in ["alice:wrong", "nobody:x"] {
        let mut command: Command = process::command(binary);
        let target = format!("127.0.0.1:{port}");
        let status = command
            .args(["probe", "turn", &target, "--user", user])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()?;
        ensure!(
            !status.success(),
            "the server accepts the wrong credentials {user}"
        );
    }
    Ok(())
}

/// Phones that register and call each other.
fn start_phones(binary: &Path, sip: u16, logs: &Path) -> Result<Process> {
    let mut command = process::command(binary);
    command
        .args([
            "load",
            "sip",
            &format!("127.0.0.1:{sip}"),
            "--workload",
            "proxy",
        ])
        .args(["--aors", &PHONE_COUNT.to_string(), "--user", "u{n}:pw{n}"])
        .args(["--domain", "example.org", "--rate", "1/s", "--hold", "5s"])
        .args(["--duration", "10m"]);
    Process::start("the phones", command, logs.join("live-page-phones.log"))
}

fn configuration(port: u16, admin: u16, engine: u16, certificate: &Certificate) -> String {
    let Certificate { chain, key, .. } = certificate;
    let user = |n| format!("{{ name = \"u{n}\", password = \"pw{n}\" }}");
    let users: Vec<String> = (0..PHONE_COUNT).map(user).collect();
    format!(
        "[server]\nworkers = 2\ncontrol_socket = \"off\"\n\
         [listen]\nudp = [\"127.0.0.1:{port}\"]\n\
         [tls]\ncertificates = [{{ certificate = {chain:?}, key = {key:?} }}]\n\
         [relay]\naddresses = [\"127.0.0.1\"]\nports = \"64000-65535\"\n\
         [auth]\nrealm = \"turn.example.org\"\nsecrets = [{SECRET:?}]\nusers = [{{ name = \"alice\", password = \"wonderland\" }}]\n\
         [sip]\nlisten = [\"127.0.0.1:{sip}\"]\ncall_log = true\n[[sip.domain]]\nname = \"example.org\"\nusers = [{users}]\n\
         [[sip.trunk]]\nname = \"example-carrier\"\nto = [\"sip:127.0.0.1:9\"]\n\
         [cluster]\nnode = \"frankfurt\"\nsecret = \"a secret of the live page's cluster\"\nengine = \"redis://127.0.0.1:{engine}/0\"\n\
         [admin]\nlisten = \"127.0.0.1:{admin}\"\ntokens = [{TOKEN:?}]\n",
        sip = port + 1,
        users = users.join(", "),
    )
}
