//! The demo agent: a real ACP agent over stdin and stdout that needs no model (`fountain demo-agent`).
//!
//! The prompt is a script, one step a line ([`steps`]); [`turn`] performs it, [`command`] runs what a step asks for,
//! [`sessions`] remembers conversations on disk so that a new process can go on with them, and [`wire`] keeps the
//! output bounded. It is built on the official crate's agent side (RUL-54), so it also checks our client against an
//! implementation that is not ours. Command output appears once, as message chunks; the tool call carries exit code
//! and byte count only (RUL-59a).

mod command;
mod sessions;
mod steps;
#[cfg(test)]
mod tests;
mod turn;
mod wire;

use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    AgentCapabilities, CancelNotification, ContentBlock, ContentChunk, Implementation, InitializeRequest,
    InitializeResponse, LoadSessionRequest, LoadSessionResponse, NewSessionRequest, NewSessionResponse,
    PromptCapabilities, PromptRequest, PromptResponse, ResumeSessionRequest, ResumeSessionResponse,
    SessionCapabilities, SessionId, SessionNotification, SessionResumeCapabilities, SessionUpdate,
};
use agent_client_protocol::{Agent, Client, Error, ErrorCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use self::sessions::{Said, Sessions};
use self::turn::{Ending, Turn};
use self::wire::Wire;

/// The protocol's code for a session that does not exist.
const RESOURCE_NOT_FOUND: i32 = -32002;

/// How long output may drain after the input ended.
const LINGER: Duration = Duration::from_secs(2);

/// How a step ends the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quit {
    /// By SIGABRT.
    Abort,
    /// With this code.
    Code(i32),
}

/// Speaks ACP on stdin and stdout until stdin ends. Sessions are kept under `home/.fountain-demo`.
///
/// # Errors
/// When stdout is gone or the client broke the protocol.
pub async fn run(home: PathBuf) -> anyhow::Result<()> {
    let quit = |quit| match quit {
        Quit::Abort => std::process::abort(),
        Quit::Code(code) => std::process::exit(code),
    };
    let input = file(std::io::stdin().as_fd())?;
    let output = file(std::io::stdout().as_fd())?;
    serve(input, output, home, Arc::new(quit)).await?;
    Ok(())
}

/// A standard stream as an asynchronous file: it may be a pipe, a terminal or a file.
fn file(stream: BorrowedFd<'_>) -> std::io::Result<tokio::fs::File> {
    Ok(tokio::fs::File::from_std(std::fs::File::from(
        stream.try_clone_to_owned()?,
    )))
}

fn no_such_session(id: &SessionId) -> Error {
    Error::new(ErrorCode::from(RESOURCE_NOT_FOUND), format!("session not found: {id}"))
}

type OnQuit = Arc<dyn Fn(Quit) + Send + Sync>;

/// What the handlers share.
struct DemoAgent {
    sessions: Sessions,
    /// Open sessions of this process: the working directory, and the running turn's cancellation.
    open: Mutex<HashMap<SessionId, Open>>,
    wire: Arc<Wire>,
    quit: OnQuit,
}

struct Open {
    cwd: PathBuf,
    turn: Option<watch::Sender<bool>>,
}

