//! One registration binding, packed.

use sip::{Mono, Uri};

use crate::flow::{FLOW_LEN, FlowId};
use crate::registrar::is_same_instance;

/// Bytes of the User-Agent that a binding keeps.
pub const MAX_AGENT: usize = 32;

/// The contact names no `q`.
pub const NO_Q: u16 = u16::MAX;

/// What a binding is made of. Texts are as they are in messages, without line ends.
#[derive(Clone, Copy, Debug)]
pub struct NewBinding<'a> {
    /// The URI of the contact, without brackets.
    pub uri: &'a [u8],
    /// The parameters of the contact, each with its semicolon, without `q`, `expires` and those that a registrar adds.
    pub params: &'a [u8],
    /// The instance (RFC 5626 §4.1) within `params`, without quotes and brackets; empty if there is none.
    pub instance: &'a [u8],
    /// Call-ID of the request that made or refreshed it.
    pub call_id: &'a [u8],
    /// CSeq of that request.
    pub cseq: u32,
    /// The route to the contact (RFC 3327): the values of Path, with commas between.
    pub path: &'a [u8],
    /// User-Agent of that request (RFC 3261 §20.41), of which [`MAX_AGENT`] bytes are kept; empty if it has none.
    pub agent: &'a [u8],
    /// The flow that the request came by. With `path`, it may end at a proxy that is not the first hop of `path`. `None`:
    /// `path` is empty, and another hop was in between.
    pub flow: Option<FlowId>,
    /// The priority of the contact in thousandths, or [`NO_Q`].
    pub q: u16,
    /// `reg-id` (RFC 5626 §4.2); 0 if the binding is that of a URI.
    pub reg_id: u32,
    /// The number of the temporary GRUUs of the instance; 0 if there are none.
    pub gruu: u64,
    /// When it ends.
    pub expires: Mono,
    /// When it was made or refreshed.
    pub updated: Mono,
}

/// A text of a binding is longer than 65,535 bytes, or the instance does not lie within the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("a text of the binding is too long to be kept")]
pub struct TooLong;

/// A binding between an address of record and a contact (RFC 3261 §10, RFC 5626 §6).
#[derive(Clone, PartialEq, Eq)]
pub struct Binding {
    /// URI, parameters, Call-ID, path, User-Agent and flow in a row: one allocation.
    text: Box<[u8]>,
    uri_len: u16,
    params_len: u16,
    call_id_len: u16,
    path_len: u16,
    /// At most [`MAX_AGENT`].
    agent_len: u8,
    /// Within `text`.
    instance_at: u16,
    instance_len: u16,
    pub(super) gruu: u64,
    expires: Mono,
    updated: Mono,
    cseq: u32,
    reg_id: u32,
    q: u16,
}

const _: () = assert!(size_of::<Binding>() <= 72, "part of 512 bytes a binding");

impl Binding {
    /// Packs a binding.
    ///
    /// # Errors
    /// [`TooLong`] if one of its texts is.
    pub fn new(new: &NewBinding<'_>) -> Result<Binding, TooLong> {
        let length = |text: &[u8]| u16::try_from(text.len()).map_err(|_| TooLong);
        let instance_at = match new.instance {
            [] => 0,
            instance => {
                let mut places = new.params.windows(instance.len());
                let place = places.position(|place| place == instance);
                new.uri.len() + place.ok_or(TooLong)?
            }
        };
        let mut flow = [0; FLOW_LEN];
        let flow = match &new.flow {
            Some(id) => id.write(&mut flow),
            None => &[],
        };
        let agent = &new.agent[..new.agent.len().min(MAX_AGENT)];
        let text = [new.uri, new.params, new.call_id, new.path, agent, flow].concat();
        Ok(Binding {
            text: text.into_boxed_slice(),
            uri_len: length(new.uri)?,
            params_len: length(new.params)?,
            call_id_len: length(new.call_id)?,
            path_len: length(new.path)?,
            agent_len: agent.len() as u8,
            instance_at: u16::try_from(instance_at).map_err(|_| TooLong)?,
            instance_len: length(new.instance)?,
            gruu: new.gruu,
            expires: new.expires,
            updated: new.updated,
            cseq: new.cseq,
            reg_id: new.reg_id,
            q: new.q,
        })
    }

