//! Answers to permission requests that outlived their turn (lifecycle 6.10; runtimes 8.2; ).
//!
//! The answer is a prompt like any other, with all its gates: it wakes the machine and opens a turn. What is refused
//! leaves the request as it was, because the transaction that admits the turn is the one that takes the request off.

use serde_json::json;

use super::Engine;
use super::queue::on_behalf_of;
use crate::domain::account::{Caller, Scope};
use crate::domain::conversation::Conversation;
use crate::domain::turn::{AnswerOutcome, DetachedAnswer, PendingPermission, Prompt};
use crate::domain::{Moment, Refusal};
use crate::ports::store::detached::Detached;

impl Engine {
    /// A person's answer. The option was not looked at yet: the transaction does.
    pub(super) async fn answer_detached(
        &self,
        caller: &Caller,
        row: &Conversation,
        request: &PendingPermission,
        option_id: String,
    ) -> Result<(), Refusal> {
        let answer = DetachedAnswer {
            request_id: request.request_id.clone(),
            outcome: AnswerOutcome::Answered,
            option_id: Some(option_id),
        };
        self.deliver_answer(caller, row, request, answer).await
    }

    /// The denial of a request whose deadline has passed.
    pub(crate) async fn deny_detached(&self, late: &Detached) -> Result<(), Refusal> {
        self.check_open()?;
        let row = self.owned(late.account_id, late.conversation_id).await?;
        let account = self.world().store.account(late.account_id).await;
        let account = account
            .map_err(|error| error.refusal())?
            .ok_or(crate::domain::ErrorCode::NotFound)?;
        let answer = DetachedAnswer {
            request_id: late.permission.request_id.clone(),
            outcome: AnswerOutcome::Timeout,
            option_id: None,
        };
        let caller = on_behalf_of(account, Scope::Full);
        self.deliver_answer(&caller, &row, &late.permission, answer).await
    }

    async fn deliver_answer(
        &self,
        caller: &Caller,
        row: &Conversation,
        request: &PendingPermission,
        answer: DetachedAnswer,
    ) -> Result<(), Refusal> {
        if row.status.is_terminal() {
            return Err(crate::domain::ErrorCode::ConversationTerminated.into());
        }
        if !caller.account.is_active() {
            return Err(crate::domain::ErrorCode::AccountSuspended.into());
        }
        let prompt = Prompt {
            text: line(request, &answer, self.world().now()),
            images: Vec::new(),
            client_request_id: None,
        };
        self.deliver(caller, row, prompt, Some(answer)).await
    }
}

/// What the agent reads: one line of JSON.
fn line(request: &PendingPermission, answer: &DetachedAnswer, now: Moment) -> String {
    json!({ "fountain/permission_answer": {
        "request_id": answer.request_id,
        "tool": request.tool,
        "outcome": answer.outcome.as_str(),
        "option_id": answer.option_id,
        "answered_at": now.to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
    } })
    .to_string()
}
