//! Drops messages of denied sources, of banned sources, and of tools that scan for open servers.

use super::bans::{Bans, FailureResult};
use super::settings::SipConfig;
use ipnet::IpNet;
use sip::{HeaderKind, Message};
use std::net::IpAddr;
use std::time::Duration;

/// Why a message was dropped, in the order of [`SipCounters::screened`](super::SipCounters::screened).
pub const SCREENED: [&str; 3] = ["denied", "banned", "scanner"];

/// The screen of one worker.
#[derive(Debug)]
pub(super) struct SourceFilter {
    deny: Vec<IpNet>,
    /// Exceptions from `deny` and from bans; trunks are among them.
    allow: Vec<IpNet>,
    /// The beginnings of User-Agent, in lower case.
    scanners: Vec<Vec<u8>>,
    ban: Duration,
    pub(super) bans: Bans,
    pub(super) counts: [u64; SCREENED.len()],
}

impl SourceFilter {
    pub(super) fn new(sip_config: &SipConfig, bans: Bans) -> SourceFilter {
        let settings = &sip_config.settings;
        let trunks = settings.trunks.iter();
        let trunks = trunks.flat_map(|trunk| trunk.addresses.iter().copied());
        let scanners = settings.scanners.iter();
        SourceFilter {
            deny: settings.deny.clone(),
            allow: settings.allow.iter().copied().chain(trunks).collect(),
            scanners: scanners
                .map(|name| name.to_ascii_lowercase().into_bytes())
                .collect(),
            ban: settings.ban,
            bans,
            counts: [0; SCREENED.len()],
        }
    }

    /// New settings. Bans stay until they end.
    pub(super) fn apply_settings(&mut self, sip_config: &SipConfig) {
        *self = SourceFilter {
            counts: self.counts,
            ..SourceFilter::new(sip_config, self.bans.clone())
        };
    }

    /// Whether messages of this source are dropped. If so, this counts one.
    pub(super) fn drops(&mut self, unix_s: u64, source: IpAddr) -> bool {
        let is_banned = self.bans.is_banned(unix_s, source);
        if self.deny.is_empty() && !is_banned {
            return false;
        }
        let source = source.to_canonical();
        let is_in = |networks: &[IpNet]| networks.iter().any(|network| network.contains(&source));
        if is_in(&self.allow) {
            return false;
        }
        let place = match (is_in(&self.deny), is_banned) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => return false,
        };
        self.counts[place] += 1;
        true
    }

    /// Whether a request comes from a tool that scans, and is dropped. `is_proven`: its source address is verified.
    pub(super) fn is_scanner(
        &mut self,
        message: &Message<'_>,
        (unix_s, source, is_proven): (u64, IpAddr, bool),
    ) -> bool {
        let Some(agent) = message.header(HeaderKind::UserAgent) else {
            return false;
        };
        let begins = |name: &Vec<u8>| {
            let start = agent.value.get(..name.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(name))
        };
        if !self.scanners.iter().any(begins) {
            return false;
        }
        self.counts[2] += 1;
        if is_proven
            && self.bans.note_failure(unix_s * 1000, source, self.ban) == FailureResult::Banned
        {
            log_ban(source, self.ban);
        }
        true
    }
}

/// Logs a ban. There is one line per ban, and only for verified source addresses.
pub(super) fn log_ban(source: IpAddr, time: Duration) {
    let source = source.to_canonical();
    tracing::warn!(%source, seconds = time.as_secs(), "source banned");
}
