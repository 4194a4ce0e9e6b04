//! Everything before a prompt: initialize, authenticate, session, replay, model, options (runtimes 10.1, 6.1, 12.2).

use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::time::Instant;

use super::failure::{self, Failure};
use super::message::{self, RpcError};
use super::model::{ModelSetter, is_same_model, reported_model};
use super::peer::{Call, Peer, Pending, State, write};
use super::report::{About, Effect, ModelSource, OptionValue, Report, SessionMethod};
use crate::domain::event::ByteRange;

/// Every call before the prompt is answered within this time (RUL-39); the slowest agent seen needs 11 s.
pub const CALL_LIMIT: Duration = Duration::from_secs(120);
/// History is over when the stream was quiet for this long after `session/load` was answered.
pub const REPLAY_QUIET: Duration = Duration::from_millis(250);
/// …and at the latest after this long.
pub const REPLAY_LIMIT: Duration = Duration::from_secs(10);

/// What the agent said about itself.
#[derive(Debug, Clone, Default)]
pub(super) struct Capabilities {
    images: bool,
    resume: bool,
    load: bool,
    additional_directories: bool,
    /// A method that takes an API key and says so.
    api_key_method: Option<String>,
    /// A method that is only named like one: for the backstop.
    api_key_like_method: Option<String>,
}

impl Capabilities {
    fn of(result: &Value) -> Self {
        let offers = |path: &str| {
            result
                .pointer(path)
                .is_some_and(|value| !matches!(value, Value::Null | Value::Bool(false)))
        };
        let methods = || {
            result
                .get("authMethods")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
        };
        let id = |method: &Value| method.get("id").and_then(Value::as_str).map(str::to_owned);
        let is_marked = |method: &&Value| method.pointer("/_meta/api-key").is_some();
        Self {
            images: offers("/agentCapabilities/promptCapabilities/image"),
            resume: offers("/agentCapabilities/sessionCapabilities/resume"),
            load: offers("/agentCapabilities/loadSession"),
            additional_directories: offers("/agentCapabilities/sessionCapabilities/additionalDirectories"),
            api_key_method: methods().find(is_marked).and_then(id),
            api_key_like_method: methods()
                .filter_map(id)
                .find(|id| id == "api-key" || id.ends_with("-api-key")),
        }
    }
}

impl Peer {
    pub(super) fn initialize(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.started = Some(now);
        let params = json!({
            "protocolVersion": 1,
            "clientCapabilities": {
                "fs": {"readTextFile": false, "writeTextFile": false},
                "terminal": false,
                "session": {"configOptions": {"boolean": {}}},
            },
        });
        self.call(Call::Initialize, &params, now, out);
    }

    fn call(&mut self, call: Call, params: &Value, now: Instant, out: &mut Vec<Effect>) {
        let id = self.take_id();
        write(message::request(id, call.rpc(), params), About::Setup(call.rpc()), out);
        self.pending = Some(Pending {
            id,
            call,
            deadline: Some(now + self.config.call_limit),
        });
        self.state = State::Setup;
    }

    /// An answer to the call that was out.
    pub(super) fn answered(
        &mut self,
        call: Call,
        answer: Result<Value, RpcError>,
        range: ByteRange,
        now: Instant,
        out: &mut Vec<Effect>,
    ) {
        match (call, answer) {
            (Call::Prompt, answer) => self.prompt_answered(answer, range, out),
            (Call::Initialize, Ok(result)) => self.initialized(&result, range, now, out),
            (Call::Authenticate, Ok(_)) => {
                self.authenticated = true;
                self.open_session(range, now, out);
            }
            (Call::Session(method), Ok(result)) => self.session_opened(method, &result, range, now, out),
            (Call::Session(method), Err(error)) => self.session_refused(method, &error, range, now, out),
            (Call::SetModel(setter), answer) => self.model_set(setter, answer, range, now, out),
            (Call::SetOption(id, value), answer) => self.option_set(id, value, answer, range, now, out),
            (call @ (Call::Initialize | Call::Authenticate), Err(error)) => {
                self.fail(failure::of_call(call.rpc(), &error), Some(range), out);
            }
        }
    }

