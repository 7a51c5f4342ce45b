//! The values of all header fields of a kind: repeated fields and comma lists are one sequence (RFC 3261 §7.3.1).

use super::{Contact, HeaderError, HeaderKind, NameAddr, Via};
use crate::chars::{self, TOKEN};
use crate::cursor::Cursor;
use crate::message::Headers;

/// Defines an iterator over the values of a kind of header.
macro_rules! values {
    ($(#[$doc:meta])* $name:ident, $item:ident) => {
        $(#[$doc])*
        ///
        /// The first malformed value is an error and the last item: the values after it cannot be separated.
        #[derive(Clone, Debug)]
        pub struct $name<'a>(Values<'a>);

        impl<'a> $name<'a> {
            pub(crate) fn new(kind: HeaderKind, headers: Headers<'a>) -> Self {
                $name(Values::new(kind, headers))
            }
        }

        impl<'a> Iterator for $name<'a> {
            type Item = Result<$item<'a>, HeaderError>;

            #[inline]
            fn next(&mut self) -> Option<Self::Item> {
                self.0.next_with($item::read)
            }
        }
    };
}

values!(
    /// The values of Via, the topmost first.
    Vias,
    Via
);
values!(
    /// The values of Contact.
    Contacts,
    Contact
);
values!(
    /// The values of Route, Record-Route, Path or another list of addresses.
    NameAddrs,
    NameAddr
);

/// The tokens of a header like Require, Supported or Allow: methods and option tags.
///
/// A malformed list is an error and the last item.
#[derive(Clone, Debug)]
pub struct Tokens<'a>(Values<'a>);

impl<'a> Tokens<'a> {
    pub(crate) fn new(kind: HeaderKind, headers: Headers<'a>) -> Self {
        Tokens(Values::new(kind, headers))
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Result<&'a [u8], HeaderError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next_with(|cursor| {
            cursor.skip_lws();
            Some(cursor.take(TOKEN)).filter(|token| !token.is_empty())
        })
    }
}

/// Where the next value begins.
#[derive(Clone, Debug)]
struct Values<'a> {
    kind: HeaderKind,
    current: Option<Cursor<'a>>,
    more: Headers<'a>,
}

impl<'a> Values<'a> {
    fn new(kind: HeaderKind, headers: Headers<'a>) -> Self {
        Values {
            kind,
            current: None,
            more: headers,
        }
    }

    /// The next value as `read` reads it.
    #[inline(always)]
    fn next_with<T>(
        &mut self,
        read: impl Fn(&mut Cursor<'a>) -> Option<T>,
    ) -> Option<Result<T, HeaderError>> {
        let mut cursor = match self.current.take() {
            Some(cursor) => cursor,
            None => Cursor::new(self.next_field()?),
        };
        let value = read(&mut cursor);
        cursor.skip_lws();
        match value {
            Some(_) if cursor.skip_if(b',') => self.current = Some(cursor),
            Some(_) if cursor.is_at_end() => {}
            _ => {
                self.more = Headers::empty();
                return Some(Err(HeaderError::Malformed(self.kind)));
            }
        }
        value.map(Ok)
    }

    /// The next field's value. Supported and its like may be empty (RFC 3261 §20.37), which adds nothing to the list.
    #[inline]
    fn next_field(&mut self) -> Option<&'a [u8]> {
        use HeaderKind::{Accept, AcceptEncoding, AcceptLanguage, Allow, Supported};
        let may_be_empty = matches!(
            self.kind,
            Accept | AcceptEncoding | AcceptLanguage | Allow | Supported
        );
        loop {
            let value = self.more.next()?.value;
            if !may_be_empty || !chars::trim(value).is_empty() {
                return Some(value);
            }
        }
    }
}
