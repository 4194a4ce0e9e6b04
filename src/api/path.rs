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

/// Any segment as text, percent-decoded once; 404 when it is not UTF-8 or holds a NUL.
pub fn text(req: &HttpRequest, name: &str) -> Result<String, ApiError> {
    let mut path = actix_web::web::Path::<std::collections::HashMap<String, String>>::extract(req);
    let segments = futures_util::FutureExt::now_or_never(&mut path);
    let found = segments
        .and_then(Result::ok)
        .and_then(|segments| segments.into_inner().remove(name));
    found
        .filter(|text| !text.contains('\0'))
        .ok_or_else(|| ErrorCode::NotFound.into())
}
