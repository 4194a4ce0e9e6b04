//! Files over HTTP (providers 1.7). Errors carry `code` and the path as it was asked for.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use actix_web::body::SizedStream;
use actix_web::http::StatusCode;
use actix_web::{HttpResponse, web};
use bytes::Bytes;
use chrono::DateTime;
use futures_util::stream;
use rustix::fs::FileType;
use serde::Deserialize;
use serde_json::{Value, json};

use super::caller::{Call, json, whole};
use super::refusal::Refusal;
use super::sprites::rfc3339;
use crate::enclosure::{Enclosure, Facilities};
use crate::files::{Entry, Root, path};
use crate::world::blocking;

/// Largest file that is written.
const LARGEST: usize = 16 << 20;
const CHUNK: usize = 64 * 1024;

/// Every parameter of every call; those of the wrong call are ignored.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Asked {
    path: Option<String>,
    source: Option<String>,
    dest: Option<String>,
    working_dir: Option<String>,
    mode: Option<String>,
    mkdir_parents: Option<Flag>,
    mkdir: Option<Flag>,
    recursive: Option<Flag>,
    pattern: Option<String>,
    uid: Option<u32>,
    gid: Option<u32>,
}

/// `true` as JSON or as a word of a query.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Flag {
    Value(bool),
    Word(String),
}

impl Flag {
    fn is_set(flag: Option<&Self>) -> bool {
        match flag {
            Some(Self::Value(value)) => *value,
            Some(Self::Word(word)) => matches!(word.as_str(), "true" | "1"),
            None => false,
        }
    }
}

/// The root of the sprite, and how texts become paths below it.
pub(super) struct Place {
    pub(super) root: Root,
    home: String,
    /// Without mounts of their own, commands see the host's paths; this is where the root lies among them.
    pub(super) prefix: Option<PathBuf>,
    working_dir: Option<String>,
}

impl Place {
    async fn of(call: &Call, asked: &Asked) -> Result<Self, Refusal> {
        let sprite = call.enter(&call.sprite(&call.caller)?).await?;
        Self::at(
            &*sprite.enclosure,
            call.enclosures.facilities(),
            asked.working_dir.clone(),
        )
    }

    /// Of an enclosure that is open, with the sprite held or shared.
    pub(super) fn at(
        enclosure: &dyn Enclosure,
        facilities: &Facilities,
        working_dir: Option<String>,
    ) -> Result<Self, Refusal> {
        let root = enclosure.root()?;
        let prefix = if facilities.mount_namespace {
            None
        } else {
            use std::os::fd::AsRawFd;
            std::fs::read_link(format!("/proc/self/fd/{}", root.as_raw_fd())).ok()
        };
        Ok(Self {
            root: Root::new(root),
            home: enclosure.home().to_owned(),
            prefix,
            working_dir,
        })
    }

    pub(super) fn path(&self, text: &str) -> Result<PathBuf, Refusal> {
        let full = path::resolve(text, self.working_dir.as_deref(), &self.home).map_err(|error| wrong(&error, text))?;
        let inside = self.prefix.as_ref().and_then(|prefix| full.strip_prefix(prefix).ok());
        Ok(inside.map_or_else(|| full.clone(), |inside| Path::new("/").join(inside)))
    }
}

fn wrong(error: &path::PathError, text: &str) -> Refusal {
    let body = json!({"error": error.to_string(), "code": "EINVAL", "path": text});
    Refusal::with(StatusCode::BAD_REQUEST, body)
}