    /// What it was made of.
    #[must_use]
    pub fn parts(&self) -> NewBinding<'_> {
        NewBinding {
            uri: self.uri(),
            params: self.params(),
            instance: self.instance(),
            call_id: self.call_id(),
            cseq: self.cseq,
            path: self.path(),
            agent: self.agent(),
            flow: self.source(),
            q: self.q,
            reg_id: self.reg_id,
            gruu: self.gruu,
            expires: self.expires,
            updated: self.updated,
        }
    }

    fn slice(&self, from: usize, len: u16) -> &[u8] {
        let end = from + usize::from(len);
        self.text.get(from..end).unwrap_or_default()
    }

    /// The URI of the contact, without brackets.
    #[must_use]
    pub fn uri(&self) -> &[u8] {
        self.slice(0, self.uri_len)
    }

    /// The parameters of the contact, each with its semicolon.
    #[must_use]
    pub fn params(&self) -> &[u8] {
        self.slice(self.uri_len.into(), self.params_len)
    }

    /// The instance of the user agent (RFC 5626 §4.1), without quotes and brackets; empty if it is not known.
    #[must_use]
    pub fn instance(&self) -> &[u8] {
        self.slice(self.instance_at.into(), self.instance_len)
    }

    /// Call-ID of the request that made or refreshed it.
    #[must_use]
    pub fn call_id(&self) -> &[u8] {
        let from = usize::from(self.uri_len) + usize::from(self.params_len);
        self.slice(from, self.call_id_len)
    }

    /// The route to the contact: values of a Route header field with commas between; empty if there is none
    /// (RFC 3327 §5.3).
    #[must_use]
    pub fn path(&self) -> &[u8] {
        self.slice(self.path_at(), self.path_len)
    }

    fn path_at(&self) -> usize {
        [self.uri_len, self.params_len, self.call_id_len]
            .map(usize::from)
            .iter()
            .sum()
    }

    /// The beginning of the User-Agent of the request that made or refreshed it; empty if it had none.
    #[must_use]
    pub fn agent(&self) -> &[u8] {
        self.slice(self.agent_at(), self.agent_len.into())
    }

    fn agent_at(&self) -> usize {
        self.path_at() + usize::from(self.path_len)
    }

    /// The flow to the contact (RFC 5626 §6). `None` if the binding has a Path, or if another hop was in between.
    #[must_use]
    pub fn flow(&self) -> Option<FlowId> {
        self.source().filter(|_| self.path_len == 0)
    }

    /// The flow that the REGISTER came by. With a Path, the last proxy sent it, which may not be the first hop. `None`:
    /// see [`NewBinding::flow`].
    #[must_use]
    pub fn source(&self) -> Option<FlowId> {
        let from = self.agent_at() + usize::from(self.agent_len);
        FlowId::read(self.text.get(from..)?)
    }

    /// The same binding, of a phone whose flow is lost: a push notification must wake it first (RFC 8599 §5.6.2).
    #[must_use]
    pub fn without_flow(&self) -> Binding {
        let len = self.agent_at() + usize::from(self.agent_len);
        let text = self.text.get(..len).unwrap_or_default();
        Binding {
            text: text.into(),
            ..self.clone()
        }
    }

    /// CSeq of the request that made or refreshed it.
    #[must_use]
    pub const fn cseq(&self) -> u32 {
        self.cseq
    }

    /// `reg-id`; 0 if the binding is that of a URI.
    #[must_use]
    pub const fn reg_id(&self) -> u32 {
        self.reg_id
    }

    /// The priority of the contact in thousandths, if it names one.
    #[must_use]
    pub const fn q(&self) -> Option<u16> {
        match self.q {
            NO_Q => None,
            q => Some(q),
        }
    }

    /// The number of the temporary GRUUs of the instance; 0 if there are none.
    #[must_use]
    pub const fn gruu(&self) -> u64 {
        self.gruu
    }

    /// When it ends.
    #[must_use]
    pub const fn expires(&self) -> Mono {
        self.expires
    }

    /// When it was made or refreshed.
    #[must_use]
    pub const fn updated(&self) -> Mono {
        self.updated
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_expired(&self, now: Mono) -> bool {
        self.expires <= now
    }

    /// Whether both are bindings of one flow (RFC 5626 §6), or of one contact (RFC 3261 §10.3 step 7). The registrar
    /// replaces the older one of two such bindings.
    pub(super) fn is_of_same_phone(&self, other: &Binding) -> bool {
        match (self.reg_id, other.reg_id) {
            (0, 0) => {
                self.uri() == other.uri()
                    || Uri::parse(self.uri()).is_ok_and(|uri| Uri::parse(other.uri()) == Ok(uri))
            }
            (one, same) if one == same => is_same_instance(self.instance(), other.instance()),
            _ => false,
        }
    }

    /// Bytes of its texts.
    #[must_use]
    pub fn text_len(&self) -> usize {
        self.text.len()
    }
}

impl std::fmt::Debug for Binding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Binding")
            .field("uri", &self.uri().escape_ascii().to_string())
            .field("params", &self.params().escape_ascii().to_string())
            .field("reg_id", &self.reg_id)
            .field("cseq", &self.cseq)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}
