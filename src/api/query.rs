//! Query strings: pairs in order, repeated keys kept (http-api 1.2).
//!
//! Bodies hold what is said, queries what is looked for: a word that a filter does not know is refused where the
//! resource says so, and falls back to the default where it is a flag. Nothing of a query is ever logged.

use std::future::{Ready, ready};
use std::str::FromStr;

use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpRequest};
use fountain_actors::domain::{ErrorCode, Refusal};

use super::error::ApiError;

/// The decoded pairs of a query string.
#[derive(Clone, Debug, Default)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    pub fn parse(query: &str) -> Self {
        Self {
            pairs: url::form_urlencoded::parse(query.as_bytes()).into_owned().collect(),
        }
    }

    /// The last value of a key: a repeated key overrides.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs
            .iter()
            .rev()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }

    /// All values of a key, `key=` and `key[]=` alike.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs
            .iter()
            .filter(move |(name, _)| name == key || name.strip_suffix("[]") == Some(key))
            .map(|(_, value)| value.as_str())
    }

    /// `true`, `1`, `false` or `0`; anything else is as good as absent.
    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            "true" | "1" => Some(true),
            "false" | "0" => Some(false),
            _ => None,
        }
    }

    /// An id.
    ///
    /// # Errors
    /// 422 on the key when the value is no id.
    pub fn id<T: FromStr>(&self, key: &str) -> Result<Option<T>, ApiError> {
        match self.get(key).filter(|text| !text.is_empty()) {
            None => Ok(None),
            Some(text) => Ok(Some(text.parse().map_err(|_| Refusal::field(key, "must be an id"))?)),
        }
    }

    /// A comma list of words of a closed vocabulary; empty pieces are skipped.
    ///
    /// # Errors
    /// `code` for a word outside it.
    pub fn words<T: FromStr>(&self, key: &str, code: ErrorCode) -> Result<Vec<T>, ApiError> {
        let words = self
            .get(key)
            .unwrap_or_default()
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty());
        words.map(|word| word.parse().map_err(|_| code.into())).collect()
    }
}

impl FromRequest for Query {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(req: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(Ok(Self::parse(req.query_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_keys_and_their_bracket_form_are_all_seen() {
        let query = Query::parse("label=a:b&label%5B%5D=c%3Ad&other=1");
        assert_eq!(query.all("label").collect::<Vec<_>>(), ["a:b", "c:d"]);
    }

    #[test]
    fn flags_know_four_words() {
        let query = Query::parse("a=true&b=1&c=false&d=0&e=yes&f=");
        let flags: Vec<_> = ["a", "b", "c", "d", "e", "f", "g"].map(|key| query.flag(key)).into();
        assert_eq!(
            flags,
            [Some(true), Some(true), Some(false), Some(false), None, None, None]
        );
    }
}
