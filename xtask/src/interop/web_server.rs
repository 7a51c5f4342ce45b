//! A web server on this machine: Chromium lets a page from a file load no module, and gives it no microphone.

use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::server::free_ports;
use super::sip::START_TIMEOUT;
use crate::process::{self, Process};

/// Python's web server for one folder. It ends when dropped.
pub(super) struct WebServer {
    _process: Process,
    pub(super) port: u16,
}

impl WebServer {
    /// Serves this folder.
    pub(super) fn start(folder: &Path, logs: &Path) -> Result<WebServer> {
        let port = free_ports(1)?;
        let mut command = process::command("python3");
        command
            .args(["-m", "http.server", &port.to_string()])
            .args(["--bind", "127.0.0.1", "--directory"])
            .arg(folder);
        let log = logs.join("web-server.log");
        let mut process = Process::start("the web server", command, log)?;
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            process.assert_running()?;
            ensure!(Instant::now() < deadline, "it is deaf: {}", process.tail());
            sleep(Duration::from_millis(50));
        }
        Ok(WebServer {
            _process: process,
            port,
        })
    }

    /// Of its pages, as browsers write it.
    pub(super) fn origin(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}
