//! Machines by name: create, look, delete, list, write a file (providers 1.2, 1.7).

use std::collections::BTreeSet;

use bytes::Bytes;
use fountain_actors::domain::Epoch;
use fountain_actors::ports::sandbox::{Info, NamePage, PublicUrlError, RunState, SandboxError};
use serde_json::{Value, json};

use crate::address::Target;
use crate::call::Call;
use crate::errors::{is_stale, refused, unclassified};
use crate::pools::Pool;
use crate::{Core, named};

/// Most pages of a listing; an account with more is not listed at all (providers 1.2).
const MOST_PAGES: usize = 40;
/// Where a relative path starts.
const HOME: &str = "/home/sprite";

impl Core {
    /// Creates or adopts. True: it stood there already (RUL-L-90).
    pub(crate) async fn create(&self, name: &str, epoch: Option<Epoch>) -> Result<bool, SandboxError> {
        named(name)?;
        let call = Call::post(Target::sprites()).json(&json!({"name": name})).epoch(epoch);
        let reply = self.send(call, Pool::General, self.limits.create).await?;
        // A conflict says that the name is taken (seed 000), except where it says that we are superseded.
        let adopted = match reply.status.as_u16() {
            200..=299 => false,
            409 if !is_stale(&reply) => true,
            _ => return Err(refused(&reply)),
        };
        if self.public_urls {
            self.open_url(name, epoch).await;
        }
        Ok(adopted)
    }

    /// Opens the machine's URL. A machine whose URL stays closed is still a machine.
    async fn open_url(&self, name: &str, epoch: Option<Epoch>) {
        let body = json!({"url_settings": {"auth": "public"}});
        let call = Call::put(Target::sprite(name)).json(&body).epoch(epoch);
        if let Err(error) = self.expect(call).await {
            tracing::warn!(
                provider = "sprites",
                error.class = error.class(),
                "the machine's URL was not opened"
            );
        }
    }

    async fn describe(&self, name: &str) -> Result<Value, SandboxError> {
        named(name)?;
        let reply = self.expect(Call::get(Target::sprite(name))).await?;
        reply
            .json()
            .filter(Value::is_object)
            .ok_or_else(|| unclassified("malformed_sprite"))
    }

    pub(crate) async fn info(&self, name: &str) -> Result<Info, SandboxError> {
        let sprite = self.describe(name).await?;
        let state = match sprite.get("status").and_then(Value::as_str) {
            Some("running" | "ready" | "active") => RunState::Running,
            Some("suspended" | "paused" | "stopped") => RunState::Suspended,
            // `cold`, `warm`, `migrating`: it exists (RUL-L-115).
            _ => RunState::Unknown,
        };
        Ok(Info { state, path: None })
    }

    pub(crate) async fn public_url(&self, name: &str) -> Result<String, PublicUrlError> {
        let sprite = self.describe(name).await.map_err(PublicUrlError::Failed)?;
        sprite
            .get("url")
            .and_then(Value::as_str)
            .filter(|url| !url.is_empty())
            .map(str::to_owned)
            .ok_or(PublicUrlError::Unsupported)
    }

    /// Already gone is fine.
    pub(crate) async fn destroy(&self, name: &str, epoch: Option<Epoch>) -> Result<(), SandboxError> {
        named(name)?;
        match self.expect(Call::delete(Target::sprite(name)).epoch(epoch)).await {
            Ok(_) | Err(SandboxError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Every name of the account or an error: a reconciler deletes from this.
    pub(crate) async fn list_all_names(&self) -> Result<BTreeSet<String>, SandboxError> {
        let mut names = BTreeSet::new();
        let mut token: Option<String> = None;
        for _ in 0..MOST_PAGES {
            let page = self.list_names(token.as_deref()).await?;
            names.extend(page.names);
            match page.next {
                None => return Ok(names),
                next => token = next,
            }
        }
        Err(SandboxError::Truncated)
    }

    /// One page of the account's names. That there is more, without a way to it, is an error.
    pub(crate) async fn list_names(&self, after: Option<&str>) -> Result<NamePage, SandboxError> {
        let target = match after {
            Some(token) => Target::sprites().pair("continuation_token", token),
            None => Target::sprites(),
        };
        let reply = self.expect(Call::get(target)).await?;
        let page = Page::read(&reply.json().unwrap_or_default()).ok_or_else(|| unclassified("malformed_list"))?;
        let next = match page.next {
            Next::End => None,
            Next::Page(next) => Some(next),
            Next::Missing => return Err(SandboxError::Truncated),
        };
        Ok(NamePage {
            names: page.names,
            next,
        })
    }

    pub(crate) async fn write_file(
        &self,
        name: &str,
        path: &str,
        bytes: Bytes,
        mode: Option<u32>,
        epoch: Option<Epoch>,
    ) -> Result<(), SandboxError> {
        named(name)?;
        let from = if path.starts_with('/') { "/" } else { HOME };
        let mut target = Target::sprite(name)
            .segment("fs")
            .segment("write")
            .pair("path", path)
            .pair("workingDir", from);
        if let Some(mode) = mode {
            target = target.pair("mode", &format!("{:04o}", mode & 0o7777));
        }
        let call = Call::put(target.pair("mkdirParents", "true")).bytes(bytes).epoch(epoch);
        self.expect(call).await.map(drop)
    }
}

struct Page {
    names: Vec<String>,
    next: Next,
}

enum Next {
    End,
    Page(String),
    /// There is more, and no way to it.
    Missing,
}

impl Page {
    fn read(page: &Value) -> Option<Self> {
        let names = page
            .get("sprites")?
            .as_array()?
            .iter()
            .map(|sprite| sprite.get("name")?.as_str().map(str::to_owned))
            .collect::<Option<Vec<_>>>()?;
        let token = page.get("next_continuation_token").and_then(Value::as_str);
        let next = match (page.get("has_more").and_then(Value::as_bool), token) {
            (Some(true), Some(token)) if !token.is_empty() => Next::Page(token.to_owned()),
            (Some(true), _) => Next::Missing,
            (Some(false) | None, _) => Next::End,
        };
        Some(Self { names, next })
    }
}
