//! The exec protocol's messages (providers 1.3): one byte of stream id, or raw bytes on a terminal, and JSON texts.
//!
//! Pure and total: whatever a server sends becomes an event or nothing. An exit code must be there: a frame `03` without
//! its byte is the failure `closed_before_exit`, never an exit 0 (RUL-2, RUL-L-96).

use bytes::{Bytes, BytesMut};
use serde_json::Value;

/// Standard input, client to server.
pub const STDIN: u8 = 0;
/// Standard output.
pub const STDOUT: u8 = 1;
/// Standard error.
pub const STDERR: u8 = 2;
/// The exit code, in one byte.
pub const EXIT: u8 = 3;
/// End of standard input, client to server.
pub const STDIN_EOF: u8 = 4;

/// What a message means.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The session behind this socket; the first message of a server that keeps its obligations.
    SessionInfo {
        session_id: String,
        tty: bool,
    },
    Stdout(Bytes),
    Stderr(Bytes),
    /// The verdict; nothing counts after it.
    Exit(i64),
    /// The server ended the command without a code.
    NoVerdict,
}

/// A piece of a WebSocket message, whatever library read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Text(Bytes),
    Binary(Bytes),
    FirstText(Bytes),
    FirstBinary(Bytes),
    Continue(Bytes),
    Last(Bytes),
}

/// A message was longer than [`LONGEST_MESSAGE`], or its pieces are out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message")]
pub struct Malformed;

/// Most bytes of one message: servers cut output at 64 KiB, some clients refuse 10 MiB.
pub const LONGEST_MESSAGE: usize = 16 * 1024 * 1024;

/// Reads the messages of one socket.
#[derive(Debug, Default)]
pub struct Decoder {
    tty: bool,
    partial: Option<(Kind, BytesMut)>,
    /// A text exit outside a terminal: the byte protocol's own frame is the verdict, this one only stands in for it.
    said_exit: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Binary,
}

impl Decoder {
    /// A decoder of a socket that is, as far as is known, a terminal or not. `session_info` has the last word.
    pub fn new(tty: bool) -> Self {
        Self { tty, ..Self::default() }
    }

    /// Whether bytes on this socket are raw.
    pub fn is_tty(&self) -> bool {
        self.tty
    }

    /// Takes a piece; a complete message may be an event.
    ///
    /// # Errors
    /// [`Malformed`]; the socket cannot be read any further.
    pub fn take(&mut self, piece: Piece) -> Result<Option<Event>, Malformed> {
        match piece {
            Piece::Text(bytes) => Ok(self.message(Kind::Text, bytes)),
            Piece::Binary(bytes) => Ok(self.message(Kind::Binary, bytes)),
            Piece::FirstText(bytes) => self.begin(Kind::Text, &bytes),
            Piece::FirstBinary(bytes) => self.begin(Kind::Binary, &bytes),
            Piece::Continue(bytes) => self.extend(&bytes).map(|()| None),
            Piece::Last(bytes) => {
                self.extend(&bytes)?;
                let (kind, whole) = self.partial.take().ok_or(Malformed)?;
                Ok(self.message(kind, whole.freeze()))
            }
        }
    }

    /// The verdict of a socket that closed now.
    pub fn at_close(&self) -> Event {
        self.said_exit.map_or(Event::NoVerdict, Event::Exit)
    }

    fn begin(&mut self, kind: Kind, bytes: &[u8]) -> Result<Option<Event>, Malformed> {
        if self.partial.is_some() {
            return Err(Malformed);
        }
        self.partial = Some((kind, BytesMut::new()));
        self.extend(bytes).map(|()| None)
    }

    fn extend(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let (_, whole) = self.partial.as_mut().ok_or(Malformed)?;
        if whole.len() + bytes.len() > LONGEST_MESSAGE {
            return Err(Malformed);
        }
        whole.extend_from_slice(bytes);
        Ok(())
    }

    fn message(&mut self, kind: Kind, bytes: Bytes) -> Option<Event> {
        match kind {
            Kind::Binary if self.tty => (!bytes.is_empty()).then_some(Event::Stdout(bytes)),
            Kind::Binary => binary(bytes),
            Kind::Text => self.text(&bytes),
        }
    }

    fn text(&mut self, bytes: &[u8]) -> Option<Event> {
        let value: Value = serde_json::from_slice(bytes).ok()?;
        match value.get("type")?.as_str()? {
            "session_info" => {
                self.tty = value.get("tty").and_then(Value::as_bool).unwrap_or(self.tty);
                Some(Event::SessionInfo {
                    session_id: identifier(value.get("session_id")?)?,
                    tty: self.tty,
                })
            }
            "exit" => {
                let code = value
                    .get("exit_code")
                    .or_else(|| value.get("code"))
                    .and_then(Value::as_i64);
                match code {
                    Some(code) if self.tty => Some(Event::Exit(code)),
                    Some(code) => {
                        self.said_exit = Some(code);
                        None
                    }
                    None => Some(Event::NoVerdict).filter(|_| self.tty),
                }
            }
            _ => None,
        }
    }
}

