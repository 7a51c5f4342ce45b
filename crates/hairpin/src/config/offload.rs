//! The keys of `[offload]`.

use super::setting::{FromText, Mistake, one_of, word};

/// By which method the kernel relays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OffloadMode {
    /// The best that is safe on each interface.
    Auto,
    /// Native XDP, or the server does not start.
    Xdp,
    /// A classifier, or the server does not start.
    Tc,
    /// User space relays everything.
    Off,
}

const MODES: [(&str, OffloadMode); 4] = [
    ("auto", OffloadMode::Auto),
    ("xdp", OffloadMode::Xdp),
    ("tc", OffloadMode::Tc),
    ("off", OffloadMode::Off),
];

impl FromText for OffloadMode {
    const EXPECTED: &'static str = "\"auto\", \"xdp\", \"tc\" or \"off\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        one_of(text, &MODES)
    }

    fn to_text(&self) -> String {
        word(&MODES, *self)
    }
}

/// What happens to Binding requests above their rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BindingExcess {
    /// User space answers them.
    User,
    /// Binding requests above the limit are dropped.
    Drop,
}

const EXCESSES: [(&str, BindingExcess); 2] =
    [("user", BindingExcess::User), ("drop", BindingExcess::Drop)];

impl FromText for BindingExcess {
    const EXPECTED: &'static str = "\"user\" or \"drop\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        one_of(text, &EXCESSES)
    }

    fn to_text(&self) -> String {
        word(&EXCESSES, *self)
    }
}
