//! One record: the state of one address of record.

use sip::{Mono, Now};

use crate::Aor;
use crate::flow::{FLOW_LEN, FlowId};
use crate::location::{Binding, NewBinding};

/// Bytes of length and checksum.
pub(super) const PREFIX_LEN: usize = 8;
/// Bytes of the longest state. A length above it is none.
pub const MAX_RECORD: usize = 16 << 20;

/// What the state of a record with User-Agents begins with. The state of an older record begins with the length of an
/// address, which is not 0.
const WITH_AGENTS: u8 = 0;

/// Bytes of a binding besides its texts: nine lengths and places of 2 bytes, two numbers of 4, three of 8.
const BINDING_LEN: usize = 9 * 2 + 2 * 4 + 3 * 8;

/// Why a record whose checksum is right cannot be understood: another program wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("a record of the location log is not in its format")]
pub(super) struct StateError;

/// Appends the record of an address that has these bindings now. `false` if they are too many for a record: nothing is
/// appended then.
pub(super) fn append(out: &mut Vec<u8>, now: Now, aor: &[u8], bindings: &[Binding]) -> bool {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX_LEN]);
    out.push(WITH_AGENTS);
    // Both fit: an address has at most 254 bytes.
    out.push(aor.len() as u8);
    out.extend_from_slice(aor);
    let count = u16::try_from(bindings.len());
    out.extend_from_slice(&count.unwrap_or_default().to_le_bytes());
    // In the order of their refreshes, which the times of another run may not show.
    let mut order: Vec<&Binding> = bindings.iter().collect();
    order.sort_by_key(|binding| binding.updated());
    for binding in order {
        append_binding(out, now, &binding.parts());
    }
    let len = out.len() - start - PREFIX_LEN;
    if len > MAX_RECORD || count.is_err() {
        out.truncate(start);
        return false;
    }
    out[start..start + 4].copy_from_slice(&(len as u32).to_le_bytes());
    let crc = checksum(len as u32, &out[start + PREFIX_LEN..]);
    out[start + 4..start + PREFIX_LEN].copy_from_slice(&crc.to_le_bytes());
    true
}

/// Bytes of a binding in a record.
pub(super) fn record_len(binding: &Binding) -> usize {
    BINDING_LEN + binding.text_len()
}

fn checksum(len: u32, state: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&len.to_le_bytes());
    hasher.update(state);
    hasher.finalize()
}

fn append_binding(out: &mut Vec<u8>, now: Now, parts: &NewBinding<'_>) {
    let mut flow = [0; FLOW_LEN];
    let flow = match &parts.flow {
        Some(id) => id.write(&mut flow),
        None => &[],
    };
    // The texts of a binding have at most 65,535 bytes each; so has what precedes the instance.
    let len = |text: &[u8]| (text.len() as u16).to_le_bytes();
    let mut places = parts.params.windows(parts.instance.len().max(1));
    let instance_at = places.position(|place| place == parts.instance);
    out.extend_from_slice(&len(parts.uri));
    out.extend_from_slice(&len(parts.params));
    out.extend_from_slice(&len(parts.call_id));
    out.extend_from_slice(&len(parts.path));
    out.extend_from_slice(&len(flow));
    out.extend_from_slice(&(instance_at.unwrap_or_default() as u16).to_le_bytes());
    out.extend_from_slice(&len(parts.instance));
    out.extend_from_slice(&len(parts.agent));
    out.extend_from_slice(&parts.q.to_le_bytes());
    out.extend_from_slice(&parts.cseq.to_le_bytes());
    out.extend_from_slice(&parts.reg_id.to_le_bytes());
    out.extend_from_slice(&parts.gruu.to_le_bytes());
    out.extend_from_slice(&to_unix(now, parts.expires).to_le_bytes());
    out.extend_from_slice(&to_unix(now, parts.updated).to_le_bytes());
    let NewBinding {
        uri,
        params,
        call_id,
        path,
        agent,
        ..
    } = parts;
    for text in [uri, params, call_id, path, agent, &flow] {
        out.extend_from_slice(text);
    }
}

/// Seconds since 1970 of a point of the monotonic clock, rounded up.
fn to_unix(now: Now, at: Mono) -> u64 {
    match at >= now.mono {
        true => {
            let ahead = at.since(now.mono);
            let seconds = ahead.as_secs() + u64::from(ahead.subsec_nanos() > 0);
            now.unix_s.saturating_add(seconds)
        }
        false => now.unix_s.saturating_sub(now.mono.since(at).as_secs()),
    }
}

/// A point of the monotonic clock; the earliest if it was before that clock began.
fn from_unix(now: Now, unix_s: u64) -> Mono {
    match unix_s.checked_sub(now.unix_s) {
        Some(ahead) => now.mono.plus_secs(ahead),
        None => {
            let past = (now.unix_s - unix_s).saturating_mul(1_000_000_000);
            Mono(now.mono.0.saturating_sub(past))
        }
    }
}

