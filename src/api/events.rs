//! Log events: the REST feed and the two streams (http-api 3; RUL-19c, RUL-42a).
//!
//! Both forms render the same rows in the same words; what differs is the frame around them.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use fountain_actors::domain::event::{EventKind, LogEvent, Stage, StageState, Stream, StreamFilter};
use fountain_actors::domain::turn::{Origin, Turn};
use fountain_actors::domain::{AccountId, ConversationId, ErrorCode, EventId, Refusal};
use fountain_actors::ports::Topic;
use fountain_actors::ports::store::StoreError;
use fountain_actors::ports::store::transcript::{EventPage, EventQuery};
use serde_json::{Map, Value, json};

use super::auth::Signed;
use super::error::ApiError;
use super::path::PathId;
use super::query::Query;
use super::sse::{Follower, Subject};
use super::state::{AppState, BlockReader};
use super::wire::{Reply, micros};

const DEFAULT_PAGE: i64 = 100;
const LONGEST_PAGE: i64 = 1000;

/// The keys of every log frame (http-api 3.2). An absent stage or state is null, never an empty string.
pub fn payload(event: &LogEvent) -> Map<String, Value> {
    let mut payload = Map::new();
    payload.insert("kind".into(), event.kind.as_str().into());
    payload.insert("stream".into(), event.stream.map_or("", Stream::as_str).into());
    payload.insert("data".into(), event.data.as_str().into());
    payload.insert("stage".into(), json!(event.stage.map(Stage::as_str)));
    payload.insert("state".into(), json!(event.state.map(StageState::as_str)));
    payload.insert("turn_id".into(), json!(event.turn_id.map(|id| id.to_string())));
    payload.insert("ts".into(), micros(event.at).into());
    if let Some((stream, range)) = event.gap {
        let gap = json!({"stream": stream.as_str(), "from": range.from, "to": range.to});
        payload.insert("gap".into(), gap);
    }
    payload
}

/// The blocks of one row: what its `acp` lines say, nothing for anything else (http-api 3.5).
pub fn blocks(event: &LogEvent, read: BlockReader) -> Vec<Value> {
    match event.stream {
        Some(Stream::Acp) => read(&event.data),
        Some(Stream::Stdout | Stream::Stderr) | None => Vec::new(),
    }
}

/// A row of the REST feed: the payload with its id and duration (http-api 3.6).
fn row(event: &LogEvent) -> Map<String, Value> {
    let mut row = Map::new();
    row.insert("id".into(), event.id.0.into());
    for (key, value) in payload(event) {
        if key == "turn_id" {
            row.insert("duration_ms".into(), json!(event.duration_ms));
        }
        row.insert(key, value);
    }
    row
}

struct FeedQuery {
    after: EventId,
    limit: i64,
    filter: StreamFilter,
    blocks: bool,
    prompts: bool,
}

fn feed_query(query: &Query) -> Result<FeedQuery, ApiError> {
    // Newest-first pages are not built; an order that is not kept is not accepted (RUL-18).
    let backwards = query.get("order").is_some_and(|order| order != "asc")
        || query.get("before").is_some()
        || query.flag("whole_turns") == Some(true);
    if backwards {
        return Err(ErrorCode::InvalidParameters.into());
    }
    let after = match query.get("after").filter(|text| !text.is_empty()) {
        None => 0,
        Some(text) => text
            .parse()
            .map_err(|_| Refusal::field("after", "must be an integer"))?,
    };
    let limit = query
        .get("limit")
        .and_then(|text| text.parse().ok())
        .unwrap_or(DEFAULT_PAGE);
    let blocks = query.flag("blocks").unwrap_or(false);
    Ok(FeedQuery {
        after: EventId(after),
        limit: limit.clamp(1, LONGEST_PAGE),
        filter: StreamFilter::parse(query.get("streams")),
        blocks,
        prompts: blocks && query.flag("prompts").unwrap_or(false),
    })
}