    fn initialized(&mut self, result: &Value, range: ByteRange, now: Instant, out: &mut Vec<Effect>) {
        match result.get("protocolVersion") {
            None | Some(Value::Null) => {}
            Some(version) if version.as_i64() == Some(1) => {}
            Some(other) => {
                return self.fail(
                    Failure::ProtocolVersion {
                        offered: other.to_string(),
                    },
                    Some(range),
                    out,
                );
            }
        }
        let capabilities = Capabilities::of(result);
        let method = capabilities.api_key_method.clone();
        self.capabilities = Some(capabilities);
        if !self.takes_the_images(Some(range), out) {
            return;
        }
        match method.filter(|_| self.config.authenticate) {
            Some(method) => self.authenticate(&method, now, out),
            None => self.open_session(range, now, out),
        }
    }

    /// Fails the turn when it has images and the agent takes none (RUL-18). Unknown capabilities were refused before.
    pub(super) fn takes_the_images(&mut self, range: Option<ByteRange>, out: &mut Vec<Effect>) -> bool {
        let takes = self
            .capabilities
            .as_ref()
            .is_none_or(|capabilities| capabilities.images);
        if !takes && !self.turn.images.is_empty() {
            self.fail(Failure::ImagesNotSupported, range, out);
            return false;
        }
        true
    }

    fn authenticate(&mut self, method: &str, now: Instant, out: &mut Vec<Effect>) {
        self.call(Call::Authenticate, &json!({"methodId": method}), now, out);
    }

    fn open_session(&mut self, range: ByteRange, now: Instant, out: &mut Vec<Effect>) {
        let offers = self.capabilities.clone().unwrap_or_default();
        let method = match &self.session {
            None => SessionMethod::New,
            Some(_) if offers.resume => SessionMethod::Resume,
            Some(_) if offers.load => SessionMethod::Load,
            Some(_) => return self.fail(Failure::CannotResume, Some(range), out),
        };
        let mut params = Map::new();
        if let Some(session) = &self.session {
            params.insert("sessionId".into(), session.as_str().into());
        }
        params.insert("cwd".into(), self.config.cwd.as_str().into());
        // Always sent again on a resume: leaving them out means "removed" (runtimes 8.1).
        params.insert("mcpServers".into(), self.config.mcp_servers.clone());
        if offers.additional_directories && !self.config.additional_directories.is_empty() {
            params.insert(
                "additionalDirectories".into(),
                self.config.additional_directories.clone().into(),
            );
        }
        if let Some(meta) = &self.config.session_meta {
            params.insert("_meta".into(), meta.clone());
        }
        self.call(Call::Session(method), &Value::Object(params), now, out);
    }

    fn session_opened(
        &mut self,
        method: SessionMethod,
        result: &Value,
        range: ByteRange,
        now: Instant,
        out: &mut Vec<Effect>,
    ) {
        let told = result
            .get("sessionId")
            .and_then(Value::as_str)
            .filter(|id| !id.trim().is_empty());
        let Some(id) = told.map(str::to_owned).or_else(|| self.session.clone()) else {
            return self.fail(Failure::NoSessionId, Some(range), out);
        };
        self.session = Some(id.clone());
        out.push(Effect::Report(Report::Session { id, method, range }));
        let took = self
            .started
            .map_or(Duration::ZERO, |started| now.saturating_duration_since(started));
        out.push(Effect::Report(Report::Handshake { took, method }));
        self.learn(result, out);
        if method == SessionMethod::Load {
            self.state = State::Draining {
                quiet: now + REPLAY_QUIET,
                until: now + REPLAY_LIMIT,
            };
        } else {
            self.select_model(Some(range), now, out);
        }
    }

    fn session_refused(
        &mut self,
        method: SessionMethod,
        error: &RpcError,
        range: ByteRange,
        now: Instant,
        out: &mut Vec<Effect>,
    ) {
        let continues = method != SessionMethod::New;
        if continues && !self.restarted_session && failure::is_session_gone(error) {
            self.restarted_session = true;
            self.session = None;
            out.push(Effect::Report(Report::SessionGone {
                detail: error.detail(),
                range,
            }));
            return self.open_session(range, now, out);
        }
        let backstop = self
            .capabilities
            .as_ref()
            .and_then(|offers| offers.api_key_like_method.clone());
        match backstop.filter(|_| self.config.authenticate && !self.authenticated && failure::is_auth_required(error)) {
            Some(method) => self.authenticate(&method, now, out),
            None => self.fail(failure::of_call(method.rpc(), error), Some(range), out),
        }
    }

