//! Paths, modes and patterns as they come over the wire.
//!
//! A path is always absolute and says what was asked for: `..` stays where the client wrote it, because only the kernel,
//! inside the enclosure, knows what it leads to. Here it is checked that none is added, that the parts that must count do,
//! and that reading a path twice changes nothing. Patterns are compared with a slow, plain matcher.
#![no_main]

use std::path::{Component, Path};

use fountain_sprites::files::path::{PathError, fits, mode, resolve};
use libfuzzer_sys::fuzz_target;

/// Longer patterns teach nothing and make the plain matcher slow.
const LONGEST: usize = 200;

fuzz_target!(|input: (&str, Option<&str>, &str)| {
    let (path, working_dir, home) = input;
    paths(path, working_dir, home);
    modes(path);
    if path.len() <= LONGEST && home.len() <= LONGEST {
        patterns(path, home);
    }
});

fn ups(path: &str) -> usize {
    Path::new(path)
        .components()
        .filter(|part| *part == Component::ParentDir)
        .count()
}

fn paths(path: &str, working_dir: Option<&str>, home: &str) {
    let parts = [home, working_dir.unwrap_or_default(), path];
    let full = match resolve(path, working_dir, home) {
        Ok(full) => full,
        Err(PathError::Empty) => return assert!(path.is_empty()),
        Err(PathError::Zero) => return assert!(parts.iter().any(|part| part.contains('\0'))),
        Err(PathError::TooLong) => return assert!(parts.iter().map(|part| part.len() + 1).sum::<usize>() >= 4096),
        Err(PathError::Mode) => panic!("a path is no mode"),
    };
    let text = full.to_str().expect("made of texts");
    assert!(full.is_absolute() && text.len() < 4096 && !text.contains('\0'));
    assert!(text.ends_with(path));
    assert!(ups(text) <= parts.iter().map(|part| ups(part)).sum::<usize>());
    let base = Path::new("/").join(home);
    if path.starts_with('/') {
        assert_eq!(text, path);
    } else if working_dir.is_none_or(|dir| !dir.starts_with('/')) {
        assert!(full.starts_with(&base));
    } else {
        assert!(full.starts_with(working_dir.unwrap_or_default()));
    }
    assert_eq!(resolve(text, Some("/elsewhere"), "/nowhere").as_deref(), Ok(&*full));
}

fn modes(text: &str) {
    match mode(text) {
        Ok(bits) => {
            assert!(bits <= 0o7777);
            assert_eq!(Ok(bits), u32::from_str_radix(text, 8));
            assert_eq!(mode(&format!("{bits:o}")), Ok(bits));
            assert_eq!(mode(&format!("{bits:04o}")), Ok(bits));
        }
        Err(error) => {
            assert_eq!(error, PathError::Mode);
            assert!(text.len() > 4 || text.starts_with('+') || u32::from_str_radix(text, 8).is_err());
        }
    }
}

fn patterns(pattern: &str, name: &str) {
    assert_eq!(fits(pattern, name), plainly(pattern, name), "{pattern:?} {name:?}");
    assert!(fits(name, name) && fits("*", name));
    assert!(fits(&format!("{pattern}*"), name) || !fits(pattern, name));
}

/// The textbook's table: `reached[n]` says whether the pattern so far fits the first `n` characters.
fn plainly(pattern: &str, name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    let mut reached = vec![false; name.len() + 1];
    reached[0] = true;
    for wanted in pattern.chars() {
        let mut next = vec![false; name.len() + 1];
        next[0] = wanted == '*' && reached[0];
        for (index, found) in name.iter().enumerate() {
            next[index + 1] = match wanted {
                '*' => reached[index + 1] || next[index],
                '?' => reached[index],
                wanted => wanted == *found && reached[index],
            };
        }
        reached = next;
    }
    reached[name.len()]
}
