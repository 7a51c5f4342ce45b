//! Push notifications (RFC 8599), which wake phones whose app is suspended. A worker hands each one to a hook, and
//! never waits for it.

use super::settings::SipConfig;
use sip_server::Aor;
use sip_server::proxy::{PushConfig, PushRequest};
use sip_server::push::RefreshPush;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a phone is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PushReason {
    /// A call waits for it.
    Call,
    /// Its binding ends soon (RFC 8599 §5.5).
    Refresh,
}

/// A phone that is to be woken. It registers again then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// Why.
    pub reason: PushReason,
    /// The push service: `pn-provider` of the contact (RFC 8599 §4.1).
    pub provider: String,
    /// The token of the phone at this service: `pn-prid`.
    pub prid: String,
    /// What this service needs besides: `pn-param`.
    pub param: Option<String>,
    /// The address of record of the phone.
    pub aor: String,
    /// The URI in From; empty without a call.
    pub from: String,
    /// The Call-ID; empty without a call.
    pub call_id: String,
    /// How long the call waits for the phone, or how long its binding lasts.
    pub wait: Duration,
}

/// Sends push notifications. It is called on a worker's thread, so it must not block: it should put the notification
/// into a bounded queue. It returns whether the notification will be sent.
#[derive(Clone)]
pub struct PushHook(Arc<dyn Fn(Push) -> bool + Send + Sync>);

impl PushHook {
    /// From a function.
    pub fn new(send: impl Fn(Push) -> bool + Send + Sync + 'static) -> PushHook {
        PushHook(Arc::new(send))
    }
}

impl fmt::Debug for PushHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PushHook")
    }
}

impl PartialEq for PushHook {
    fn eq(&self, other: &PushHook) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for PushHook {}

/// How phones are woken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushSettings {
    /// The push services, such as `fcm`. A phone that registers with another one gets 555.
    pub providers: Vec<String>,
    /// How long a call waits for the REGISTER of the phone.
    pub wait: Duration,
    /// A phone that has registered within this time is awake.
    pub awake: Duration,
    /// Calls of all workers that wait at a time. Further calls do not wait.
    pub calls: u32,
    /// How long before its binding ends a phone is woken to refresh it (RFC 8599 §5.5): more than 120 s. The 200 to a
    /// phone that refreshes by itself says so in whole seconds.
    pub refresh: Duration,
    /// Sends them.
    pub hook: PushHook,
}

/// The push notifications of a worker.
#[derive(Debug)]
pub(super) struct Pusher {
    settings: Option<(PushSettings, PushConfig)>,
    /// Notifications handed to the hook.
    pub(super) sent: u64,
    /// Notifications that the hook did not accept.
    pub(super) dropped: u64,
}

impl Pusher {
    pub(super) fn new(sip_config: &SipConfig) -> Pusher {
        Pusher {
            settings: settings(sip_config),
            sent: 0,
            dropped: 0,
        }
    }

    /// New settings.
    pub(super) fn apply_settings(&mut self, sip_config: &SipConfig) {
        self.settings = settings(sip_config);
    }

    pub(super) fn config(&self) -> Option<PushConfig> {
        let (_, config) = self.settings.as_ref()?;
        Some(config.clone())
    }

    pub(super) fn push(&mut self, request: &PushRequest<'_>) -> bool {
        push_of(request).is_some_and(|push| self.send(push))
    }

    /// Has a phone refresh its binding. Returns whether the notification was accepted.
    pub(super) fn push_refresh(&mut self, aor: &Aor, phone: RefreshPush) -> bool {
        let RefreshPush { params, left } = phone;
        let (Some(provider), Some(prid)) = (params.provider, params.prid) else {
            return true;
        };
        self.send(Push {
            reason: PushReason::Refresh,
            provider,
            prid,
            param: params.param,
            aor: String::from_utf8_lossy(aor.as_bytes()).into_owned(),
            from: String::new(),
            call_id: String::new(),
            wait: left,
        })
    }

    fn send(&mut self, push: Push) -> bool {
        let Some((settings, _)) = &self.settings else {
            return false;
        };
        let is_sent = (settings.hook.0)(push);
        match is_sent {
            true => self.sent += 1,
            false => self.dropped += 1,
        }
        is_sent
    }
}

fn settings(sip_config: &SipConfig) -> Option<(PushSettings, PushConfig)> {
    let settings = sip_config.settings.push.clone()?;
    let config = PushConfig {
        providers: settings.providers.clone().into(),
        wait: settings.wait,
        awake: settings.awake,
        most: sip_config.share(settings.calls),
    };
    Some((settings, config))
}

fn push_of(request: &PushRequest<'_>) -> Option<Push> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let from = request.message.from().ok();
    Some(Push {
        reason: PushReason::Call,
        provider: request.params.provider.clone()?,
        prid: request.params.prid.clone()?,
        param: request.params.param.clone(),
        aor: text(request.aor.as_bytes()),
        from: from.map(|from| text(from.uri)).unwrap_or_default(),
        call_id: text(request.message.call_id().unwrap_or_default()),
        wait: request.wait,
    })
}
