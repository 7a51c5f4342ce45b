//! What a REGISTER is answered with (RFC 3261 §10.3 step 8).

use sip::Now;
use sip::build::{BuildError, Builder, Part};
use sip::header::HeaderKind;
use sip::uri::{escape_user, starts_with_sips};

use super::gruu::{TempGruus, escape_instance};
use super::{Config, Domain, MAX_INSTANCE, Refusal};
use crate::date::date;
use crate::location::{Binding, Change};
use crate::{Aor, AorKey, MAX_AOR};

/// An answer: what the embedder makes a response of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistrarResponse<'b> {
    /// The status code.
    pub code: u16,
    /// The reason phrase; empty for the usual one.
    pub reason: &'static str,
    /// Header lines, each with its line end.
    pub headers: &'b [u8],
}

impl<'b> RegistrarResponse<'b> {
    pub(super) const fn with_lines(code: u16, headers: &'b [u8]) -> RegistrarResponse<'b> {
        RegistrarResponse {
            code,
            reason: "",
            headers,
        }
    }

    /// A 420 for these extensions (RFC 3261 §8.2.2.3).
    pub(super) fn unsupported<'t>(
        buffer: &'b mut [u8],
        tags: impl Iterator<Item = &'t [u8]>,
    ) -> RegistrarResponse<'b> {
        let mut lines = Builder::fields(buffer);
        lines.list(HeaderKind::Unsupported, tags);
        // Without room it is a 420 that does not say why.
        RegistrarResponse::with_lines(420, lines.finish_fields().unwrap_or_default())
    }

    pub(super) fn refusal(buffer: &'b mut [u8], refusal: &Refusal) -> RegistrarResponse<'b> {
        let mut lines = Builder::fields(buffer);
        match refusal.code {
            420 => {
                lines.header(HeaderKind::Unsupported, b"path");
            }
            423 => {
                lines.number(HeaderKind::MinExpires, refusal.seconds);
            }
            503 => {
                lines.number(HeaderKind::RetryAfter, refusal.seconds);
            }
            _ => {}
        }
        RegistrarResponse {
            code: refusal.code,
            reason: refusal.reason,
            headers: lines.finish_fields().unwrap_or_default(),
        }
    }
}

/// What a 200 says besides the bindings.
pub(super) struct Listed<'l> {
    pub(super) now: Now,
    pub(super) config: &'l Config,
    pub(super) domain: &'l Domain,
    pub(super) aor: &'l Aor,
    pub(super) key: AorKey,
    pub(super) path: &'l [u8],
    /// Outbound was applied, and the user agent supports it.
    pub(super) is_outbound: bool,
    /// The user agent has a connection with this server.
    pub(super) is_connected: bool,
    /// For user agents that support GRUUs.
    pub(super) gruus: Option<&'l mut TempGruus>,
}

/// A binding and the number of its temporary GRUUs.
type Entry<'l> = (&'l Binding, u64);

