//! The sides of a call with a media relay, and the session descriptions of messages.

use std::hash::{DefaultHasher, Hash, Hasher};

use sip::Message;
use sip::header::HeaderKind;

/// How one side of a call sends media. The relay makes session descriptions for this side of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum MediaProfile {
    /// RTP without ICE, as a trunk has it.
    Rtp = 1,
    /// RTP. The session description offers ICE; the side may ignore it.
    RtpWithIce = 2,
    /// SRTP with keys in SDP (RFC 4568).
    SrtpSdes = 3,
    /// SRTP with keys by DTLS (RFC 5764).
    SrtpDtls = 4,
    /// A browser: SRTP with keys by DTLS and with feedback (RFC 5124), and ICE.
    WebRtc = 5,
}

impl MediaProfile {
    const fn of(number: u8) -> Option<MediaProfile> {
        match number {
            1 => Some(MediaProfile::Rtp),
            2 => Some(MediaProfile::RtpWithIce),
            3 => Some(MediaProfile::SrtpSdes),
            4 => Some(MediaProfile::SrtpDtls),
            5 => Some(MediaProfile::WebRtc),
            _ => None,
        }
    }

    /// The profile of the side that has made this session description, by the protocol of its first `m=` line.
    pub(super) fn of_sdp(sdp: &[u8]) -> MediaProfile {
        let mut lines = sdp.split(|byte| *byte == b'\n');
        let media = lines.find(|line| line.starts_with(b"m="));
        let mut words = media.unwrap_or_default().split(|byte| *byte == b' ');
        match words.nth(2) {
            Some(b"RTP/SAVP") => MediaProfile::SrtpSdes,
            Some(b"UDP/TLS/RTP/SAVP") => MediaProfile::SrtpDtls,
            Some(b"UDP/TLS/RTP/SAVPF" | b"RTP/SAVPF") => MediaProfile::WebRtc,
            _ => MediaProfile::RtpWithIce,
        }
    }
}

/// Whether a session description offers or accepts ICE (RFC 8839 §5.4).
pub(super) fn has_ice(sdp: &[u8]) -> bool {
    let mut lines = sdp.split(|byte| *byte == b'\n');
    lines.any(|line| line.starts_with(b"a=ice-ufrag:"))
}

/// What a token of Record-Route has about one side, if the media of the dialog go through a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) struct DialogSide {
    pub(in crate::proxy) profile: MediaProfile,
    /// Whether this side has sent the INVITE.
    pub(in crate::proxy) is_caller: bool,
    /// The number of the session at the relay.
    pub(in crate::proxy) session: u32,
}

/// The highest of the four bits of a side. It is set for the caller's side.
const CALLER: u8 = 8;

impl DialogSide {
    /// The four bits of the token: the profile, and whether it is the caller. They are never 0.
    pub(in crate::proxy) const fn bits(self) -> u8 {
        self.profile as u8 | if self.is_caller { CALLER } else { 0 }
    }

    /// The side with these bits; `None` if no side has them.
    pub(in crate::proxy) fn of(bits: u8, session: u32) -> Option<DialogSide> {
        Some(DialogSide {
            profile: MediaProfile::of(bits & (CALLER - 1))?,
            is_caller: bits & CALLER != 0,
            session,
        })
    }
}

/// A request is in a dialog whose media go through a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) struct RelayedDialog {
    /// The side that it goes to.
    pub(in crate::proxy) to: DialogSide,
    /// The profile of the side that it comes from.
    pub(in crate::proxy) from: MediaProfile,
}

/// The session description of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body<'m> {
    /// It has none.
    Empty,
    Sdp(&'m [u8]),
    /// It may have one in a form that is not rewritten: in several parts, or encoded.
    Other,
}

impl<'m> Body<'m> {
    pub(super) fn of(message: &Message<'m>) -> Body<'m> {
        if message.body().is_empty() {
            return Body::Empty;
        }
        let kind = message.content_type().ok().flatten();
        let is_sdp = kind.is_some_and(|kind| {
            kind.main.eq_ignore_ascii_case(b"application") && kind.sub.eq_ignore_ascii_case(b"sdp")
        });
        match is_sdp && !message.has(HeaderKind::ContentEncoding) {
            true => Body::Sdp(message.body()),
            false => Body::Other,
        }
    }

    pub(super) const fn sdp(self) -> Option<&'m [u8]> {
        match self {
            Body::Sdp(sdp) => Some(sdp),
            Body::Empty | Body::Other => None,
        }
    }
}

/// The hash of all parts. Copies of one message have the same hash.
pub(super) fn hash_of(parts: &[&[u8]]) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_media_stream_says_what_its_side_needs() {
        for (protocol, side) in [
            ("RTP/AVP", MediaProfile::RtpWithIce),
            ("RTP/AVPF", MediaProfile::RtpWithIce),
            ("RTP/SAVP", MediaProfile::SrtpSdes),
            ("UDP/TLS/RTP/SAVP", MediaProfile::SrtpDtls),
            ("UDP/TLS/RTP/SAVPF", MediaProfile::WebRtc),
            ("RTP/SAVPF", MediaProfile::WebRtc),
            ("", MediaProfile::RtpWithIce),
        ] {
            let sdp = format!("v=0\r\ns=m=\r\nm=audio 9 {protocol} 0\r\nm=video 9 RTP/AVP 99\r\n");
            assert_eq!(MediaProfile::of_sdp(sdp.as_bytes()), side, "{protocol}");
        }
        for sdp in ["", "v=0", "m=", "m=audio", "m=audio 9"] {
            assert_eq!(
                MediaProfile::of_sdp(sdp.as_bytes()),
                MediaProfile::RtpWithIce
            );
        }
    }

    #[test]
    fn a_side_of_a_dialog_has_four_bits_that_are_not_zero() {
        for bits in 0..16 {
            let side = DialogSide::of(bits, 7);
            assert_eq!(side.is_some(), matches!(bits & 7, 1..=5), "{bits}");
            assert!(side.is_none_or(|side| side.bits() == bits && side.session == 7));
        }
    }
}