    fn learn(&mut self, result: &Value, out: &mut Vec<Effect>) {
        if self.offer.learn(result) {
            let options = self.offer.options.clone().unwrap_or_default();
            out.push(Effect::Report(Report::ConfigOptions { options }));
        }
    }

    /// Selects the model of the turn, on every prompt anew; the prompt itself follows in the end.
    pub(super) fn select_model(&mut self, range: Option<ByteRange>, now: Instant, out: &mut Vec<Effect>) {
        let Some(model) = self.turn.model.clone() else {
            if let Some(effective) = self.offer.current_model() {
                let (effective, source) = (Some(effective), ModelSource::Runtime);
                out.push(Effect::Report(Report::ModelSelected {
                    requested: None,
                    effective,
                    source,
                    range,
                }));
            }
            return self.configure(range, now, out);
        };
        match (self.offer.setter(), self.session.clone()) {
            (Some(setter), Some(session)) => {
                self.call(Call::SetModel(setter), &setter.params(&session, &model), now, out);
            }
            _ => {
                let detail = "the runtime offers no model selection".to_owned();
                self.fail(
                    Failure::ModelSelection {
                        requested: model,
                        effective: None,
                        detail,
                    },
                    range,
                    out,
                );
            }
        }
    }

    fn model_set(
        &mut self,
        setter: ModelSetter,
        answer: Result<Value, RpcError>,
        range: ByteRange,
        now: Instant,
        out: &mut Vec<Effect>,
    ) {
        let requested = self.turn.model.clone().unwrap_or_default();
        let result = match answer {
            Ok(result) => result,
            Err(error) => {
                let failure = Failure::ModelSelection {
                    requested,
                    effective: None,
                    detail: error.detail(),
                };
                return self.fail(failure, Some(range), out);
            }
        };
        let reported = reported_model(setter, &result);
        if let Some(other) = reported.clone().filter(|reported| !is_same_model(&requested, reported)) {
            let detail = format!("the runtime selected {other} instead");
            return self.fail(
                Failure::ModelSelection {
                    requested,
                    effective: Some(other),
                    detail,
                },
                Some(range),
                out,
            );
        }
        if setter == ModelSetter::SetModel {
            self.offer.models = Some(Some(requested.clone()));
        }
        let source = if reported.is_some() {
            ModelSource::Runtime
        } else {
            ModelSource::SelectionAck
        };
        let effective = reported.or_else(|| Some(requested.clone()));
        out.push(Effect::Report(Report::ModelSelected {
            requested: Some(requested),
            effective,
            source,
            range: Some(range),
        }));
        self.learn(&result, out);
        self.configure(Some(range), now, out);
    }

    fn configure(&mut self, range: Option<ByteRange>, now: Instant, out: &mut Vec<Effect>) {
        let session = self.session.clone().unwrap_or_default();
        if let Some((id, params)) = self
            .offer
            .next_setting(&self.turn.options, &mut self.options_done, &session)
            && let Some(value) = self.turn.options.get(&id).cloned()
        {
            return self.call(Call::SetOption(id, value), &params, now, out);
        }
        let unknown = |id: &&String| !self.options_done.contains(*id);
        let ids: Vec<String> = self.turn.options.keys().filter(unknown).cloned().collect();
        if !ids.is_empty() {
            out.push(Effect::Report(Report::ConfigSkipped { ids }));
        }
        let applied = std::mem::take(&mut self.options_applied);
        if !applied.is_empty() {
            out.push(Effect::Report(Report::ConfigSelected { applied, range }));
        }
        self.send_prompt(out);
    }

    fn option_set(
        &mut self,
        id: String,
        value: OptionValue,
        answer: Result<Value, RpcError>,
        range: ByteRange,
        now: Instant,
        out: &mut Vec<Effect>,
    ) {
        match answer {
            Ok(result) => {
                self.learn(&result, out);
                self.options_done.insert(id.clone());
                self.options_applied.push((id, value));
                self.configure(Some(range), now, out);
            }
            Err(error) => self.fail(
                Failure::ConfigSelection {
                    id,
                    detail: error.detail(),
                },
                Some(range),
                out,
            ),
        }
    }
}