impl Listed<'_> {
    /// Writes the header lines of the 200 for these bindings once they are changed so; says how many bytes they have.
    pub(super) fn write(
        mut self,
        bindings: &[Binding],
        steps: &[Change],
        buffer: &mut [u8],
    ) -> Result<usize, Refusal> {
        let entries = self.entries(bindings, steps);
        let mut lines = Builder::fields(buffer);
        // One distinguisher for all contacts of a response: with it each instance has one temporary GRUU there.
        let distinguisher = self.gruus.as_mut().map(|gruus| gruus.unique());
        for entry in &entries {
            self.add_contact(&mut lines, entry, distinguisher.unwrap_or_default());
        }
        if !self.path.is_empty() {
            lines.header(HeaderKind::Path, self.path);
        }
        if self.is_outbound {
            lines.header(HeaderKind::Require, b"outbound");
            // RFC 5626 §4.4.2: without it, a user agent sends keep-alives by UDP every 24 to 29 s, as NATs require.
            if let Some(seconds) = self.config.flow_timer.filter(|_| self.is_connected) {
                lines.number(HeaderKind::FlowTimer, seconds);
            }
        }
        let routes = self.domain.service_route.iter();
        lines.list(HeaderKind::ServiceRoute, routes.map(String::as_bytes));
        lines.header(HeaderKind::Date, &date(self.now.unix_s));
        let lines = lines.finish_fields();
        lines.map(<[u8]>::len).map_err(|error| match error {
            BuildError::NoRoom => Refusal::of(500, "Answer Too Long"),
            _ => Refusal::of(500, ""),
        })
    }

    /// All bindings as they will be: what is tried first comes first.
    fn entries<'b>(&self, bindings: &'b [Binding], steps: &'b [Change]) -> Vec<Entry<'b>> {
        let now = self.now.mono;
        let mut entries: Vec<Option<Entry<'b>>> = bindings
            .iter()
            .map(|binding| (!binding.is_expired(now)).then_some((binding, binding.gruu())))
            .collect();
        for step in steps {
            match step {
                // The places are those of `bindings`.
                Change::Remove(place) => entries[*place] = None,
                Change::Replace(place, binding) => {
                    entries[*place] = Some((binding, binding.gruu()));
                }
                Change::SetGruu(place, gruu) => {
                    if let Some(entry) = &mut entries[*place] {
                        entry.1 = *gruu;
                    }
                }
                Change::Add(binding) => entries.push(Some((binding, binding.gruu()))),
            }
        }
        let mut entries: Vec<Entry<'b>> = entries.into_iter().flatten().collect();
        // RFC 3261 §20.10: a greater q is preferred; without one it is as if it were the greatest.
        entries.sort_by_key(|(binding, _)| {
            let q = binding.q().unwrap_or(1000);
            std::cmp::Reverse((q, binding.updated()))
        });
        entries
    }

    /// Adds a Contact line with its parameters, and with GRUUs if the binding has an instance.
    fn add_contact(&self, lines: &mut Builder<'_>, entry: &Entry<'_>, distinguisher: u64) {
        let (binding, gruu) = *entry;
        let left = binding.expires().since(self.now.mono);
        let expires = left.as_secs() + u64::from(left.subsec_nanos() > 0);
        let mut q = [0; 5];
        let q = q_text(binding.q(), &mut q);
        let mut instance = [0; 3 * MAX_INSTANCE];
        let mut user = [0; 3 * MAX_AOR];
        let mut parts = [Part::Bytes(b""); 21];
        let head = [
            Part::Bytes(b"<"),
            Part::Bytes(binding.uri()),
            Part::Bytes(b">"),
            Part::Bytes(if q.is_empty() { b"" } else { b";q=" }),
            Part::Bytes(q),
            Part::Bytes(b";expires="),
            Part::Number(u32::try_from(expires).unwrap_or(u32::MAX)),
            Part::Bytes(binding.params()),
        ];
        parts[..8].copy_from_slice(&head);
        let temp = self.gruus.as_ref().filter(|_| gruu != 0);
        let temp = temp.map(|gruus| gruus.write(distinguisher, self.key, gruu));
        if let Some(temp) = &temp {
            // RFC 5630 §5.2.1: GRUUs have the scheme of the contact.
            let scheme: &[u8] = match starts_with_sips(binding.uri()) {
                true => b"sips:",
                false => b"sip:",
            };
            let user = escape_user(self.aor.user().unwrap_or_default(), &mut user);
            let instance = escape_instance(binding.instance(), &mut instance);
            let gruus = [
                Part::Bytes(b";pub-gruu=\""),
                Part::Bytes(scheme),
                Part::Bytes(user.unwrap_or_default()),
                Part::Bytes(if self.aor.user().is_some() { b"@" } else { b"" }),
                Part::Bytes(self.aor.domain()),
                Part::Bytes(b";gr="),
                Part::Bytes(instance.unwrap_or_default()),
                Part::Bytes(b"\";temp-gruu=\""),
                Part::Bytes(scheme),
                Part::Bytes(temp),
                Part::Bytes(b"@"),
                Part::Bytes(self.aor.domain()),
                Part::Bytes(b";gr\""),
            ];
            parts[8..].copy_from_slice(&gruus);
        }
        lines.header_of(HeaderKind::Contact, &parts);
    }
}

/// A priority in thousandths as a `qvalue`, without the zeros at its end; empty for none.
fn q_text(q: Option<u16>, buffer: &mut [u8; 5]) -> &[u8] {
    let Some(q) = q else { return &[] };
    let digit = |weight: u16| b'0' + (q / weight % 10) as u8;
    *buffer = [digit(1000), b'.', digit(100), digit(10), digit(1)];
    match buffer.iter().rposition(|&byte| byte != b'0') {
        Some(1) | None => &buffer[..1],
        Some(last) => &buffer[..=last],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_written_as_short_as_they_can_be() {
        for (q, text) in [
            (Some(1000), "1"),
            (Some(500), "0.5"),
            (Some(750), "0.75"),
            (Some(1), "0.001"),
            (Some(0), "0"),
            (None, ""),
        ] {
            assert_eq!(q_text(q, &mut [0; 5]), text.as_bytes());
        }
    }
}
