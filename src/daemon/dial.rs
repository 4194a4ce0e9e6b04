//! Where to dial, with which key, and what the server makes of it (runner-protocol 1).

use std::{io, path::PathBuf, rc::Rc};

use awc::{
    Client, Connector,
    error::WsClientError,
    http::{StatusCode, Version, header},
};
use futures_util::StreamExt;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use url::Url;

use super::{
    DaemonError, State,
    at_once::AtOnce,
    connection::MESSAGE_LIMIT,
    socket::{Liveness, Socket, Watched},
};

/// What this daemon adds to the protocol (RUL-44, RUL-47).
const FEATURES: &str = "replay_end,terminate";
/// Most of a refusal's body that is shown.
const BODY_SHOWN: usize = 4096;

/// Where the server and the key come from.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// From the user: fixed for the life of the daemon.
    Fixed {
        /// Such as `https://fountain.example`.
        base_url: String,
        /// A full key, or a runner key bound to this name.
        api_key: SecretString,
    },
    /// From a file of the server that started this daemon, `{"url","api_key"}`, read at every dial (RUL-57). When it is
    /// gone the daemon ends.
    File(PathBuf),
}

/// One server to dial.
#[derive(Clone, Debug)]
pub struct Target {
    base_url: String,
    api_key: SecretString,
}

impl Target {
    /// Whether both say the same.
    pub fn is(&self, other: &Self) -> bool {
        self.base_url == other.base_url && self.api_key.expose_secret() == other.api_key.expose_secret()
    }
}

/// Why there is nothing to dial.
#[derive(Debug)]
pub enum NoTarget {
    /// The file is gone: the daemon has served its time.
    Gone,
    /// The file says nothing useful now; it may be just being written.
    Unreadable(String),
}

impl Endpoint {
    /// What to dial now.
    ///
    /// # Errors
    /// See [`NoTarget`]; a fixed endpoint always answers.
    pub async fn target(&self) -> Result<Target, NoTarget> {
        #[derive(Deserialize)]
        struct Connection {
            url: String,
            api_key: SecretText,
        }
        /// A string that no error message quotes.
        #[derive(Deserialize)]
        struct SecretText(String);

        match self {
            Self::Fixed { base_url, api_key } => Ok(Target {
                base_url: base_url.clone(),
                api_key: api_key.clone(),
            }),
            Self::File(path) => {
                let content = tokio::fs::read(path).await.map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound => NoTarget::Gone,
                    _ => NoTarget::Unreadable(error.to_string()),
                })?;
                let Connection { url, api_key } = serde_json::from_slice(&content)
                    .map_err(|_| NoTarget::Unreadable("the connection file is not as expected".to_owned()))?;
                Ok(Target {
                    base_url: url,
                    api_key: SecretString::from(api_key.0),
                })
            }
        }
    }
}

/// What came of a dial.
pub enum Dialed {
    /// A connection.
    Open(Socket),
    /// A refusal that the same dial would meet again.
    Refused {
        /// 400, 401, 403 or 404.
        status: u16,
        /// The beginning of the body.
        body: String,
    },
    /// An answer that may be another one later.
    Answered(StatusCode),
    /// No answer.
    Failed(String),
}

/// Dials once.
///
/// # Errors
/// The base URL is of no use, which no further dial would change.
pub async fn dial(target: &Target, state: &State) -> Result<Dialed, DaemonError> {
    let url = socket_url(&target.base_url, &state.card)?;
    let limit = state.timing.dial;
    let client = Client::builder()
        // An upgrade needs HTTP/1.1; left to itself TLS would agree on HTTP/2.
        .max_http_version(Version::HTTP_11)
        .connector(
            Connector::new()
                .connector(AtOnce::default())
                .timeout(limit)
                .max_http_version(Version::HTTP_11),
        )
        .timeout(limit)
        .disable_redirects()
        .finish();
    let key = target.api_key.expose_secret();
    let request = client.ws(url.as_str()).max_frame_size(MESSAGE_LIMIT).bearer_auth(key);
    let dialed = match tokio::time::timeout(limit, request.connect()).await {
        Err(_) => Dialed::Failed("the server did not answer in time".to_owned()),
        Ok(Ok((_, framed))) => {
            let liveness = Liveness::new();
            let watched = |socket| Watched::new(socket, Rc::clone(&liveness));
            let (sink, stream) = framed.into_map_io(watched).split();
            Dialed::Open(Socket {
                sink: Box::pin(sink),
                stream: Box::pin(stream),
                liveness,
            })
        }
        Ok(Err(WsClientError::InvalidResponseStatus(status))) => match status.as_u16() {
            refused @ (400 | 401 | 403 | 404) => {
                let body = tokio::time::timeout(limit, explanation(&client, url, key, status)).await;
                Dialed::Refused {
                    status: refused,
                    body: body.unwrap_or_default(),
                }
            }
            _ => Dialed::Answered(status),
        },
        Ok(Err(error)) => Dialed::Failed(error.to_string()),
    };
    Ok(dialed)
}