fn failed(error: &io::Error, text: &str) -> Refusal {
    let (status, code, message) = match rustix::io::Errno::from_io_error(error) {
        Some(rustix::io::Errno::NOENT) => (404, "ENOENT", "no such file or directory"),
        Some(rustix::io::Errno::ISDIR) => (400, "EISDIR", "is a directory"),
        Some(rustix::io::Errno::NOTDIR) => (400, "ENOTDIR", "not a directory"),
        Some(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => (403, "EACCES", "permission denied"),
        Some(rustix::io::Errno::NOTEMPTY) => (409, "ENOTEMPTY", "directory not empty"),
        Some(rustix::io::Errno::EXIST) => (409, "EEXIST", "file exists"),
        Some(rustix::io::Errno::LOOP) => (400, "ELOOP", "too many levels"),
        Some(rustix::io::Errno::NAMETOOLONG) => (400, "ENAMETOOLONG", "name too long"),
        Some(rustix::io::Errno::XDEV) => (400, "EXDEV", "not on the same filesystem"),
        Some(rustix::io::Errno::INVAL) => (400, "EINVAL", "invalid argument"),
        Some(rustix::io::Errno::TOOBIG) => (400, "E2BIG", "too many entries"),
        Some(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => (507, "ENOSPC", "no space left on device"),
        Some(rustix::io::Errno::ROFS) => (403, "EROFS", "read-only file system"),
        _ => {
            tracing::warn!(%error, "a file operation failed");
            (500, "EIO", "input/output error")
        }
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = json!({"error": format!("{message}: {text}"), "code": code, "path": text});
    Refusal::with(status, body)
}

fn needed<'a>(text: Option<&'a String>, what: &str) -> Result<&'a str, Refusal> {
    let text = text.filter(|text| !text.is_empty());
    text.map(String::as_str).ok_or_else(|| {
        let body = json!({"error": format!("{what} is required"), "code": "EINVAL", "path": ""});
        Refusal::with(StatusCode::BAD_REQUEST, body)
    })
}

/// Runs one operation on one path.
async fn at<T: Send + 'static>(
    call: &Call,
    asked: &Asked,
    work: impl FnOnce(&Root, &Path) -> io::Result<T> + Send + 'static,
) -> Result<(T, PathBuf), Refusal> {
    let text = needed(asked.path.as_ref(), "path")?;
    let _shared = call.shared(&call.caller).await?;
    let place = Place::of(call, asked).await?;
    let path = place.path(text)?;
    let done = blocking(move || work(&place.root, &path).map(|result| (result, path))).await?;
    done.map_err(|error| failed(&error, text))
}

/// Runs one operation on two paths.
async fn between<T: Send + 'static>(
    call: &Call,
    asked: &Asked,
    work: impl FnOnce(&Root, &Path, &Path) -> io::Result<T> + Send + 'static,
) -> Result<(T, PathBuf, PathBuf), Refusal> {
    let (source, dest) = (
        needed(asked.source.as_ref(), "source")?,
        needed(asked.dest.as_ref(), "dest")?,
    );
    let _shared = call.shared(&call.caller).await?;
    let place = Place::of(call, asked).await?;
    let (from, to) = (place.path(source)?, place.path(dest)?);
    let done = blocking(move || work(&place.root, &from, &to).map(|result| (result, from, to))).await?;
    done.map_err(|error| failed(&error, source))
}

/// `GET …/fs/read`
pub async fn read(call: Call, asked: web::Query<Asked>) -> Result<HttpResponse, Refusal> {
    let opened = at(&call, &asked, |root, path| {
        let file = root.read(path)?;
        Ok((file.metadata()?.len(), file))
    });
    let ((size, file), _) = opened.await?;
    let body = stream::try_unfold((file, size), |(file, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let (chunk, file) = blocking(move || chunk(file, left))
            .await?
            .map_err(|error| Refusal::broken(&error))?;
        let left = left - chunk.len() as u64;
        Ok::<_, Refusal>(Some((chunk, (file, left))))
    });
    let body = SizedStream::new(size, Box::pin(body));
    Ok(HttpResponse::Ok().content_type("application/octet-stream").body(body))
}

/// The next piece. A file that became shorter breaks the answer off rather than ending it.
fn chunk(mut file: File, left: u64) -> io::Result<(Bytes, File)> {
    let mut data = Vec::with_capacity(CHUNK);
    let most = left.min(CHUNK as u64);
    if file.by_ref().take(most).read_to_end(&mut data)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((data.into(), file))
}

/// `PUT …/fs/write`. Nothing changes before the whole body is here.
pub async fn write(call: Call, asked: web::Query<Asked>, body: web::Payload) -> Result<HttpResponse, Refusal> {
    let text = asked.path.clone().unwrap_or_default();
    let mode = asked
        .mode
        .as_deref()
        .map(path::mode)
        .transpose()
        .map_err(|error| wrong(&error, &text))?;
    let data = whole(body, LARGEST).await?;
    let parents = Flag::is_set(asked.mkdir_parents.as_ref()) || Flag::is_set(asked.mkdir.as_ref());
    let size = data.len();
    let (mode, path) = at(&call, &asked, move |root, path| root.write(path, &data, mode, parents)).await?;
    Ok(HttpResponse::Ok().json(json!({"path": path, "size": size, "mode": octal(mode)})))
}

