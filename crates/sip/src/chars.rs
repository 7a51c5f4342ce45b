//! The character classes of RFC 3261 §25.1, one table look-up each.

/// `token`: names of headers, parameters and methods.
pub(crate) const TOKEN: u16 = 1;
/// Linear white space, where line ends occur only as parts of folds (what [`crate::message`] has made sure of).
pub(crate) const LWS: u16 = 1 << 1;
/// Host names and IPv4 addresses; `_` is no part of the grammar and of many real names.
pub(crate) const HOST: u16 = 1 << 2;
/// What may stand in a parameter's value without quotes: `token`, and the rest of `host`.
pub(crate) const VALUE: u16 = 1 << 3;
/// `unreserved`, what needs no escape in a URI.
pub(crate) const UNRESERVED: u16 = 1 << 4;
/// `unreserved`, `reserved` and `%`: any byte a URI may have.
pub(crate) const URIC: u16 = 1 << 5;
/// A word of a Call-ID (RFC 3261 §25.1, `word`), and `@`.
pub(crate) const CALL_ID: u16 = 1 << 6;
/// Decimal digits.
pub(crate) const DIGIT: u16 = 1 << 7;
/// `user`, but for escapes.
pub(crate) const USER: u16 = 1 << 8;
/// `password`, but for escapes.
pub(crate) const PASSWORD: u16 = 1 << 9;
/// Names and values of URI parameters, but for escapes.
pub(crate) const URI_PARAM: u16 = 1 << 10;
/// Names and values of URI headers, but for escapes.
pub(crate) const URI_HEADER: u16 = 1 << 11;
/// `scheme`, behind its first letter.
pub(crate) const SCHEME: u16 = 1 << 12;
/// `reserved`: what an escape does not stand for.
pub(crate) const RESERVED: u16 = 1 << 13;

static CLASSES: [u16; 256] = classes();

const fn classes() -> [u16; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let byte = i as u8;
        if byte.is_ascii_alphanumeric() {
            table[i] = TOKEN | HOST | VALUE | UNRESERVED | URIC | CALL_ID | SCHEME;
            table[i] |= USER | PASSWORD | URI_PARAM | URI_HEADER;
        }
        if byte.is_ascii_digit() {
            table[i] |= DIGIT;
        }
        i += 1;
    }
    set(&mut table, b"-.!%*_+`'~", TOKEN | VALUE | CALL_ID);
    set(&mut table, b" \t\r\n", LWS);
    set(&mut table, b"-._", HOST);
    set(&mut table, b"[]:", VALUE);
    set(&mut table, b"-_.!~*'()", UNRESERVED | URIC);
    set(
        &mut table,
        b"-_.!~*'()",
        USER | PASSWORD | URI_PARAM | URI_HEADER,
    );
    set(&mut table, b"&=+$,;?/", USER);
    set(&mut table, b"&=+$,", PASSWORD);
    set(&mut table, b"[]/:&+$", URI_PARAM);
    set(&mut table, b"[]/?:+$", URI_HEADER);
    set(&mut table, b"+-.", SCHEME);
    set(&mut table, b";/?:@&=+$,", RESERVED);
    set(&mut table, b";/?:@&=+$,%[]", URIC);
    set(&mut table, b"()<>:\\\"/[]?{}@", CALL_ID);
    table
}

const fn set(table: &mut [u16; 256], bytes: &[u8], class: u16) {
    let mut i = 0;
    while i < bytes.len() {
        table[bytes[i] as usize] |= class;
        i += 1;
    }
}

/// Whether `byte` is of one of these classes.
#[inline(always)]
pub(crate) fn is(byte: u8, class: u16) -> bool {
    CLASSES[usize::from(byte)] & class != 0
}

/// Whether all bytes, and at least one, are of one of these classes.
#[inline]
pub(crate) fn all(bytes: &[u8], class: u16) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&byte| is(byte, class))
}

/// `bytes` without linear white space around it.
#[inline]
pub(crate) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = bytes {
        if !is(*first, LWS) {
            break;
        }
        bytes = rest;
    }
    while let [rest @ .., last] = bytes {
        if !is(*last, LWS) {
            break;
        }
        bytes = rest;
    }
    bytes
}

/// A decimal number of at least one digit; `None` if it is none or does not fit.
#[inline]
pub(crate) fn decimal(bytes: &[u8]) -> Option<u32> {
    if bytes.is_empty() {
        return None;
    }
    let mut number: u32 = 0;
    for &byte in bytes {
        if !byte.is_ascii_digit() {
            return None;
        }
        number = number
            .checked_mul(10)?
            .checked_add(u32::from(byte - b'0'))?;
    }
    Some(number)
}
