//! Whatever pieces a server sends, in whatever order: events or nothing, no exit code that the protocol cannot say, no
//! verdict from silence, and the same events when the pieces of a message are put together first.
#![no_main]

use bytes::{Bytes, BytesMut};
use fountain_provider_sprites::frames::{Decoder, Event, Piece};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((first, mut rest)) = input.split_first() else {
        return;
    };
    let (mut decoder, mut whole) = (Decoder::new(first & 1 == 1), Decoder::new(first & 1 == 1));
    let (mut held, mut is_text, mut any_text) = (BytesMut::new(), false, false);
    while let Some(([kind, length], more)) = rest.split_first_chunk::<2>().map(|(head, more)| (*head, more)) {
        let (piece, more) = more.split_at(usize::from(length).min(more.len()));
        rest = more;
        let bytes = Bytes::copy_from_slice(piece);
        let was_raw = decoder.is_tty();
        let piece = match kind % 6 {
            0 => Piece::Text(bytes.clone()),
            1 => Piece::Binary(bytes.clone()),
            2 => Piece::FirstText(bytes.clone()),
            3 => Piece::FirstBinary(bytes.clone()),
            4 => Piece::Continue(bytes.clone()),
            _ => Piece::Last(bytes.clone()),
        };
        any_text |= matches!(piece, Piece::Text(_) | Piece::FirstText(_));
        let message = match &piece {
            Piece::Text(_) | Piece::Binary(_) => Some(piece.clone()),
            Piece::FirstText(_) | Piece::FirstBinary(_) => {
                (held, is_text) = (BytesMut::from(&*bytes), matches!(piece, Piece::FirstText(_)));
                None
            }
            Piece::Continue(_) => {
                held.extend_from_slice(&bytes);
                None
            }
            Piece::Last(_) => {
                held.extend_from_slice(&bytes);
                let message = held.split().freeze();
                Some(if is_text {
                    Piece::Text(message)
                } else {
                    Piece::Binary(message)
                })
            }
        };
        let Ok(event) = decoder.take(piece) else { return };
        let expected = message.and_then(|message| whole.take(message).expect("a whole message is never out of order"));
        assert_eq!(event, expected);
        match event {
            Some(Event::Exit(code)) => assert!(was_raw || (0..=255).contains(&code)),
            Some(Event::Stdout(output) | Event::Stderr(output)) => {
                assert!(!output.is_empty() && output.len() <= input.len());
            }
            Some(Event::SessionInfo { tty, .. }) => assert_eq!(tty, decoder.is_tty()),
            Some(Event::NoVerdict) | None => {}
        }
    }
    assert_eq!(decoder.at_close(), whole.at_close());
    assert!(any_text || decoder.at_close() == Event::NoVerdict);
});
