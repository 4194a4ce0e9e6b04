//! Where a Sprites service is, and how its paths are written (providers 1.2, sandbox-contract 10).
//!
//! A name may hold anything, so every segment and every query value is escaped: all but unreserved characters. What
//! this writes is a request line, which proxies keep in their logs: no secret passes through here (RUL-L-92).

use std::fmt::Write as _;

use url::{Host, Url};

/// A parsed base URL.
#[derive(Clone)]
pub(crate) struct Address {
    /// `https`.
    pub secure: bool,
    /// As a resolver wants it: no brackets around an IPv6 address.
    pub host: String,
    pub port: u16,
    /// As the `Host` header wants it.
    pub authority: String,
    /// Path before `/v1`, without a slash at its end.
    prefix: String,
}

impl Address {
    /// None for what is not an `http` or `https` URL with a host.
    pub fn parse(base_url: &str) -> Option<Self> {
        let url = Url::parse(base_url).ok()?;
        let secure = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let host = match url.host()? {
            Host::Domain(name) => name.to_owned(),
            Host::Ipv4(address) => address.to_string(),
            Host::Ipv6(address) => address.to_string(),
        };
        let written = url.host_str()?;
        let authority = match url.port() {
            Some(port) => format!("{written}:{port}"),
            None => written.to_owned(),
        };
        Some(Self {
            secure,
            port: url.port_or_known_default()?,
            prefix: url.path().trim_end_matches('/').to_owned(),
            host,
            authority,
        })
    }

    /// The target of a request line: what an origin server expects there.
    pub fn target(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }

    /// The absolute form, for a client with a pool.
    pub fn absolute(&self, path: &str) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}{}{path}", self.authority, self.prefix)
    }
}

/// A path and its query, escaped piece by piece.
pub(crate) struct Target {
    text: String,
    has_query: bool,
}

impl Target {
    /// `/v1/sprites`.
    pub fn sprites() -> Self {
        Self {
            text: "/v1/sprites".to_owned(),
            has_query: false,
        }
    }

    /// `/v1/sprites/{name}`.
    pub fn sprite(name: &str) -> Self {
        Self::sprites().segment(name)
    }

    /// Another segment.
    pub fn segment(mut self, text: &str) -> Self {
        self.text.push('/');
        escape_into(text, &mut self.text);
        self
    }

    /// Another pair of the query.
    pub fn pair(mut self, name: &str, value: &str) -> Self {
        self.text.push(if self.has_query { '&' } else { '?' });
        self.has_query = true;
        escape_into(name, &mut self.text);
        self.text.push('=');
        escape_into(value, &mut self.text);
        self
    }

    /// As it is sent.
    pub fn into_text(self) -> String {
        self.text
    }
}

fn escape_into(text: &str, into: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            into.push(char::from(byte));
        } else {
            let _ = write!(into, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_escaped_but_for_unreserved_characters() {
        let target = Target::sprite("owned worker/x").segment("exec").pair("env", "A=1 é");
        assert_eq!(
            target.into_text(),
            "/v1/sprites/owned%20worker%2Fx/exec?env=A%3D1%20%C3%A9"
        );
    }

    #[test]
    fn a_base_url_may_have_a_port_a_path_and_brackets() {
        let address = Address::parse("http://[::1]:8080/sprites/").unwrap();
        assert_eq!((address.host.as_str(), address.port), ("::1", 8080));
        assert_eq!(address.absolute("/v1"), "http://[::1]:8080/sprites/v1");
        assert_eq!(address.target("/v1"), "/sprites/v1");
        assert_eq!(Address::parse("https://api.sprites.dev").unwrap().port, 443);
        assert!(Address::parse("ftp://x").is_none() && Address::parse("api.sprites.dev").is_none());
    }
}
