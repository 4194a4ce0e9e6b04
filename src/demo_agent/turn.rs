//! One prompt: its steps in order, until the end, a cancellation, or a step that ends the process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    ContentChunk, Diff, PermissionOption, PermissionOptionKind, Plan, PlanEntry, PlanEntryPriority, PlanEntryStatus,
    RequestPermissionOutcome, RequestPermissionRequest, SessionId, SessionNotification, SessionUpdate, StopReason,
    ToolCall, ToolCallContent, ToolCallLocation, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields, ToolKind,
};
use agent_client_protocol::{Client, Error};
use serde_json::json;
use tokio::sync::watch;

use super::Quit;
use super::command::Running;
use super::steps::{self, Step};
use super::wire::Wire;

const EXPLANATION: &str = "I am the demo agent and need no model. Give me one step per line: `run: <command>`, \
`write <path>: <text>`, `ask: <title>`, `think <text>`, `plan`, `slow <n>`, `flood <bytes>`, `recall`, `crash`.\n";

/// What `garbage` writes: everything that is not one JSON-RPC message on one line.
const GARBAGE: &[u8] = b"warning: this line is no protocol\n{\"half\": \n[1, 2, 3]\n\n\xff\xfe not even text\n";

/// Text of one chunk of `flood`.
const FLOOD_CHUNK: usize = 4096;

/// How a prompt ended.
pub(super) enum Ending {
    Stop(StopReason),
    Quit(Quit),
}

