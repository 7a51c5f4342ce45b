//! The phone and the lines of the PBX.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use sip::{HeaderKind, Method};

use super::TEST_TIMEOUT;
use crate::sip_client::phone::{credentials, value, values};
use crate::sip_client::status;

/// A request that is sent until its final response comes.
pub(super) struct Repeated {
    pub(super) request: String,
    pub(super) begun: Instant,
    pub(super) next: Instant,
    pub(super) wait: Duration,
}

impl Repeated {
    pub(super) fn new(request: String) -> Repeated {
        let begun = Instant::now();
        Repeated {
            request,
            begun,
            next: begun,
            wait: Duration::from_millis(100),
        }
    }

    /// The request, if it is to be sent now.
    pub(super) fn due(&mut self) -> Option<&str> {
        let now = Instant::now();
        assert!(
            now < self.begun + TEST_TIMEOUT,
            "no final response: {}",
            self.request
        );
        if now < self.next {
            return None;
        }
        self.next = now + self.wait;
        self.wait = (self.wait * 2).min(Duration::from_secs(4));
        Some(&self.request)
    }
}

/// The registration of the phone.
pub(super) struct Registration {
    pub(super) address: SocketAddr,
    pub(super) cseq: u32,
    pub(super) expires: u32,
    /// The Authorization field for the challenge that came last.
    pub(super) credentials: String,
    pub(super) request: Option<Repeated>,
    /// When the next request begins.
    pub(super) next: Instant,
}

/// What a response is for a registration.
pub(super) enum Answered {
    Accepted {
        expires: u32,
    },
    Refused,
    /// A provisional or repeated response, or a challenge.
    Nothing,
}

impl Registration {
    pub(super) fn new(address: SocketAddr) -> Registration {
        Registration {
            address,
            cseq: 0,
            expires: 3600,
            credentials: String::new(),
            request: None,
            next: Instant::now(),
        }
    }

    /// What is to be sent now.
    pub(super) fn due(&mut self, is_last: bool) -> Option<&str> {
        if self.request.is_none() && Instant::now() >= self.next {
            self.expires = if is_last { 0 } else { 3600 };
            self.begin();
        }
        self.request.as_mut()?.due()
    }

    pub(super) fn begin(&mut self) {
        self.cseq += 1;
        let (cseq, address, expires) = (self.cseq, self.address, self.expires);
        self.request = Some(Repeated::new(format!(
            "REGISTER sip:example.com SIP/2.0\r\nVia: SIP/2.0/UDP {address};branch=z9hG4bKr{cseq};rport\r\n\
             From: <sip:ann@example.com>;tag=1\r\nTo: <sip:ann@example.com>\r\nCall-ID: ann@phone\r\n\
             CSeq: {cseq} REGISTER\r\nMax-Forwards: 70\r\nContact: <sip:ann@{address}>;expires={expires}\r\n\
             {}Content-Length: 0\r\n\r\n",
            std::mem::take(&mut self.credentials),
        )));
    }

    pub(super) fn answered(&mut self, response: &str) -> Answered {
        let code = status(response);
        let is_of_request = value(response, "CSeq") == format!("{} REGISTER", self.cseq);
        if self.request.is_none() || !is_of_request || code < 200 {
            return Answered::Nothing;
        }
        self.request = None;
        match code {
            200 => {
                let contacts = values(response, "Contact");
                let is_bound = contacts
                    .iter()
                    .any(|it| it.contains(&self.address.to_string()));
                assert_eq!(is_bound, self.expires > 0, "{response}");
                self.next = Instant::now() + Duration::from_secs(1);
                Answered::Accepted {
                    expires: self.expires,
                }
            }
            401 => {
                let (kind, uri) = (HeaderKind::Authorization, "sip:example.com");
                self.credentials = credentials(response, kind, "ann", Method::Register, uri);
                self.begin();
                Answered::Nothing
            }
            _ => {
                self.next = Instant::now() + Duration::from_millis(100);
                Answered::Refused
            }
        }
    }
}

