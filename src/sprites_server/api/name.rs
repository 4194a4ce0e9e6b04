//! Names of sprites: 1 to 63 letters, digits, `.`, `_`, `-`, beginning with a letter or a digit.

/// Whether a sprite may have this name.
pub fn is_valid(name: &str) -> bool {
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    let rest = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    first && rest && name.len() <= 63
}

#[cfg(test)]
mod tests {
    use super::is_valid;

    #[test]
    fn names_that_are_and_names_that_are_not() {
        for name in ["a", "fountain-x-0123abcd", "A.b_c-9", &"x".repeat(63)] {
            assert!(is_valid(name), "{name}");
        }
        for name in ["", "-a", ".", "..", "a/b", "a b", "é", "a\n", &"x".repeat(64)] {
            assert!(!is_valid(name), "{name:?}");
        }
    }
}
