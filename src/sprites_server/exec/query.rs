//! The query of an exec (providers 1.3), read once into what a session is started from.
//!
//! A pure function of the text: repeated `cmd` and `env` in their order, everything else once, the last one counts.
//! Unknown names are left alone, because clients send more than they must.

use std::time::Duration;

use fountain_process::WindowSize;
use url::form_urlencoded;

use super::duration;

/// The size of a terminal when none is asked for.
pub const WINDOW: WindowSize = WindowSize { rows: 24, cols: 80 };
/// How long a command without a terminal outlives its last client.
const RUN_AFTER_DISCONNECT: Duration = Duration::from_secs(10);

/// Why a query cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// Neither a command nor a session.
    #[error("cmd is required")]
    NoCommand,
    /// A value that its name does not take.
    #[error("{0} is not valid")]
    Invalid(&'static str),
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecQuery {
    /// A session that exists.
    Attach(String),
    /// A new one.
    Run(Run),
}

/// A command to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The executable.
    pub path: String,
    /// Its arguments, without its name.
    pub args: Vec<String>,
    /// Added to the environment of the sprite, later ones winning.
    pub env: Vec<(String, String)>,
    /// The working directory; home when absent.
    pub dir: Option<String>,
    /// A terminal of this size.
    pub terminal: Option<WindowSize>,
    /// Whether it gets input.
    pub stdin: bool,
    /// How long it runs on without any client; `None`: as long as it likes.
    pub after_disconnect: Option<Duration>,
}

impl Run {
    /// How it is shown in listings.
    pub fn shown(&self) -> String {
        let words = std::iter::once(&self.path).chain(&self.args);
        words.map(String::as_str).collect::<Vec<_>>().join(" ")
    }
}

#[derive(Default)]
struct Fields {
    cmd: Vec<String>,
    path: Option<String>,
    env: Vec<(String, String)>,
    dir: Option<String>,
    tty: bool,
    rows: Option<u16>,
    cols: Option<u16>,
    stdin: Option<bool>,
    detachable: bool,
    after_disconnect: Option<Duration>,
    id: Option<String>,
}

impl ExecQuery {
    /// Reads a query string.
    ///
    /// # Errors
    /// [`QueryError`]: nothing to run, or a value that makes no sense.
    pub fn parse(query: &str) -> Result<Self, QueryError> {
        let mut fields = Fields::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            fields.take(&name, value.into_owned())?;
        }
        fields.decide()
    }
}

impl Fields {
    fn take(&mut self, name: &str, value: String) -> Result<(), QueryError> {
        match name {
            "cmd" => self.cmd.push(word("cmd", value)?),
            "path" => self.path = Some(word("path", value)?).filter(|path| !path.is_empty()),
            "env" => self.env.push(pair(&value)?),
            "dir" => self.dir = Some(word("dir", value)?).filter(|dir| !dir.is_empty()),
            "tty" => self.tty = flag("tty", &value)?,
            "rows" => self.rows = size("rows", &value)?,
            "cols" => self.cols = size("cols", &value)?,
            "stdin" => self.stdin = Some(flag("stdin", &value)?),
            "detachable" => self.detachable = flag("detachable", &value)?,
            "max_run_after_disconnect" => {
                let read = duration::parse(&value).map_err(|_| QueryError::Invalid("max_run_after_disconnect"))?;
                self.after_disconnect = Some(read);
            }
            "id" => self.id = Some(value).filter(|id| !id.is_empty()),
            _ => {}
        }
        Ok(())
    }

    fn decide(self) -> Result<ExecQuery, QueryError> {
        if let Some(id) = self.id {
            return Ok(ExecQuery::Attach(id));
        }
        let mut words = self.cmd.into_iter();
        let first = words.next().filter(|word| !word.is_empty());
        let path = self.path.or(first).ok_or(QueryError::NoCommand)?;
        let by_default = if self.tty { Duration::ZERO } else { RUN_AFTER_DISCONNECT };
        let after_disconnect = self.after_disconnect.unwrap_or(by_default);
        Ok(ExecQuery::Run(Run {
            path,
            args: words.collect(),
            env: self.env,
            dir: self.dir,
            terminal: self.tty.then(|| WindowSize {
                rows: self.rows.unwrap_or(WINDOW.rows),
                cols: self.cols.unwrap_or(WINDOW.cols),
            }),
            stdin: self.stdin.unwrap_or(self.tty),
            // Zero means for ever.
            after_disconnect: Some(after_disconnect).filter(|limit| !self.detachable && !limit.is_zero()),
        }))
    }
}

/// No argument of a process can hold a zero byte.
fn word(name: &'static str, value: String) -> Result<String, QueryError> {
    if value.contains('\0') {
        Err(QueryError::Invalid(name))
    } else {
        Ok(value)
    }
}

