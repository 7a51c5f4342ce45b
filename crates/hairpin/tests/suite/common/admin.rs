//! What a running server says at its admin listener.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::{Serve, TEST_TIMEOUT};

impl Serve {
    /// The address and the port of the admin listener.
    pub(crate) fn admin(&self) -> &str {
        self.value("admin").split('/').nth(2).expect("a URL")
    }

    /// The response to a GET request, with its status line and its fields.
    pub(crate) fn get(&self, path: &str) -> String {
        let address = self.admin();
        let mut stream = TcpStream::connect(address).expect("the admin listener");
        let limit = stream.set_read_timeout(Some(TEST_TIMEOUT));
        limit.expect("a timeout can be set");
        let sent = write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        );
        sent.expect("it is sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("a response");
        text
    }

    /// The value of the first sample of this metric with these labels.
    pub(crate) fn metric(&self, name: &str, labels: &str) -> Option<f64> {
        let text = self.get("/metrics");
        let line = text
            .lines()
            .find(|line| line.starts_with(name) && line.contains(labels))?;
        line.rsplit_once(' ')?.1.parse().ok()
    }
}