/// Asks once more, as plain HTTP: the client drops the body of a refused upgrade, and the body says what is wrong.
async fn explanation(client: &Client, mut url: Url, key: &str, expected: StatusCode) -> String {
    let scheme = if url.scheme() == "wss" { "https" } else { "http" };
    // Both pairs of schemes are web schemes, between which a URL may change.
    let _ = url.set_scheme(scheme);
    let request = client
        .get(url.as_str())
        .bearer_auth(key)
        .force_close()
        .insert_header((header::UPGRADE, "websocket"))
        .insert_header((header::CONNECTION, "upgrade"))
        .insert_header((header::SEC_WEBSOCKET_VERSION, "13"))
        .insert_header((header::SEC_WEBSOCKET_KEY, "Zm91bnRhaW4gcnVubmVyIQ=="));
    let Ok(mut response) = request.send().await else {
        return String::new();
    };
    if response.status() != expected {
        return String::new();
    }
    let mut body = Vec::new();
    while body.len() < BODY_SHOWN {
        match response.next().await {
            Some(Ok(part)) => body.extend_from_slice(&part),
            _ => break,
        }
    }
    body.truncate(BODY_SHOWN);
    String::from_utf8_lossy(&body).into_owned()
}

/// What the daemon says about itself at the dial.
#[derive(Clone, Debug)]
pub struct Card {
    /// The runner's name.
    pub name: String,
    /// The machine's name.
    pub hostname: String,
    /// The daemon's version.
    pub version: String,
    /// The sandbox root.
    pub root: String,
    /// The id in its marker.
    pub root_id: String,
}

/// The URL of the socket: scheme changed, path prefix kept, the card as query.
///
/// # Errors
/// The base URL is not `http` or `https`.
pub fn socket_url(base: &str, card: &Card) -> Result<Url, DaemonError> {
    let bad = || DaemonError::BadBaseUrl(base.to_owned());
    let base = Url::parse(base.trim()).map_err(|_| bad())?;
    let scheme = match base.scheme() {
        "https" => "wss",
        "http" => "ws",
        _ => return Err(bad()),
    };
    let mut url = base.clone();
    url.set_scheme(scheme).map_err(|()| bad())?;
    url.set_path(&format!("{}/api/runners/ws", base.path().trim_end_matches('/')));
    url.set_fragment(None);
    url.query_pairs_mut().clear().extend_pairs([
        ("name", card.name.as_str()),
        ("hostname", cut(&card.hostname, 255)),
        ("os", operating_system()),
        ("arch", architecture()),
        ("version", cut(&card.version, 80)),
        ("root", cut(&card.root, 1024)),
        ("root_id", card.root_id.as_str()),
        ("features", FEATURES),
    ]);
    Ok(url)
}

/// At most `limit` characters.
fn cut(text: &str, limit: usize) -> &str {
    text.char_indices()
        .nth(limit)
        .and_then(|(end, _)| text.get(..end))
        .unwrap_or(text)
}

/// The words that published daemons use.
fn operating_system() -> &'static str {
    match std::env::consts::OS {
        "macos" => "darwin",
        other => other,
    }
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> Card {
        Card {
            name: "mini".to_owned(),
            hostname: "Mac mini".to_owned(),
            version: "1.2.3".to_owned(),
            root: "/r/ü".to_owned(),
            root_id: "abc".to_owned(),
        }
    }

    #[test]
    fn rp_v03_the_socket_url_keeps_the_prefix_and_names_the_runner() {
        let url = socket_url("https://f.example/x/", &card()).unwrap();
        assert!(url.as_str().starts_with("wss://f.example/x/api/runners/ws?"), "{url}");
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let value = |name: &str| {
            pairs
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.as_str())
        };
        assert_eq!(value("name"), Some("mini"));
        assert_eq!(value("hostname"), Some("Mac mini"));
        assert_eq!(value("root"), Some("/r/ü"));
        assert_eq!(value("root_id"), Some("abc"));
        assert_eq!(value("features"), Some("replay_end,terminate"));
    }

    #[test]
    fn http_becomes_ws_and_any_other_scheme_is_fatal() {
        assert_eq!(socket_url("http://h:4000", &card()).unwrap().scheme(), "ws");
        for base in ["ftp://h", "ws://h", "h:4000", "", "/x"] {
            assert!(
                matches!(socket_url(base, &card()), Err(DaemonError::BadBaseUrl(_))),
                "{base:?}"
            );
        }
    }

    #[test]
    fn long_values_are_cut_to_what_the_server_takes() {
        let long = Card {
            hostname: "ü".repeat(300),
            ..card()
        };
        let url = socket_url("http://h", &long).unwrap();
        let hostname = url.query_pairs().find(|(key, _)| key == "hostname").unwrap().1;
        assert_eq!(hostname.chars().count(), 255);
    }
}