/// An id as text; some servers write numbers.
pub(crate) fn identifier(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn binary(mut bytes: Bytes) -> Option<Event> {
    let stream = *bytes.first()?;
    let payload = bytes.split_off(1);
    match stream {
        STDOUT => (!payload.is_empty()).then_some(Event::Stdout(payload)),
        STDERR => (!payload.is_empty()).then_some(Event::Stderr(payload)),
        // Bytes after the code are ignored (providers 1.3).
        EXIT => Some(
            payload
                .first()
                .map_or(Event::NoVerdict, |code| Event::Exit(i64::from(*code))),
        ),
        _ => None,
    }
}

/// Input as a message: prefixed, or raw on a terminal.
pub fn stdin(bytes: &[u8], tty: bool) -> Bytes {
    let mut message = BytesMut::with_capacity(bytes.len() + 1);
    if !tty {
        message.extend_from_slice(&[STDIN]);
    }
    message.extend_from_slice(bytes);
    message.freeze()
}

/// The end of input. On a terminal the same byte is the end-of-transmission character.
pub fn stdin_eof() -> Bytes {
    Bytes::from_static(&[STDIN_EOF])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(bytes: &'static [u8]) -> Option<Event> {
        Decoder::new(false)
            .take(Piece::Binary(Bytes::from_static(bytes)))
            .unwrap()
    }

    #[test]
    fn sc_v23_p_v03_p_v04_rul_l_96_an_exit_code_must_be_there() {
        assert_eq!(one(b"\x03\x07"), Some(Event::Exit(7)));
        assert_eq!(one(b"\x03\x07\xff"), Some(Event::Exit(7)));
        assert_eq!(one(b"\x03"), Some(Event::NoVerdict));
        assert_eq!(one(b"\x01out\n"), Some(Event::Stdout("out\n".into())));
        assert_eq!(one(b"\x02err\n"), Some(Event::Stderr("err\n".into())));
        assert_eq!(one(b""), None);
        assert_eq!(one(b"\x09x"), None);
    }

    #[test]
    fn every_code_of_one_byte_is_itself() {
        for code in 0..=255u8 {
            let event = Decoder::new(false).take(Piece::Binary(vec![3, code].into())).unwrap();
            assert_eq!(event, Some(Event::Exit(i64::from(code))));
        }
    }

    #[test]
    fn p_v06_input_is_prefixed_and_its_end_is_one_byte() {
        assert_eq!(&stdin(b"hi", false)[..], b"\x00hi");
        assert_eq!(&stdin(b"hi", true)[..], b"hi");
        assert_eq!(&stdin_eof()[..], b"\x04");
    }

    #[test]
    fn p_v08_session_info_names_the_session_and_decides_the_mode() {
        let mut decoder = Decoder::new(false);
        let text = r#"{"type":"session_info","session_id":"1","command":"/usr/bin/sh -c x","created":1767225600,"cols":80,"rows":24,"is_owner":true,"tty":true}"#;
        let info = Event::SessionInfo {
            session_id: "1".into(),
            tty: true,
        };
        assert_eq!(decoder.take(Piece::Text(text.into())).unwrap(), Some(info));
        let raw = decoder.take(Piece::Binary(Bytes::from_static(b"\x03\x07"))).unwrap();
        assert_eq!(raw, Some(Event::Stdout(Bytes::from_static(b"\x03\x07"))));
        let exit = decoder.take(Piece::Text(r#"{"type":"exit","code":9}"#.into())).unwrap();
        assert_eq!(exit, Some(Event::Exit(9)));
    }

    #[test]
    fn a_text_exit_outside_a_terminal_waits_for_the_close() {
        let mut decoder = Decoder::new(false);
        assert_eq!(decoder.at_close(), Event::NoVerdict);
        assert_eq!(
            decoder
                .take(Piece::Text(r#"{"type":"exit","exit_code":3}"#.into()))
                .unwrap(),
            None
        );
        assert_eq!(decoder.at_close(), Event::Exit(3));
        assert_eq!(
            decoder.take(Piece::Text("{\"type\":\"keepalive\"}".into())).unwrap(),
            None
        );
    }

    #[test]
    fn pieces_out_of_order_are_malformed() {
        let mut decoder = Decoder::new(false);
        assert_eq!(decoder.take(Piece::Continue("x".into())), Err(Malformed));
        assert_eq!(decoder.take(Piece::Last("x".into())), Err(Malformed));
        decoder.take(Piece::FirstBinary("x".into())).unwrap();
        assert_eq!(decoder.take(Piece::FirstText("x".into())), Err(Malformed));
    }

    proptest! {
        #[test]
        fn a_split_message_means_what_the_whole_means(bytes in proptest::collection::vec(any::<u8>(), 0..40), cut in 0usize..40) {
            let cut = cut.min(bytes.len());
            let whole = Decoder::new(false).take(Piece::Binary(bytes.clone().into())).unwrap();
            let mut decoder = Decoder::new(false);
            let first = decoder.take(Piece::FirstBinary(Bytes::copy_from_slice(&bytes[..cut]))).unwrap();
            let last = decoder.take(Piece::Last(Bytes::copy_from_slice(&bytes[cut..]))).unwrap();
            prop_assert_eq!(first, None);
            prop_assert_eq!(last, whole);
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,80}", tty: bool) {
            let _ = Decoder::new(tty).take(Piece::Text(text.into()));
        }
    }
}
