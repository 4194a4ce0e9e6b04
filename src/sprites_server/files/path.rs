//! Paths and modes as they come over the wire (providers 1.7). Pure: what a path leads to, only the kernel decides.

use std::path::{Path, PathBuf};

/// The kernel's limit.
const LONGEST: usize = 4096;

/// Why a text is no path or mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("path is required")]
    Empty,
    #[error("path contains a zero byte")]
    Zero,
    #[error("path is too long")]
    TooLong,
    #[error("mode must be up to four octal digits")]
    Mode,
}

/// The absolute path that is meant: relative ones start in `working_dir`, and that in `home`. `..` is left to the kernel.
///
/// # Errors
/// [`PathError`].
pub fn resolve(path: &str, working_dir: Option<&str>, home: &str) -> Result<PathBuf, PathError> {
    if path.is_empty() {
        return Err(PathError::Empty);
    }
    let full = Path::new("/")
        .join(home)
        .join(working_dir.unwrap_or_default())
        .join(path);
    let bytes = full.as_os_str().as_encoded_bytes();
    if bytes.contains(&0) {
        return Err(PathError::Zero);
    }
    if bytes.len() >= LONGEST {
        return Err(PathError::TooLong);
    }
    Ok(full)
}

/// Permission bits from up to four octal digits.
///
/// # Errors
/// [`PathError::Mode`].
pub fn mode(text: &str) -> Result<u32, PathError> {
    let is_octal = (1..=4).contains(&text.len()) && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    if !is_octal {
        return Err(PathError::Mode);
    }
    u32::from_str_radix(text, 8).map_err(|_| PathError::Mode)
}

/// Whether a name fits a pattern of `*` and `?`.
pub fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<_>, Vec<_>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || name.get(n) == Some(c) => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((at, taken)) = star else { return false };
                star = Some((at, taken + 1));
                p = at + 1;
                n = taken + 1;
            }
        }
    }
    pattern.iter().skip(p).all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_start_in_the_working_directory_and_that_in_the_home() {
        let is = |path, dir, expected: &str| assert_eq!(resolve(path, dir, "/home/s"), Ok(PathBuf::from(expected)));
        is("a", None, "/home/s/a");
        is("a", Some("w"), "/home/s/w/a");
        is("a", Some("/w"), "/w/a");
        is("/a", Some("/w"), "/a");
        assert_eq!(resolve("", None, "/h"), Err(PathError::Empty));
        assert_eq!(resolve("a\0", None, "/h"), Err(PathError::Zero));
        assert_eq!(resolve(&"a".repeat(5000), None, "/h"), Err(PathError::TooLong));
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!(mode("0644"), Ok(0o644));
        assert_eq!(mode("7777"), Ok(0o7777));
        for wrong in ["", "8", "0o644", "00644", "-1", "rwx"] {
            assert_eq!(mode(wrong), Err(PathError::Mode), "{wrong}");
        }
    }

    #[test]
    fn patterns() {
        assert!(fits("*.rs", "a.rs") && fits("*", "") && fits("a?c*", "abcd"));
        assert!(!fits("*.rs", "a.rsx") && !fits("?", "") && !fits("", "a"));
    }
}