/// What one record says.
#[derive(Clone, Copy, Debug)]
pub(super) struct State<'a> {
    /// The address of record in canonical form.
    pub(super) aor: &'a [u8],
    /// Whether its bindings have a User-Agent.
    has_agents: bool,
    count: u16,
    rest: &'a [u8],
}

/// The state in front of `bytes`, with the bytes of its record; `None` if there is no whole record with a right
/// checksum.
pub(super) fn split(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len);
    if len as usize > MAX_RECORD {
        return None;
    }
    let state = rest.get(..len as usize)?;
    (checksum(len, state) == u32::from_le_bytes(*crc)).then_some((state, PREFIX_LEN + state.len()))
}

/// The length in the header of the record at the start of `bytes`, which may be wrong.
pub(super) fn claimed_len(bytes: &[u8]) -> Option<usize> {
    let len = u32::from_le_bytes(*bytes.first_chunk::<4>()?) as usize;
    (len <= MAX_RECORD).then_some(PREFIX_LEN + len)
}

impl<'a> State<'a> {
    /// Reads a state.
    ///
    /// # Errors
    /// [`StateError`] if it is none. Errors in its bindings are found only when the bindings are read.
    pub(super) fn read(state: &'a [u8]) -> Result<State<'a>, StateError> {
        let mut rest = Reader(state);
        let [mut len] = rest.array()?;
        let has_agents = len == WITH_AGENTS;
        if has_agents {
            [len] = rest.array()?;
        }
        let aor = rest.take(len.into())?;
        Aor::from_canonical(aor).ok_or(StateError)?;
        let count = u16::from_le_bytes(rest.array()?);
        Ok(State {
            aor,
            has_agents,
            count,
            rest: rest.0,
        })
    }

    /// The bindings that have not ended.
    ///
    /// # Errors
    /// [`StateError`] if one of them is not in the format.
    pub(super) fn bindings(&self, now: Now) -> Result<Vec<Binding>, StateError> {
        let mut rest = Reader(self.rest);
        let mut bindings = Vec::with_capacity(self.count.into());
        let mut earlier = None;
        for _ in 0..self.count {
            let mut parts = rest.binding(now, self.has_agents)?;
            // The order stays, also of times before the monotonic clock began.
            parts.updated = parts
                .updated
                .max(earlier.map_or(Mono(0), |at: Mono| Mono(at.0 + 1)));
            earlier = Some(parts.updated);
            if parts.expires > now.mono {
                bindings.push(Binding::new(&parts).map_err(|_| StateError)?);
            }
        }
        match rest.0 {
            [] => {
                bindings.shrink_to_fit();
                Ok(bindings)
            }
            _ => Err(StateError),
        }
    }

    /// Whether a binding is left.
    ///
    /// # Errors
    /// [`StateError`] if one of them is not in the format.
    pub(super) fn is_alive(&self, now: Now) -> Result<bool, StateError> {
        for parts in self.parts(now) {
            if parts?.expires > now.mono {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The bindings in the record, also those that have ended. Stop at the first error: what follows it has no meaning.
    pub(super) fn parts(
        &self,
        now: Now,
    ) -> impl Iterator<Item = Result<NewBinding<'a>, StateError>> + use<'a> {
        let (mut rest, has_agents) = (Reader(self.rest), self.has_agents);
        (0..self.count).map(move |_| rest.binding(now, has_agents))
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], StateError> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(StateError)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StateError> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or(StateError)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn u16(&mut self) -> Result<u16, StateError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, StateError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a binding. `has_agent`: the version of the log has the User-Agent of bindings.
    fn binding(&mut self, now: Now, has_agent: bool) -> Result<NewBinding<'a>, StateError> {
        let mut len = [0; 5];
        for len in &mut len {
            *len = usize::from(self.u16()?);
        }
        let [uri, params, call_id, path, flow] = len;
        let instance_at = usize::from(self.u16()?);
        let instance_len = usize::from(self.u16()?);
        let agent = match has_agent {
            true => usize::from(self.u16()?),
            false => 0,
        };
        let q = self.u16()?;
        let cseq = u32::from_le_bytes(self.array()?);
        let reg_id = u32::from_le_bytes(self.array()?);
        let gruu = self.u64()?;
        let expires = from_unix(now, self.u64()?);
        let updated = from_unix(now, self.u64()?);
        let uri = self.take(uri)?;
        let params = self.take(params)?;
        let call_id = self.take(call_id)?;
        let path = self.take(path)?;
        let agent = self.take(agent)?;
        let flow = self.take(flow)?;
        let instance = params.get(instance_at..instance_at + instance_len);
        Ok(NewBinding {
            uri,
            params,
            instance: instance.ok_or(StateError)?,
            call_id,
            cseq,
            path,
            agent,
            flow: match flow {
                [] => None,
                flow => Some(FlowId::read(flow).ok_or(StateError)?),
            },
            q,
            reg_id,
            gruu,
            expires,
            updated,
        })
    }
}