/// `GET …/fs/list`
pub async fn list(call: Call, asked: web::Query<Asked>) -> Result<HttpResponse, Refusal> {
    let mut asked = asked.into_inner();
    asked.path.get_or_insert_with(|| ".".to_owned());
    let recursive = Flag::is_set(asked.recursive.as_ref());
    let (entries, path) = at(&call, &asked, move |root, path| root.list(path, recursive)).await?;
    let fits = |entry: &&Entry| {
        asked
            .pattern
            .as_deref()
            .is_none_or(|pattern| path::fits(pattern, &name(entry)))
    };
    let shown: Vec<_> = entries.iter().filter(fits).map(shown).collect();
    Ok(HttpResponse::Ok().json(json!({"path": path, "count": shown.len(), "entries": shown})))
}

/// `DELETE …/fs/delete`; the body counts where the query says nothing.
pub async fn delete(call: Call, asked: web::Query<Asked>, body: web::Payload) -> Result<HttpResponse, Refusal> {
    let mut asked = asked.into_inner();
    let told: Asked = json(body).await?;
    asked.path = asked.path.or(told.path);
    asked.working_dir = asked.working_dir.or(told.working_dir);
    asked.recursive = asked.recursive.or(told.recursive);
    let recursive = Flag::is_set(asked.recursive.as_ref());
    let ((), path) = at(&call, &asked, move |root, path| root.delete(path, recursive)).await?;
    Ok(HttpResponse::Ok().json(json!({"deleted": [path], "count": 1})))
}

/// `POST …/fs/rename`
pub async fn rename(call: Call, body: web::Payload) -> Result<HttpResponse, Refusal> {
    let asked: Asked = json(body).await?;
    let ((), source, dest) = between(&call, &asked, Root::rename).await?;
    Ok(HttpResponse::Ok().json(json!({"source": source, "dest": dest})))
}

/// `POST …/fs/copy`
pub async fn copy(call: Call, body: web::Payload) -> Result<HttpResponse, Refusal> {
    let asked: Asked = json(body).await?;
    let recursive = Flag::is_set(asked.recursive.as_ref());
    let copied = between(&call, &asked, move |root, from, to| root.copy(from, to, recursive));
    let ((count, bytes), _, dest) = copied.await?;
    Ok(HttpResponse::Ok().json(json!({"copied": [dest], "count": count, "totalBytes": bytes})))
}

/// `POST …/fs/chmod`
pub async fn chmod(call: Call, body: web::Payload) -> Result<HttpResponse, Refusal> {
    let asked: Asked = json(body).await?;
    let text = needed(asked.mode.as_ref(), "mode")?;
    let mode = path::mode(text).map_err(|error| wrong(&error, asked.path.as_deref().unwrap_or_default()))?;
    let recursive = Flag::is_set(asked.recursive.as_ref());
    let (count, path) = at(&call, &asked, move |root, path| root.chmod(path, mode, recursive)).await?;
    Ok(HttpResponse::Ok().json(json!({"affected": [path], "count": count})))
}

/// `POST …/fs/chown`. In a user namespace the ids inside are not those of this host, and there is but one.
pub async fn chown(call: Call, body: web::Payload) -> Result<HttpResponse, Refusal> {
    let asked: Asked = json(body).await?;
    if call.enclosures.facilities().user_namespace {
        let why = "this host cannot change owners from outside a sprite; run chown inside";
        return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, why));
    }
    let (uid, gid, recursive) = (asked.uid, asked.gid, Flag::is_set(asked.recursive.as_ref()));
    let (count, path) = at(&call, &asked, move |root, path| root.chown(path, uid, gid, recursive)).await?;
    Ok(HttpResponse::Ok().json(json!({"affected": [path], "count": count})))
}

fn name(entry: &Entry) -> String {
    let name = entry.path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn octal(mode: u32) -> String {
    format!("{mode:04o}")
}

fn shown(entry: &Entry) -> Value {
    let kind = match entry.kind {
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        _ => "file",
    };
    json!({
        "name": name(entry),
        "path": entry.path.to_string_lossy(),
        "type": kind,
        "size": entry.size,
        "mode": octal(entry.mode),
        "modTime": rfc3339(DateTime::from_timestamp(entry.modified, 0).unwrap_or_default()),
        "isDir": entry.kind == FileType::Directory,
    })
}
