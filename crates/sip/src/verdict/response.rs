//! Responses: malformed ones are dropped without a reply.

use core::net::IpAddr;

use super::{DropReason, Element};
use crate::header::{HeaderError, Via};
use crate::message::Message;

/// Checks a response (RFC 3261 §8.1.3.3, §16.7, RFC 4475 §3.3.10); returns its topmost Via, and whether another Via is
/// below.
#[inline]
pub(crate) fn check<'a>(
    response: &Message<'a>,
    element: Element,
) -> Result<(Via<'a>, bool), DropReason> {
    let mut vias = response.vias();
    let Some(Ok(via)) = vias.next() else {
        return Err(DropReason::BadResponse);
    };
    if !via.is_sip_2_0 || is_well_formed(response).is_err() {
        return Err(DropReason::BadResponse);
    }
    let next = match vias.next() {
        None => return Ok((via, false)),
        Some(_) if element == Element::UserAgent => return Err(DropReason::NotOurs),
        Some(Err(_)) => return Err(DropReason::BadResponse),
        Some(Ok(via)) => via,
    };
    let goes_to = match next.maddr {
        Some(maddr) => maddr.ip(),
        None => next.received.or_else(|| next.host.ip()),
    };
    match goes_to.is_some_and(is_for_many) {
        true => Err(DropReason::Broadcast),
        false => Ok((via, true)),
    }
}

/// What every response has besides its Via.
#[inline]
fn is_well_formed(response: &Message<'_>) -> Result<(), HeaderError> {
    response.from()?;
    response.to()?;
    response.call_id()?;
    response.cseq()?;
    Ok(())
}

/// Whether more than one host would get it.
fn is_for_many(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_multicast() || matches!(ip, IpAddr::V4(v4) if v4.is_broadcast())
}
