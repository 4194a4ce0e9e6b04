//! Ids in paths: what is not an id names no row, so it is 404 and never 400 or 500 (RUL-8, http-api 1.2).

use std::future::{Ready, ready};
use std::str::FromStr;

use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpRequest};
use fountain_actors::domain::ErrorCode;

use super::error::ApiError;

/// The `{id}` of a path.
#[derive(Clone, Copy, Debug)]
pub struct PathId<T>(pub T);

impl<T: FromStr> FromRequest for PathId<T> {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(req: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(segment(req, "id").map(Self))
    }
}

/// Any segment, parsed; 404 when it does not parse.
pub fn segment<T: FromStr>(req: &HttpRequest, name: &str) -> Result<T, ApiError> {
    text(req, name)?.parse().map_err(|_| ErrorCode::NotFound.into())
}

/// Any segment as text, percent-decoded once; 404 when it holds a NUL.
pub fn text(req: &HttpRequest, name: &str) -> Result<String, ApiError> {
    let found = req.match_info().get(name).map(decode_rest);
    found
        .filter(|text| !text.is_empty() && !text.contains('\0'))
        .ok_or_else(|| ErrorCode::NotFound.into())
}

/// The router decodes a path but for `/`, `+` and `%` themselves. `%25` comes last, or it would be decoded twice.
fn decode_rest(segment: &str) -> String {
    let decoded = segment.replace("%2F", "/").replace("%2f", "/");
    decoded.replace("%2B", "+").replace("%2b", "+").replace("%25", "%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_decoded_once() {
        for (segment, text) in [
            ("a%2Fb", "a/b"),
            ("%252F", "%2F"),
            ("1%2B1", "1+1"),
            ("0.af", "0.af"),
            ("100%25", "100%"),
        ] {
            assert_eq!(decode_rest(segment), text);
        }
    }
}