/// A line of the PBX.
pub(super) struct Line {
    pub(super) socket: UdpSocket,
    /// By Call-ID, the last 200 to an INVITE that arrived when its call was not the current one.
    pub(super) late: RefCell<BTreeMap<String, String>>,
}

impl Line {
    /// Stores a response if it accepts an INVITE.
    pub(super) fn note_late(&self, text: String) {
        if status(&text) == 200 && value(&text, "CSeq") == "1 INVITE" {
            let id = value(&text, "Call-ID").to_owned();
            self.late.borrow_mut().insert(id, text);
        }
    }

    /// Reads the responses that have arrived, and sends an ACK and a BYE for each late call. Returns how many.
    pub(super) fn end_late_calls(&self) -> u64 {
        let mut buffer = [0; 65_536];
        while let Ok(length) = self.socket.recv(&mut buffer) {
            self.note_late(String::from_utf8_lossy(&buffer[..length]).into_owned());
        }
        let late = std::mem::take(&mut *self.late.borrow_mut());
        for (id, ok) in &late {
            let call = Call {
                line: self,
                id: id.clone(),
                uri: "sip:late@example.com",
            };
            call.send(&call.request("ACK", 1, Some(ok)));
            call.send(&call.request("BYE", 2, Some(ok)));
        }
        late.len() as u64
    }
}

pub(super) struct Call<'a> {
    pub(super) line: &'a Line,
    pub(super) id: String,
    pub(super) uri: &'static str,
}

impl Call<'_> {
    /// A request of the call, along the route of its 200.
    pub(super) fn request(&self, method: &str, cseq: u32, ok: Option<&str>) -> String {
        let (mut uri, mut to, mut route) = (
            self.uri.to_owned(),
            format!("<{}>", self.uri),
            String::new(),
        );
        if let Some(ok) = ok {
            let contact = value(ok, "Contact").trim_matches(['<', '>']);
            (uri, to) = (contact.to_owned(), value(ok, "To").to_owned());
            for value in values(ok, "Record-Route").into_iter().rev() {
                route += &format!("Route: {value}\r\n");
            }
        }
        let here = self.line.socket.local_addr().expect("bound");
        format!(
            "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/UDP {here};branch=z9hG4bK{}{cseq}{method};rport\r\n{route}\
             From: <sip:pbx@{here}>;tag=1\r\nTo: {to}\r\nCall-ID: {}\r\nCSeq: {cseq} {method}\r\n\
             Max-Forwards: 70\r\nContact: <sip:pbx@{here}>\r\nContent-Length: 0\r\n\r\n",
            self.id.replace('@', "."),
            self.id,
        )
    }

    /// Sends until the final response comes.
    pub(super) fn ask(&self, method: &str, cseq: u32, ok: Option<&str>) -> String {
        let mut request = Repeated::new(self.request(method, cseq, ok));
        let mut buffer = [0; 65_536];
        loop {
            if let Some(text) = request.due() {
                self.send(text);
            }
            let Ok(length) = self.line.socket.recv(&mut buffer) else {
                continue;
            };
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            let is_of_call = value(&text, "Call-ID") == self.id;
            if is_of_call
                && value(&text, "CSeq") == format!("{cseq} {method}")
                && status(&text) >= 200
            {
                return text;
            }
            if !is_of_call {
                self.line.note_late(text);
            }
        }
    }

    pub(super) fn send(&self, text: &str) {
        // A full buffer of our own is no matter.
        let _ = self.line.socket.send(text.as_bytes());
    }

    /// The final response, which is acknowledged. The ACK for a refusal has the branch of the INVITE.
    pub(super) fn invite(&self) -> String {
        let response = self.ask("INVITE", 1, None);
        if status(&response) == 200 {
            self.send(&self.request("ACK", 1, Some(&response)));
            return response;
        }
        let ack = self.request("ACK", 1, None);
        let to = format!("To: {}\r\n", value(&response, "To"));
        let ack = ack.replacen(&format!("To: <{}>\r\n", self.uri), &to, 1);
        self.send(&ack.replacen("1ACK;rport", "1INVITE;rport", 1));
        response
    }
}
