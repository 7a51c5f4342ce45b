//! Copies of SIP messages for administrators, as the user writes the keys.

use server::sip::TraceSettings;

use super::schema::Settings;
use super::setting::{FromText, Mistake};

/// A HEP packet has few bytes besides the message.
const MAX_PASSWORD_BYTES: usize = 255;

/// The authenticate key of HEP packets; empty: none.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Password(String);

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password(***)")
    }
}

impl FromText for Password {
    const EXPECTED: &'static str = "a text like \"homer\"";
    const SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, Mistake> {
        match text.len() {
            0..=MAX_PASSWORD_BYTES => Ok(Self(text.to_owned())),
            length => Err(Mistake::new(format!("the password has {length} bytes"))
                .help(format!("use at most {MAX_PASSWORD_BYTES} bytes"))),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The plain values.
pub(super) fn resolve(settings: &Settings) -> Option<TraceSettings> {
    let s = settings.clone();
    let mut trace = TraceSettings::default();
    trace.memory = s.sip_trace_memory?.value.0;
    trace.collectors = super::values(s.sip_trace_hep?.value);
    trace.capture_id = s.sip_trace_hep_id?.value.0;
    trace.password = s.sip_trace_hep_password?.value.0;
    Some(trace)
}
