//! The input of a session: one queue, written in the order of arrival (runner-protocol P3).
//!
//! A request takes its place in the queue when it is made, not when its future is polled, so two concurrent callers
//! cannot overtake each other. A write that waits for a full pipe ends with the process (field lesson P50).

use std::{future::Future, time::Duration};

use bytes::Bytes;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::{mpsc, oneshot, watch},
};

/// Requests that may wait for one pipe. The server keeps one outstanding; more is a client that does not wait.
const BACKLOG: usize = 256;
/// A broken pipe and the death of its reader are seen in either order; the verdict waits this long for the death.
const DEATH_AFTER_BREAK: Duration = Duration::from_secs(1);

/// Why input did not reach the process.
#[derive(Debug, thiserror::Error)]
pub enum StdinError {
    /// The process has ended.
    #[error("the command has exited")]
    Exited,
    /// The session was started without input, or its input was closed.
    #[error("stdin is not open")]
    NotOpen,
    /// The process lives, but closed its end.
    #[error("stdin pipe broke")]
    Broken(#[source] std::io::Error),
    /// Too many requests wait for a process that does not read.
    #[error("too many writes are waiting for this command")]
    Backlog,
}

enum Input {
    Write(Bytes, oneshot::Sender<Result<(), StdinError>>),
    Close(oneshot::Sender<Result<(), StdinError>>),
}

/// The queue in front of a pipe.
#[derive(Debug)]
pub(super) struct Queue {
    inputs: Option<mpsc::Sender<Input>>,
    reaped: watch::Receiver<bool>,
}

impl Queue {
    /// Starts the writer when there is a pipe. `reaped` turns true when the process is gone.
    pub(super) fn start<P>(pipe: Option<P>, reaped: watch::Receiver<bool>) -> Self
    where
        P: AsyncWrite + Send + Unpin + 'static,
    {
        let inputs = pipe.map(|pipe| {
            let (sender, inputs) = mpsc::channel(BACKLOG);
            tokio::spawn(write_all(pipe, inputs, reaped.clone()));
            sender
        });
        Self { inputs, reaped }
    }

    /// Takes a place for `data` now; the answer comes when the pipe has taken all of it.
    pub(super) fn write(&self, data: Bytes) -> impl Future<Output = Result<(), StdinError>> + use<> {
        let (sender, answer) = oneshot::channel();
        self.enqueue(Input::Write(data, sender), answer)
    }

    /// Closes the pipe after everything that was queued before. Closing twice, or after the end, is fine.
    pub(super) fn close(&self) -> impl Future<Output = Result<(), StdinError>> + use<> {
        let (sender, answer) = oneshot::channel();
        let closing = self.enqueue(Input::Close(sender), answer);
        async move {
            match closing.await {
                Err(StdinError::Exited | StdinError::NotOpen) => Ok(()),
                other => other,
            }
        }
    }

    fn enqueue(
        &self,
        input: Input,
        answer: oneshot::Receiver<Result<(), StdinError>>,
    ) -> impl Future<Output = Result<(), StdinError>> + use<> {
        let gone = if *self.reaped.borrow() {
            StdinError::Exited
        } else {
            StdinError::NotOpen
        };
        let queued = match &self.inputs {
            Some(inputs) => inputs.try_send(input).map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => StdinError::Backlog,
                mpsc::error::TrySendError::Closed(_) => gone,
            }),
            None => Err(gone),
        };
        async move {
            queued?;
            // The writer answers everything it took unless the process ended first.
            answer.await.unwrap_or(Err(StdinError::Exited))
        }
    }
}

async fn write_all<P: AsyncWrite + Unpin>(
    pipe: P,
    mut inputs: mpsc::Receiver<Input>,
    mut reaped: watch::Receiver<bool>,
) {
    let mut pipe = Some(pipe);
    loop {
        let input = tokio::select! {
            biased;
            () = dead(&mut reaped) => return,
            input = inputs.recv() => input,
        };
        match input {
            None => return,
            Some(Input::Close(answer)) => {
                pipe = None;
                let _ = answer.send(Ok(()));
            }
            Some(Input::Write(data, answer)) => {
                let result = write_one(pipe.as_mut(), &data, &mut reaped).await;
                let _ = answer.send(result);
            }
        }
    }
}

async fn write_one<P: AsyncWrite + Unpin>(
    pipe: Option<&mut P>,
    data: &[u8],
    reaped: &mut watch::Receiver<bool>,
) -> Result<(), StdinError> {
    let pipe = pipe.ok_or(StdinError::NotOpen)?;
    let broken = tokio::select! {
        biased;
        written = pipe.write_all(data) => match written {
            Ok(()) => return Ok(()),
            Err(error) => error,
        },
        () = dead(reaped) => return Err(StdinError::Exited),
    };
    match tokio::time::timeout(DEATH_AFTER_BREAK, dead(reaped)).await {
        Ok(()) => Err(StdinError::Exited),
        Err(_) => Err(StdinError::Broken(broken)),
    }
}

async fn dead(reaped: &mut watch::Receiver<bool>) {
    // An error means that the session's task is gone, and the process with it.
    let _ = reaped.wait_for(|reaped| *reaped).await;
}
