//! Cutting a body into lines must not depend on how it arrived.
#![no_main]

use fountain_provider_sprites::ndjson::{Lines, lines};
use libfuzzer_sys::fuzz_target;

const LONGEST: usize = 64;

fuzz_target!(|input: &[u8]| {
    let Some((first, body)) = input.split_first() else {
        return;
    };
    let whole = lines(body, LONGEST);
    let mut reader = Lines::new(LONGEST);
    let mut pieces = Vec::new();
    for piece in body.chunks(usize::from(*first).max(1)) {
        match reader.push(piece) {
            Ok(found) => pieces.extend(found),
            Err(_) => {
                assert!(whole.is_err(), "only the pieces were too long");
                return;
            }
        }
    }
    pieces.extend(reader.finish());
    for line in &pieces {
        assert!(!line.is_empty() && line.len() <= LONGEST && !line.contains(&b'\n'));
    }
    assert_eq!(whole, Ok(pieces));
});