pub async fn list(state: Data<AppState>, caller: Signed, id: PathId<ConversationId>, query: Query) -> Reply {
    let query = feed_query(&query)?;
    let page = next_page(&state, caller.account_id(), id.0, &query).await?;
    let turns = if query.prompts {
        state.store.turns(caller.account_id(), id.0).await?
    } else {
        Vec::new()
    };
    let data = page.events.iter().map(|event| {
        let mut row = row(event);
        if query.blocks {
            let mut blocks = blocks(event, state.blocks);
            blocks.extend(prompt_block(event, &turns));
            row.insert("blocks".into(), blocks.into());
        }
        Value::Object(row)
    });
    let next_cursor = page.events.last().map(|event| event.id.0);
    Ok(HttpResponse::Ok().json(json!({
        "data": data.collect::<Value>(),
        "meta": {"limit": query.limit, "has_more": page.has_more, "next_cursor": next_cursor},
    })))
}

/// A page with at least one event, unless there is none left: a filter must not end a client's paging early.
async fn next_page(
    state: &AppState,
    account: AccountId,
    conversation: ConversationId,
    query: &FeedQuery,
) -> Result<EventPage, StoreError> {
    let mut after = query.after;
    loop {
        let wanted = EventQuery {
            after,
            filter: query.filter.clone(),
            limit: query.limit,
        };
        let page = state.store.events(account, conversation, wanted).await?;
        if !page.events.is_empty() || !page.has_more || page.reached <= after {
            return Ok(page);
        }
        after = page.reached;
    }
}

/// The prompt that a `turn/started` event began with; an autonomous turn has none (http-api 3.6).
fn prompt_block(event: &LogEvent, turns: &[Turn]) -> Option<Value> {
    let starts =
        event.kind == EventKind::Stage && event.stage == Some(Stage::Turn) && event.state == Some(StageState::Started);
    let turn = turns.iter().find(|turn| Some(turn.id) == event.turn_id && starts)?;
    (turn.origin == Origin::User).then(|| json!({"kind": "prompt", "body": turn.prompt}))
}

/// Where a client resumes: an id, or 0 for anything that is none (http-api 1.4).
fn last_event_id(req: &HttpRequest) -> EventId {
    let value = req.headers().get("last-event-id").and_then(|value| value.to_str().ok());
    EventId(value.and_then(|text| text.trim().parse().ok()).unwrap_or(0).max(0))
}

pub async fn stream(
    state: Data<AppState>,
    caller: Signed,
    id: PathId<ConversationId>,
    query: Query,
    req: HttpRequest,
) -> Reply {
    let (account, conversation) = (caller.account_id(), id.0);
    // Subscribed before anything is read (P60), and only then looked up: a foreign id gets no stream.
    let announced = state.bus.subscribe(Topic::Conversation(conversation));
    state.store.last_event(account, conversation).await?;
    let follower = Follower::new(
        state.clone(),
        Subject::Conversation(account, conversation),
        announced,
        last_event_id(&req),
    );
    let follower = follower
        .filtered(StreamFilter::parse(query.get("streams")))
        .with_blocks(query.flag("blocks").unwrap_or(false))
        .waiting(query.flag("wait").unwrap_or(true));
    Ok(follower.respond())
}

/// Every conversation of the account; from now on, or from a cursor (http-api 3.1).
pub async fn account_stream(state: Data<AppState>, caller: Signed, query: Query, req: HttpRequest) -> Reply {
    let account = caller.account_id();
    let announced = state.bus.subscribe(Topic::Account(account));
    let mut after = last_event_id(&req);
    if after == EventId(0) {
        after = state.store.last_account_event(account).await?;
    }
    let follower = Follower::new(state.clone(), Subject::Account(account), announced, after);
    let follower = follower
        .filtered(StreamFilter::parse(query.get("streams")))
        .with_blocks(query.flag("blocks").unwrap_or(false));
    Ok(follower.respond())
}