/// Why the steps stopped early.
enum Halt {
    Cancelled,
    Quit(Quit),
    Failed(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

pub(super) struct Turn {
    cx: ConnectionTo<Client>,
    session: SessionId,
    cwd: PathBuf,
    wire: Arc<Wire>,
    cancelled: watch::Receiver<bool>,
    earlier: usize,
    calls: u32,
    said: String,
}

impl Turn {
    pub fn new(
        cx: ConnectionTo<Client>,
        session: SessionId,
        cwd: PathBuf,
        wire: Arc<Wire>,
        cancelled: watch::Receiver<bool>,
    ) -> Self {
        Self {
            cx,
            session,
            cwd,
            wire,
            cancelled,
            earlier: 0,
            calls: 0,
            said: String::new(),
        }
    }

    /// How many prompts the session had before this one.
    pub fn remember(&mut self, earlier: usize) {
        self.earlier = earlier;
    }

    /// What the agent said, for the session's file.
    pub fn said(&mut self) -> String {
        std::mem::take(&mut self.said)
    }

    /// Performs a prompt.
    pub async fn perform(&mut self, prompt: &str, images: &[String]) -> Result<Ending, Error> {
        match self.steps(prompt, images).await {
            Ok(()) => Ok(Ending::Stop(StopReason::EndTurn)),
            Err(Halt::Cancelled) => Ok(Ending::Stop(StopReason::Cancelled)),
            Err(Halt::Quit(quit)) => Ok(Ending::Quit(quit)),
            Err(Halt::Failed(error)) => Err(error),
        }
    }

    async fn steps(&mut self, prompt: &str, images: &[String]) -> Result<(), Halt> {
        for image in images {
            self.say(format!("I see an image ({image}).\n")).await?;
        }
        if !images.is_empty() && prompt.trim().is_empty() {
            return Ok(());
        }
        for step in steps::read(prompt) {
            if *self.cancelled.borrow() {
                return Err(Halt::Cancelled);
            }
            self.step(step).await?;
        }
        Ok(())
    }

    async fn step(&mut self, step: Step) -> Result<(), Halt> {
        match step {
            Step::Run(command) => self.run(&command).await,
            Step::Write { path, text } => self.write(&path, text).await,
            Step::Ask(title) => self.ask(title).await,
            Step::Think(text) => {
                self.update(SessionUpdate::AgentThoughtChunk(ContentChunk::new(text.into())))
                    .await
            }
            Step::Plan => self.plan().await,
            Step::Slow { words, pause } => self.slow(words, pause).await,
            Step::Flood(bytes) => self.flood(bytes).await,
            Step::Recall => self.say(format!("recall: {} earlier prompts\n", self.earlier)).await,
            Step::Crash => Err(Halt::Quit(Quit::Abort)),
            Step::Exit(code) => Err(Halt::Quit(Quit::Code(code))),
            Step::Garbage => self
                .wire
                .raw(GARBAGE)
                .await
                .map_err(|error| Error::into_internal_error(error).into()),
            Step::Stderr(text) => {
                use std::io::Write as _;
                let _ = writeln!(std::io::stderr(), "{text}"); // nobody reads it: fine
                Ok(())
            }
            Step::Hang => {
                self.until_cancelled().await;
                Err(Halt::Cancelled)
            }
            Step::Split => {
                self.wire.split();
                Ok(())
            }
            Step::Unknown => self.say(EXPLANATION.to_owned()).await,
        }
    }

    /// Sends an update once there is room for it; a cancellation ends the wait.
    async fn update(&mut self, update: SessionUpdate) -> Result<(), Halt> {
        let room = self.wire.room();
        tokio::select! {
            biased;
            () = room => {}
            () = cancellation(self.cancelled.clone()) => return Err(Halt::Cancelled),
        }
        self.cx
            .send_notification(SessionNotification::new(self.session.clone(), update))?;
        Ok(())
    }

    /// Sends an update that must arrive whatever happens: the end of a tool call.
    async fn last_update(&mut self, update: SessionUpdate) -> Result<(), Halt> {
        self.wire.room().await;
        self.cx
            .send_notification(SessionNotification::new(self.session.clone(), update))?;
        Ok(())
    }

    async fn say(&mut self, text: String) -> Result<(), Halt> {
        if self.said.len() < 64 * 1024 {
            self.said.push_str(&text); // a flood is not worth remembering
        }
        self.update(SessionUpdate::AgentMessageChunk(ContentChunk::new(text.into())))
            .await
    }

    async fn until_cancelled(&self) {
        cancellation(self.cancelled.clone()).await;
    }

    fn call_id(&mut self) -> String {
        self.calls += 1;
        format!("call-{}-{}", self.earlier + 1, self.calls)
    }

    async fn run(&mut self, command: &str) -> Result<(), Halt> {
        let id = self.call_id();
        let call = ToolCall::new(id.clone(), command)
            .kind(ToolKind::Execute)
            .status(ToolCallStatus::InProgress)
            .raw_input(json!({"command": command}));
        self.update(SessionUpdate::ToolCall(call)).await?;
        let mut running = match Running::start(command, &self.cwd) {
            Ok(running) => running,
            Err(error) => return self.finish_call(id, false, json!({"error": error.to_string()})).await,
        };
        let streamed = self.stream(&mut running).await;
        match streamed {
            Ok(()) => {
                let (code, bytes) = running.result();
                self.finish_call(id, code == 0, json!({"exit_code": code, "bytes": bytes}))
                    .await
            }
            Err(halt) => {
                running.stop().await;
                let reason = if matches!(halt, Halt::Cancelled) {
                    "cancelled"
                } else {
                    "failed"
                };
                self.finish_call(id, false, json!({"error": reason})).await?;
                Err(halt)
            }
        }
    }

    /// Says the output of a command as it comes, each byte once.
    async fn stream(&mut self, running: &mut Running) -> Result<(), Halt> {
        let cancelled = self.cancelled.clone();
        loop {
            let next = tokio::select! {
                biased;
                () = cancellation(cancelled.clone()) => return Err(Halt::Cancelled),
                next = running.next() => next,
            };
            match next.map_err(Error::into_internal_error)? {
                Some(text) => self.say(text).await?,
                None => return Ok(()),
            }
        }
    }

    async fn finish_call(&mut self, id: String, ok: bool, output: serde_json::Value) -> Result<(), Halt> {
        let status = if ok {
            ToolCallStatus::Completed
        } else {
            ToolCallStatus::Failed
        };
        let fields = ToolCallUpdateFields::new().status(status).raw_output(output);
        self.last_update(SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id, fields)))
            .await
    }

