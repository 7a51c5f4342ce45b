//! The few WebDriver commands that the browser tests need, over plain HTTP to a chromedriver on this machine.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use serde_json::{Value, json};

use crate::process::{self, Process};
use crate::tools;

/// How long a command may take. The limit for scripts is lower, so that chromedriver responds first.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(90);
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(60);

/// A browser. It closes when this value is dropped.
pub(crate) struct Browser {
    // Its end closes the browser, if the browser is still open.
    driver: Process,
    port: u16,
    session: String,
    // After the driver: fields are dropped in this order.
    _scratch: ScratchFolder,
}

/// One tab of a browser with several.
pub(crate) struct Tab(String);

/// The folder that Chromium uses as TMPDIR. It is not below `target`, whose path may be too long for a socket.
struct ScratchFolder(PathBuf);

impl ScratchFolder {
    fn new() -> Result<ScratchFolder> {
        let folder = std::env::temp_dir().join(format!("xtask-browser-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        Ok(ScratchFolder(folder))
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Browser {
    /// Starts chromedriver and, through it, a headless Chromium with an empty profile, for a user whose home `prepare`
    /// fills.
    pub(crate) fn start(logs: &Path, prepare: impl FnOnce(&Path) -> Result<()>) -> Result<Browser> {
        Browser::start_with(logs, &[], prepare)
    }

    /// The same, with more arguments for Chromium.
    pub(crate) fn start_with(
        logs: &Path,
        arguments: &[&str],
        prepare: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Browser> {
        let mut command = process::command("chromedriver");
        let scratch = ScratchFolder::new()?;
        prepare(&scratch.0)?;
        command
            .arg("--port=0")
            .env("TMPDIR", &scratch.0)
            .env("HOME", &scratch.0);
        let mut driver = Process::start("chromedriver", command, logs.join("chromedriver.log"))?;
        let port = driver.wait_for(Duration::from_secs(20), |output| {
            output
                .split_once("started successfully on port ")?
                .1
                .split('.')
                .next()?
                .parse()
                .ok()
        })?;
        let mut browser = Browser {
            driver,
            port,
            session: String::new(),
            _scratch: scratch,
        };
        let created = browser.post(
            "/session",
            &json!({ "capabilities": { "alwaysMatch": capabilities(arguments) } }),
        )?;
        browser.session = created["sessionId"]
            .as_str()
            .context("chromedriver gives no session id")?
            .to_owned();
        browser.post(
            &browser.path("/timeouts"),
            &json!({ "script": SCRIPT_TIMEOUT.as_millis() }),
        )?;
        Ok(browser)
    }

    /// Loads a page and waits until it is loaded.
    pub(crate) fn open(&self, url: &str) -> Result<()> {
        self.post(&self.path("/url"), &json!({ "url": url }))
            .map(|_| ())
    }

    /// Opens another tab. Commands go to the tab that was opened or switched to last.
    pub(crate) fn open_tab(&self) -> Result<Tab> {
        let created = self.post(&self.path("/window/new"), &json!({ "type": "tab" }))?;
        let handle = created["handle"].as_str().context("a tab without handle")?;
        let tab = Tab(handle.to_owned());
        self.switch_to(&tab)?;
        Ok(tab)
    }

    /// Lets the commands that follow go to this tab.
    pub(crate) fn switch_to(&self, tab: &Tab) -> Result<()> {
        self.post(&self.path("/window"), &json!({ "handle": tab.0 }))
            .map(|_| ())
    }

    /// Runs a script whose last argument is a function to call with the result.
    pub(crate) fn run(&self, script: &str, arguments: &Value) -> Result<Value> {
        self.post(
            &self.path("/execute/async"),
            &json!({ "script": script, "args": arguments }),
        )
    }

    /// Gives the window this width and height.
    pub(crate) fn resize(&self, [width, height]: [u32; 2]) -> Result<()> {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics)
    }

    /// Sets `prefers-color-scheme` to dark or light.
    pub(crate) fn prefer_dark(&self, dark: bool) -> Result<()> {
        let value = if dark { "dark" } else { "light" };
        let feature = json!({ "name": "prefers-color-scheme", "value": value });
        self.devtools(
            "Emulation.setEmulatedMedia",
            &json!({ "features": [feature] }),
        )
    }

    /// Writes what the window shows to a PNG file.
    pub(crate) fn screenshot(&self, file: &Path) -> Result<()> {
        let picture = self.call("GET", &self.path("/screenshot"), "")?;
        let picture = picture.as_str().context("no screenshot")?;
        let bytes = base64::engine::general_purpose::STANDARD.decode(picture)?;
        std::fs::write(file, bytes).with_context(|| file.display().to_string())
    }

    /// A command of Chromium's own protocol.
    fn devtools(&self, command: &str, parameters: &Value) -> Result<()> {
        let body = json!({ "cmd": command, "params": parameters });
        self.post(&self.path("/goog/cdp/execute"), &body)
            .map(|_| ())
    }

    fn path(&self, command: &str) -> String {
        format!("/session/{}{command}", self.session)
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.call("POST", path, &body.to_string())
    }

    fn call(&self, method: &str, path: &str, body: &str) -> Result<Value> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(COMMAND_TIMEOUT))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )?;
        let body =
            read_body(stream).with_context(|| format!("chromedriver does not answer {path}"))?;
        let value: Value = serde_json::from_slice(&body)?;
        if let Some(error) = value["value"]["error"].as_str() {
            bail!(
                "{path}: {error}: {}{}",
                value["value"]["message"].as_str().unwrap_or(""),
                self.driver.tail()
            );
        }
        Ok(value["value"].clone())
    }
}

/// Reads an HTTP response of chromedriver. It has a length, and the connection stays open.
fn read_body(stream: TcpStream) -> Result<Vec<u8>> {
    let mut reader = BufReader::new(stream);
    let mut length = None;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((_, value)) = line
            .split_once(':')
            .filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        {
            length = Some(value.trim().parse()?);
        }
    }
    let mut body = vec![0; length.context("an answer without Content-Length")?];
    reader.read_exact(&mut body)?;
    Ok(body)
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let _ = self.call("DELETE", &self.path(""), "");
        }
    }
}

fn capabilities(more: &[&str]) -> Value {
    let mut arguments = vec![
        "--headless",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
    ];
    arguments.extend(more);
    if tools::is_root() {
        // Chromium's sandbox refuses to start for root.
        arguments.push("--no-sandbox");
    }
    json!({ "browserName": "chrome", "goog:chromeOptions": { "args": arguments } })
}