fn pair(value: &str) -> Result<(String, String), QueryError> {
    let (name, content) = value.split_once('=').ok_or(QueryError::Invalid("env"))?;
    if name.is_empty() || value.contains('\0') {
        return Err(QueryError::Invalid("env"));
    }
    Ok((name.to_owned(), content.to_owned()))
}

fn flag(name: &'static str, value: &str) -> Result<bool, QueryError> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" | "" => Ok(false),
        _ => Err(QueryError::Invalid(name)),
    }
}

/// Zero and nothing mean the default.
fn size(name: &'static str, value: &str) -> Result<Option<u16>, QueryError> {
    if value.is_empty() {
        return Ok(None);
    }
    let size = value.parse::<u16>().map_err(|_| QueryError::Invalid(name))?;
    Ok(Some(size).filter(|size| *size > 0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(query: &str) -> Run {
        match ExecQuery::parse(query) {
            Ok(ExecQuery::Run(run)) => run,
            other => panic!("{query}: {other:?}"),
        }
    }

    #[test]
    fn p_v1_what_the_python_client_sends() {
        let run = run("cmd=sh&cmd=-c&cmd=x&path=sh&env=A%3D1&dir=%2Ftmp&stdin=true");
        assert_eq!((run.path.as_str(), run.shown().as_str()), ("sh", "sh -c x"));
        assert_eq!(run.args, ["-c", "x"]);
        assert_eq!(run.env, [("A".to_owned(), "1".to_owned())]);
        assert_eq!(
            (run.dir.as_deref(), run.terminal, run.stdin),
            (Some("/tmp"), None, true)
        );
        assert_eq!(run.after_disconnect, Some(Duration::from_secs(10)));
    }

    #[test]
    fn p_v2_what_the_js_client_sends() {
        let run = run("cmd=sh&cmd=x&path=sh&stdin=true&tty=true&rows=24&cols=80");
        assert_eq!(run.terminal, Some(WINDOW));
        assert_eq!(run.after_disconnect, None);
    }

    #[test]
    fn defaults_depend_on_the_terminal() {
        assert!(!run("cmd=a").stdin);
        assert!(run("cmd=a&tty=true").stdin);
        assert!(!run("cmd=a&tty=true&stdin=false").stdin);
        assert_eq!(run("path=a").args, Vec::<String>::new());
        assert_eq!(
            run("cmd=a&detachable=true&max_run_after_disconnect=3s").after_disconnect,
            None
        );
        assert_eq!(run("cmd=a&max_run_after_disconnect=0").after_disconnect, None);
        let limit = Some(Duration::from_millis(1500));
        assert_eq!(
            run("cmd=a&tty=1&max_run_after_disconnect=1500ms").after_disconnect,
            limit
        );
        assert_eq!(run("cmd=a&env=A%3Db%3Dc&env=A=").env[0].1, "b=c");
        assert_eq!(run("cmd=a&cc=true&unheard=of").path, "a");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (query, error) in [
            ("", QueryError::NoCommand),
            ("cmd=", QueryError::NoCommand),
            ("cmd=a&env=A", QueryError::Invalid("env")),
            ("cmd=a&env=%3Db", QueryError::Invalid("env")),
            ("cmd=a%00", QueryError::Invalid("cmd")),
            ("cmd=a&rows=x", QueryError::Invalid("rows")),
            ("cmd=a&cols=70000", QueryError::Invalid("cols")),
            ("cmd=a&tty=perhaps", QueryError::Invalid("tty")),
            (
                "cmd=a&max_run_after_disconnect=soon",
                QueryError::Invalid("max_run_after_disconnect"),
            ),
        ] {
            assert_eq!(ExecQuery::parse(query), Err(error), "{query}");
        }
        assert_eq!(ExecQuery::parse("id=s-1&tty="), Ok(ExecQuery::Attach("s-1".to_owned())));
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused(query in ".*") {
            let _ = ExecQuery::parse(&query);
        }

        #[test]
        fn words_and_variables_come_through_as_they_are(
            words in prop::collection::vec("[^\0]+", 1..6),
            env in prop::collection::vec(("[^\0=]+", "[^\0]*"), 0..4),
        ) {
            let mut query = form_urlencoded::Serializer::new(String::new());
            for word in &words {
                query.append_pair("cmd", word);
            }
            for (name, value) in &env {
                query.append_pair("env", &format!("{name}={value}"));
            }
            let run = run(&query.finish());
            prop_assert_eq!(&run.path, &words[0]);
            prop_assert_eq!(&run.args[..], &words[1..]);
            prop_assert_eq!(run.env, env);
        }
    }
}
