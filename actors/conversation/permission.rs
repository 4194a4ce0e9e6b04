//! Permission requests: asked, answered, timed out, delivered (lifecycle 6.10; RUL-10, RUL-56; walk 8.5).
//!
//! One request is open at a time, because one is remembered on the turn. A second one that an agent asks meanwhile, and
//! everything behind it, is held back in order until the first is settled; positions do not move past it, so a restart
//! replays it. An answer is durable before the agent hears it, and the request is done when the transport took it.

use std::time::Duration;

use actix::prelude::*;

use super::ConversationActor;
use super::messages::Deliver;
use super::rows;
use crate::acp::{AnswerError, PermissionAsk};
use crate::domain::event::{RawStream, Stream};
use crate::domain::turn::{AnswerOutcome, PendingPermission};
use crate::domain::{Moment, TurnId};
use crate::ports::store::transcript::Effect;

/// How soon a denial is stored again when the store did not answer.
const EXPIRY_RETRY: Duration = Duration::from_secs(5);

impl Handler<Deliver> for ConversationActor {
    type Result = ();

    fn handle(&mut self, deliver: Deliver, ctx: &mut Context<Self>) {
        if self.turn.as_ref().is_some_and(|turn| turn.id == deliver.turn_id) {
            self.deliver(deliver.permission, ctx);
        }
    }
}

impl ConversationActor {
    /// The agent asks. Whoever calls this has seen that no other request is open.
    pub(super) fn permission_asked(&mut self, ask: &PermissionAsk, ctx: &mut Context<Self>) {
        let Some(turn_id) = self.open_turn_id() else {
            // Nobody could answer it: denied at once, or the agent would wait for ever.
            let Some(connection) = self.connection.as_mut() else {
                return;
            };
            let steps = connection.peer.deny(&ask.request_id).unwrap_or_default();
            self.cover(RawStream::Stdout, ask.range.to);
            return self.perform(steps, ctx);
        };
        let pending = self.redacted(ask.pending(self.now()));
        let mut shown = ask.clone();
        shown.tool.clone_from(&pending.tool);
        shown.options.clone_from(&pending.options);
        self.flush(None, ctx);
        self.output_row(Stream::Acp, RawStream::Stdout, &ask.line, ask.range);
        self.push_row(rows::request_started(turn_id, &shown));
        self.effect(
            Effect::PermissionOpened {
                turn_id,
                permission: pending.clone(),
            },
            ctx,
        );
        self.flush(Some(Box::new(move |actor, _, ctx| actor.rearm_permission(ctx))), ctx);
        if let Some(turn) = self.turn.as_mut() {
            turn.permission = Some(pending);
        }
    }

    fn redacted(&self, mut pending: PendingPermission) -> PendingPermission {
        let clean = |text: &str| self.redactor.clean(text).into_owned();
        pending.tool = pending.tool.as_deref().map(clean);
        for option in &mut pending.options {
            let text = option.to_string();
            let cleaned = self.redactor.clean(&text);
            if cleaned != text {
                *option = serde_json::from_str(&cleaned).unwrap_or(serde_json::Value::Null);
            }
        }
        pending
    }

    /// Starts the timer of the open request; it runs from when it was asked.
    pub(super) fn rearm_permission(&mut self, ctx: &mut Context<Self>) {
        if let Some(timer) = self.permission_timer.take() {
            ctx.cancel_future(timer);
        }
        let open = self.turn.as_ref().filter(|turn| !turn.ending);
        let Some((turn_id, permission)) = open.and_then(|turn| Some((turn.id, turn.permission.as_ref()?))) else {
            return;
        };
        if permission.answer.is_some() {
            return;
        }
        let (request_id, left) = (permission.request_id.clone(), left(permission.deadline, self.now()));
        self.permission_timer = Some(ctx.run_later(left, move |actor, ctx| {
            actor.permission_timer = None;
            actor.expire_permission(turn_id, request_id, ctx);
        }));
    }

    fn expire_permission(&mut self, turn_id: TurnId, request_id: String, ctx: &mut Context<Self>) {
        let (store, now, asked) = (self.world.store.clone(), self.now(), request_id.clone());
        let expire = async move { store.expire_permission(turn_id, asked, now).await };
        self.run(ctx, expire, move |actor, answer, ctx| match answer {
            Ok(Some(denied)) => actor.deliver(denied, ctx),
            Ok(None) => {} // answered meanwhile: that answer is on its way here
            Err(error) => {
                tracing::warn!(conversation.id = %actor.id, %error, "a denial was not stored");
                let retry = ctx.run_later(EXPIRY_RETRY, move |actor, ctx| {
                    actor.expire_permission(turn_id, request_id, ctx);
                });
                actor.permission_timer = Some(retry);
            }
        });
    }

    /// A stored answer goes to the agent, if there is one to hear it; otherwise when it is attached.
    pub(super) fn deliver(&mut self, permission: PendingPermission, ctx: &mut Context<Self>) {
        let Some(turn) = self.turn.as_mut().filter(|turn| !turn.ending) else {
            return;
        };
        let is_open = turn
            .permission
            .as_ref()
            .is_some_and(|open| open.request_id == permission.request_id);
        if !is_open {
            return;
        }
        let (request_id, option) = (
            permission.request_id.clone(),
            permission.answer.as_ref().and_then(|answer| answer.option_id.clone()),
        );
        turn.permission = Some(permission);
        if let Some(timer) = self.permission_timer.take() {
            ctx.cancel_future(timer);
        }
        let Some(connection) = self.connection.as_mut() else {
            return;
        };
        let answered = match option {
            Some(option) => match connection.peer.answer(&request_id, &option) {
                Err(AnswerError::UnknownOption) => connection.peer.deny(&request_id),
                answer => answer,
            },
            None => connection.peer.deny(&request_id),
        };
        // Not pending: it went out before. Closed: the end of the connection settles it.
        self.perform(answered.unwrap_or_default(), ctx);
    }

    /// The transport took the answer: the request is done, in one commit (RUL-56).
    pub(super) fn permission_delivered(&mut self, request_id: &str, ctx: &mut Context<Self>) {
        let Some(turn) = self.turn.as_mut().filter(|turn| !turn.ending) else {
            return;
        };
        let Some(permission) = turn.permission.take_if(|open| open.request_id == request_id) else {
            return;
        };
        let turn_id = turn.id;
        self.push_row(rows::request_done(turn_id, &permission));
        self.effect(
            Effect::PermissionDelivered {
                turn_id,
                request_id: request_id.to_owned(),
            },
            ctx,
        );
        self.flush(None, ctx);
        if permission
            .answer
            .as_ref()
            .is_none_or(|answer| answer.outcome != AnswerOutcome::Answered)
        {
            self.audit_permission(
                "conversation.permission.expired",
                permission.tool.as_deref(),
                "timeout",
                ctx,
            );
        }
        self.take_backlog(ctx);
    }

    /// After an attach: the stored answer is sent, again if need be; an open request keeps its timer.
    pub(super) fn resume_permission(&mut self, ctx: &mut Context<Self>) {
        let Some(permission) = self.turn.as_ref().and_then(|turn| turn.permission.clone()) else {
            return;
        };
        match permission.answer {
            Some(_) => self.deliver(permission, ctx),
            None => self.rearm_permission(ctx),
        }
    }
}

fn left(deadline: Moment, now: Moment) -> Duration {
    (deadline - now).to_std().unwrap_or_default()
}
