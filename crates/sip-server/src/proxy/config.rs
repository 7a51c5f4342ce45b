//! The configuration of a proxy.

use std::time::Duration;

/// In which order the contacts of an address are tried (RFC 3261 §16.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Forking {
    /// Those of the greatest `q` at the same time, then those of the next. Contacts without `q` have 1.
    #[default]
    ByQ,
    /// All at the same time.
    Parallel,
    /// One after the other, by falling `q`.
    Sequential,
}

/// The configuration of a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Whether the proxy adds Record-Route, so that requests within dialogs pass through it (RFC 3261 §16.6 step 4).
    /// Default: yes.
    pub record_route: bool,
    /// In which order contacts are tried. Default: by `q`.
    pub forking: Forking,
    /// If there is a next group of contacts: how long an INVITE rings at a group before the proxy cancels it. Default
    /// 30 s.
    pub ring_time: Duration,
    /// Whether the proxy itself tries the contacts of a 3xx (RFC 3261 §16.7 step 4). Default: no.
    pub recurses: bool,
    /// The greatest Max-Breadth of a request, and the value for a request without one (RFC 5393 §5.3.3). Default 60.
    pub max_breadth: u32,
    /// Contacts that are tried for one request, at most 255. Default 32.
    pub max_branches: usize,
    /// Requests that wait for a location or for authentication are answered with 504 after this time. Default 10 s.
    pub lookup_time: Duration,
    /// How long a message waits for the media relay. Then an offer counts as failed, and an answer is forwarded as it
    /// is. Default 2 s.
    pub media_time: Duration,
    /// Requests at a time, at most 2^24. Default 1,000,000.
    pub most: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            record_route: true,
            forking: Forking::ByQ,
            ring_time: Duration::from_secs(30),
            recurses: false,
            max_breadth: 60,
            max_branches: 32,
            lookup_time: Duration::from_secs(10),
            media_time: Duration::from_secs(2),
            most: 1_000_000,
        }
    }
}
