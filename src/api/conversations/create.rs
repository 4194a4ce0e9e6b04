//! `POST /api/conversations`: reads the launch and passes it on (http-api 5.7.2; RUL-18, RUL-19a).
//!
//! Types first, all faults in one answer; then the words with codes of their own; then the gates of the domain, behind
//! the door. What is not built is refused, never ignored: execution limits and session options. With `queue: true` a launch
//! for which there is no room waits (202).

use std::collections::BTreeMap;

use actix_web::HttpRequest;
use actix_web::web::Data;
use fountain_actors::domain::conversation::SandboxApiAccess;
use fountain_actors::domain::machine::MachineMode;
use fountain_actors::domain::{AgentId, ErrorCode, Refusal};
use fountain_actors::doors::{LaunchRequest, LaunchedOrQueued};
use serde_json::{Map, Value};

use super::prompts::Draft;
use super::{labels, launched};
use crate::api::agents::fields::no_session_config;
use crate::api::auth::Signed;
use crate::api::body::Body;
use crate::api::error::{ApiError, Faults};
use crate::api::sandbox_queue;
use crate::api::state::AppState;
use crate::api::wire::Reply;

const PARENT: &str = "x-fountain-parent-conversation-id";
const LONGEST_TITLE: usize = 120;
const LONGEST_CHANNEL: usize = 255;

pub async fn create(state: Data<AppState>, caller: Signed, req: HttpRequest, body: Body) -> Reply {
    let parent = req
        .headers()
        .get(PARENT)
        .map(|value| String::from_utf8_lossy(value.as_bytes()).trim().to_owned());
    let (request, queue) = read(body, parent.filter(|parent| !parent.is_empty())).await?;
    may_launch(&state, &caller, &request).await?;
    let answer = match queue {
        false => LaunchedOrQueued::Launched(state.doors.launch(caller.caller, request).await?),
        true => state.doors.launch_or_queue(caller.caller, request).await?,
    };
    Ok(match answer {
        LaunchedOrQueued::Launched(answer) => launched(&state, &answer.view, answer.resumed),
        LaunchedOrQueued::Queued(waiting) => sandbox_queue::accepted(&waiting),
    })
}

/// The launch, and whether it may wait.
async fn read(mut body: Body, parent: Option<String>) -> Result<(LaunchRequest, bool), ApiError> {
    if !body.has("agent_id") {
        body.fault("agent_id", "is required");
    }
    let agent_id: Option<AgentId> = body.id("agent_id");
    let draft = Draft::of(&mut body);
    let mut request = LaunchRequest {
        agent_id: agent_id.unwrap_or(AgentId(uuid::Uuid::nil())),
        prompt: None,
        title: short(&mut body, "title", LONGEST_TITLE),
        vault_id: body.id("vault_id"),
        environment_id: body.id("environment_id"),
        inference_credential_id: body.id("inference_credential_id"),
        model: body.text("model"),
        permission_policy: None,
        sandbox_mode: None,
        sandbox_id: body.id("sandbox_id"),
        sandbox_api_access: SandboxApiAccess::Owner,
        sprite_name: body.text("sprite_name"),
        channel_id: short(&mut body, "channel_id", LONGEST_CHANNEL),
        fresh: body.flag("fresh").unwrap_or(false),
        labels: read_labels(&mut body),
        parent,
    };
    let queue = body.flag("queue").unwrap_or(false);
    let words = Words::of(&mut body);
    let session_config = no_session_config(&mut body);
    body.finish()?;
    request.prompt = draft.judge().await?;
    limits(words.execution_limits)?;
    session_config?;
    request.sandbox_mode = word::<MachineMode>(words.mode, ErrorCode::InvalidSandboxMode)?;
    if let Some(access) = word(words.access, ErrorCode::InvalidSandboxApiAccess)? {
        request.sandbox_api_access = access;
    }
    request.permission_policy = policy(words.policy)?;
    Ok((request, queue))
}

/// Fields whose faults have codes of their own, and so are judged after the types of all others.
struct Words {
    mode: Option<Value>,
    access: Option<Value>,
    policy: Option<Value>,
    execution_limits: Option<Value>,
}

impl Words {
    fn of(body: &mut Body) -> Self {
        let mut take = |field: &str| body.take(field).filter(|value| !value.is_null());
        Self {
            mode: take("sandbox_mode"),
            access: take("sandbox_api_access"),
            policy: take("permission_policy"),
            execution_limits: take("execution_limits"),
        }
    }
}

fn word<T: std::str::FromStr>(value: Option<Value>, code: ErrorCode) -> Result<Option<T>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    let word = value.as_str().and_then(|word| word.parse().ok());
    word.map(Some).ok_or_else(|| code.into())
}

fn policy(value: Option<Value>) -> Result<Option<Map<String, Value>>, ApiError> {
    match value {
        None => Ok(None),
        Some(Value::Object(policy)) => Ok(Some(policy)),
        Some(_) => Err(ErrorCode::PermissionPolicyInvalid.into()),
    }
}

/// Limits that would not be enforced are not taken (RUL-18).
fn limits(value: Option<Value>) -> Result<(), ApiError> {
    match value {
        None => Ok(()),
        Some(Value::Object(limits)) if limits.is_empty() => Ok(()),
        Some(Value::Object(_)) => Err(ErrorCode::ExecutionLimitsUnsupported.into()),
        Some(_) => Err(ApiError::Faulty {
            code: ErrorCode::ExecutionLimitsInvalid,
            faults: Faults::from([("execution_limits".into(), vec!["must be an object".into()])]),
        }),
    }
}

fn short(body: &mut Body, field: &str, longest: usize) -> Option<String> {
    let text = body.text(field)?;
    if text.chars().count() > longest {
        body.fault(field, format!("must have at most {longest} characters"));
    }
    Some(text).filter(|text| !text.is_empty())
}

fn read_labels(body: &mut Body) -> BTreeMap<String, String> {
    let labels = body
        .map("labels")
        .map(|labels| labels::check(body, labels))
        .unwrap_or_default();
    labels
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
        .collect()
}

/// What a sandbox key may not launch (http-api 1.3): onto another agent's machine, or labels onto a conversation that a
/// channel would resume and that is not its own.
async fn may_launch(state: &AppState, caller: &Signed, request: &LaunchRequest) -> Result<(), ApiError> {
    let Some(own) = caller.sprite_of() else { return Ok(()) };
    if let Some(machine) = request.sandbox_id {
        let view = state.store.machine_view(caller.account_id(), machine).await?;
        if view.is_some_and(|view| view.machine.agent_id != Some(request.agent_id)) {
            return Err(Refusal::ScopeTooSmall(ErrorCode::GuestAttachRequiresFullScope).into());
        }
    }
    let Some(channel) = request
        .channel_id
        .clone()
        .filter(|_| !request.fresh && !request.labels.is_empty())
    else {
        return Ok(());
    };
    let (agent, vault, environment) = (request.agent_id, request.vault_id, request.environment_id);
    let bound = state
        .store
        .channel_conversation(caller.account_id(), channel, agent, vault, environment)
        .await?;
    if bound.is_some_and(|bound| bound.id != own) {
        return Err(ErrorCode::SpriteMayNotLabelAnotherConversation.into());
    }
    Ok(())
}