/// The agent over any pair of pipes.
async fn serve(
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
    home: PathBuf,
    quit: OnQuit,
) -> Result<(), Error> {
    let wire = Arc::new(Wire::new(output));
    let (hung_up, on_quit) = (wire.clone(), quit.clone());
    let agent = Arc::new(DemoAgent {
        sessions: Sessions::under(&home),
        open: Mutex::new(HashMap::new()),
        wire: wire.clone(),
        quit,
    });
    let (new, load, resume, prompt, cancel) = (agent.clone(), agent.clone(), agent.clone(), agent.clone(), agent);
    let connection = Agent
        .v1()
        .name("fountain-demo-agent")
        .on_receive_request(
            async move |request: InitializeRequest, responder, _cx| responder.respond(initialize(&request)),
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: NewSessionRequest, responder, _cx| {
                responder.respond_with_result(new.create(request.cwd).map(NewSessionResponse::new))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: LoadSessionRequest, responder, cx| {
                let answer = load.load(&request.session_id, request.cwd, &cx).await;
                responder.respond_with_result(answer.map(|()| LoadSessionResponse::new()))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: ResumeSessionRequest, responder, _cx| {
                let answer = resume.reopen(&request.session_id, request.cwd);
                responder.respond_with_result(answer.map(|_| ResumeSessionResponse::new()))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: PromptRequest, responder, cx: ConnectionTo<Client>| {
                let agent = prompt.clone();
                // A handler holds the dispatch loop, and a turn has to hear of its cancellation.
                let inner = cx.clone();
                cx.spawn(async move { responder.respond_with_result(agent.prompt(request, inner).await) })
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_notification(
            async move |notification: CancelNotification, _cx| {
                cancel.cancel(&notification.session_id);
                Ok(())
            },
            agent_client_protocol::on_receive_notification!(),
        )
        .connect_to(wire::transport(wire, input));
    // A client that closes our input and does not read our output either is gone, and nothing will drain.
    let given_up = async {
        hung_up.input_ended().await;
        tokio::time::sleep(LINGER).await;
    };
    tokio::select! {
        done = connection => return done,
        () = given_up => {} // the connection is dropped here, and what it runs is stopped
    }
    on_quit(Quit::Code(0));
    Ok(())
}

fn initialize(request: &InitializeRequest) -> InitializeResponse {
    let sessions = SessionCapabilities::new().resume(SessionResumeCapabilities::new());
    let capabilities = AgentCapabilities::new()
        .load_session(true)
        .prompt_capabilities(PromptCapabilities::new().image(true))
        .session_capabilities(sessions);
    InitializeResponse::new(request.protocol_version)
        .agent_capabilities(capabilities)
        .agent_info(Implementation::new("fountain-demo-agent", env!("CARGO_PKG_VERSION")))
}

impl DemoAgent {
    fn create(&self, cwd: PathBuf) -> Result<SessionId, Error> {
        let id = SessionId::new(self.sessions.create().map_err(Error::into_internal_error)?);
        self.open().insert(id.clone(), Open { cwd, turn: None });
        Ok(id)
    }

    fn reopen(&self, id: &SessionId, cwd: PathBuf) -> Result<Vec<Said>, Error> {
        let history = self.sessions.read(&id.0).map_err(Error::into_internal_error)?;
        let history = history.ok_or_else(|| no_such_session(id))?;
        self.open().insert(id.clone(), Open { cwd, turn: None });
        Ok(history)
    }

    async fn load(&self, id: &SessionId, cwd: PathBuf, cx: &ConnectionTo<Client>) -> Result<(), Error> {
        for said in self.reopen(id, cwd)? {
            let update = match said {
                Said::User(text) => SessionUpdate::UserMessageChunk(ContentChunk::new(text.into())),
                Said::Agent(text) => SessionUpdate::AgentMessageChunk(ContentChunk::new(text.into())),
            };
            self.wire.room().await;
            cx.send_notification(SessionNotification::new(id.clone(), update))?;
        }
        Ok(())
    }

    async fn prompt(&self, request: PromptRequest, cx: ConnectionTo<Client>) -> Result<PromptResponse, Error> {
        let id = request.session_id;
        let (cancel, cancelled) = watch::channel(false);
        let cwd = {
            let mut open = self.open();
            let session = open.get_mut(&id).ok_or_else(|| no_such_session(&id))?;
            if session.turn.is_some() {
                return Err(Error::invalid_params().data("a prompt is running in this session".to_owned()));
            }
            session.turn = Some(cancel);
            session.cwd.clone()
        };
        let (text, images) = read_prompt(&request.prompt);
        let earlier = self.sessions.read(&id.0).ok().flatten().unwrap_or_default();
        let mut turn = Turn::new(cx, id.clone(), cwd, self.wire.clone(), cancelled);
        turn.remember(earlier.iter().filter(|said| matches!(said, Said::User(_))).count());
        let ending = turn.perform(&text, &images).await;
        let saved = self
            .sessions
            .append(&id.0, &[Said::User(text), Said::Agent(turn.said())]);
        if let Some(session) = self.open().get_mut(&id) {
            session.turn = None;
        }
        match ending? {
            Ending::Stop(reason) => {
                saved.map_err(Error::into_internal_error)?;
                Ok(PromptResponse::new(reason))
            }
            Ending::Quit(quit) => {
                self.wire.drained().await;
                (self.quit)(quit);
                std::future::pending().await // the process is gone, except in a test
            }
        }
    }

    fn cancel(&self, id: &SessionId) {
        if let Some(turn) = self.open().get(id).and_then(|session| session.turn.as_ref()) {
            turn.send_replace(true);
        }
    }

    fn open(&self) -> std::sync::MutexGuard<'_, HashMap<SessionId, Open>> {
        // Nothing panics while it is held; a poisoned map would still be whole.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The text of a prompt, and a word on each image.
fn read_prompt(blocks: &[ContentBlock]) -> (String, Vec<String>) {
    let mut text = Vec::new();
    let mut images = Vec::new();
    for block in blocks {
        match block {
            ContentBlock::Text(block) => text.push(block.text.as_str()),
            ContentBlock::Image(image) => {
                // Base64: three bytes stand in four characters.
                let padding = image.data.bytes().rev().take_while(|byte| *byte == b'=').count();
                let bytes = (image.data.len() / 4 * 3).saturating_sub(padding);
                images.push(format!("{}, {bytes} bytes", image.mime_type));
            }
            _ => {}
        }
    }
    (text.join("\n"), images)
}