    async fn write(&mut self, path: &str, text: String) -> Result<(), Halt> {
        let id = self.call_id();
        let full = self.cwd.join(path);
        let call = ToolCall::new(id.clone(), format!("Write {path}"))
            .kind(ToolKind::Edit)
            .status(ToolCallStatus::InProgress)
            .locations(vec![ToolCallLocation::new(full.clone())])
            .content(vec![ToolCallContent::Diff(Diff::new(full.clone(), text.clone()))]);
        self.update(SessionUpdate::ToolCall(call)).await?;
        let bytes = text.len();
        let written = async {
            if let Some(folder) = full.parent() {
                tokio::fs::create_dir_all(folder).await?;
            }
            tokio::fs::write(&full, text).await
        };
        match written.await {
            Ok(()) => self.finish_call(id, true, json!({"bytes": bytes})).await,
            Err(error) => self.finish_call(id, false, json!({"error": error.to_string()})).await,
        }
    }

    async fn ask(&mut self, title: String) -> Result<(), Halt> {
        let id = self.call_id();
        let fields = ToolCallUpdateFields::new()
            .title(title)
            .kind(ToolKind::Execute)
            .status(ToolCallStatus::Pending);
        let options = vec![
            PermissionOption::new("allow_once", "Allow once", PermissionOptionKind::AllowOnce),
            PermissionOption::new("allow_always", "Always allow", PermissionOptionKind::AllowAlways),
            PermissionOption::new("reject_once", "Reject", PermissionOptionKind::RejectOnce),
        ];
        let request = RequestPermissionRequest::new(self.session.clone(), ToolCallUpdate::new(id, fields), options);
        let answer = self.cx.send_request(request).block_task();
        let answer = tokio::select! {
            biased;
            answer = answer => answer?,
            () = cancellation(self.cancelled.clone()) => return Err(Halt::Cancelled),
        };
        let came_back = match answer.outcome {
            RequestPermissionOutcome::Selected(selected) => selected.option_id.to_string(),
            _ if *self.cancelled.borrow() => return Err(Halt::Cancelled),
            _ => "cancelled".to_owned(),
        };
        self.say(format!("permission: {came_back}\n")).await
    }

    async fn plan(&mut self) -> Result<(), Halt> {
        use PlanEntryStatus::{Completed, InProgress, Pending};
        for statuses in [
            [InProgress, Pending, Pending],
            [Completed, InProgress, Pending],
            [Completed, Completed, Completed],
        ] {
            let steps = ["Look around", "Do the work", "Check the result"]
                .into_iter()
                .zip(statuses);
            let entries = steps
                .map(|(step, status)| PlanEntry::new(step, PlanEntryPriority::Medium, status))
                .collect();
            self.update(SessionUpdate::Plan(Plan::new(entries))).await?;
        }
        Ok(())
    }

    async fn slow(&mut self, words: u64, pause: Duration) -> Result<(), Halt> {
        for word in 1..=words {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.until_cancelled() => return Err(Halt::Cancelled),
            }
            let end = if word == words { "\n" } else { " " };
            self.say(format!("word{word}{end}")).await?;
        }
        Ok(())
    }

    async fn flood(&mut self, bytes: u64) -> Result<(), Halt> {
        let mut left = bytes;
        while left > 0 {
            let size = usize::try_from(left).unwrap_or(usize::MAX).min(FLOOD_CHUNK);
            let mut text = "0123456789abcdef".repeat(size.div_ceil(16));
            text.truncate(size - 1);
            text.push('\n');
            self.say(text).await?;
            left -= size as u64;
        }
        Ok(())
    }
}

/// Resolves when the turn is cancelled; never, when it can no longer be.
async fn cancellation(mut cancelled: watch::Receiver<bool>) {
    if cancelled.wait_for(|cancelled| *cancelled).await.is_err() {
        std::future::pending::<()>().await;
    }
}
