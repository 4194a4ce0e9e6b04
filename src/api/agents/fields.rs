//! The fields of an agent: types first, then the rules of http-api 5.4 on what came out, all faults in one answer.

use fountain_actors::domain::ErrorCode;
use fountain_actors::domain::agent::{AgentConfig, Runtime};
use fountain_actors::domain::machine::MachineMode;
use fountain_actors::domain::policy::PermissionPolicy;
use serde_json::{Map, Value};

use crate::api::body::{Body, Given, id_of, ids_of, text_of, word_of};
use crate::api::error::ApiError;
use crate::api::state::CatalogFacts;

const LONGEST_NAME: usize = 200;

/// Reads a new agent.
pub fn create(mut body: Body, facts: &CatalogFacts) -> Result<AgentConfig, ApiError> {
    for field in ["name", "runtime"] {
        if !body.has(field) {
            body.fault(field, "is required");
        }
    }
    let blank = AgentConfig {
        name: String::new(),
        description: String::new(),
        system: String::new(),
        model: None,
        runtime: Runtime::Acp,
        runtime_command: None,
        sandbox_provider: None,
        sandbox_mode: MachineMode::Ephemeral,
        environment_id: None,
        skills: Vec::new(),
        mcp_servers: Map::new(),
        metadata: Map::new(),
        allowed_vault_ids: None,
        allowed_environment_ids: None,
        allowed_inference_credential_ids: None,
        inference_credential_id: None,
        permission_policy: Map::new(),
    };
    merge(body, blank, facts)
}

/// Reads a change of an agent.
pub fn update(body: Body, current: AgentConfig, facts: &CatalogFacts) -> Result<AgentConfig, ApiError> {
    merge(body, current, facts)
}

fn merge(mut body: Body, mut config: AgentConfig, facts: &CatalogFacts) -> Result<AgentConfig, ApiError> {
    no_session_config(&mut body)?;
    if let Some(name) = body.text("name") {
        check_name(&mut body, &name);
        config.name = name;
    }
    replace(&mut config.description, body.text("description"));
    replace(&mut config.system, body.text("system"));
    replace(&mut config.runtime, body.word("runtime"));
    clearable(&mut config.model, body.given("model", text_of));
    clearable(&mut config.runtime_command, body.given("runtime_command", text_of));
    // Null and blank are the same wish: no command.
    config.runtime_command = config.runtime_command.filter(|command| !command.trim().is_empty());
    merge_provider(&mut body, &mut config, facts);
    replace(&mut config.sandbox_mode, body.word("sandbox_mode"));
    clearable(
        &mut config.environment_id,
        body.given("environment_id", |value| id_of(&value)),
    );
    merge_access(&mut body, &mut config);
    merge_tools(&mut body, &mut config);
    replace(&mut config.metadata, body.map("metadata"));
    if !body.has_fault("runtime") {
        check_runtime(&mut body, &config);
    }
    body.finish()?;
    Ok(config)
}

fn replace<T>(field: &mut T, given: Option<T>) {
    if let Some(value) = given {
        *field = value;
    }
}

fn clearable<T>(field: &mut Option<T>, given: Given<T>) {
    match given {
        Given::Absent => {}
        Given::Null => *field = None,
        Given::Value(value) => *field = Some(value),
    }
}

/// Session options are not built yet, and what is not built is not accepted (RUL-18).
pub fn no_session_config(body: &mut Body) -> Result<(), ApiError> {
    match body.take("session_config") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Object(map)) if map.is_empty() => Ok(()),
        Some(_) => Err(ErrorCode::SessionConfigInvalid.into()),
    }
}

/// The rule of every name (http-api 4.1 to 4.3).
pub fn check_name(body: &mut Body, name: &str) {
    if name.trim().is_empty() || name.chars().count() > LONGEST_NAME {
        body.fault("name", "must have 1 to 200 characters");
    }
}

fn merge_provider(body: &mut Body, config: &mut AgentConfig, facts: &CatalogFacts) {
    let before = config.sandbox_provider;
    clearable(
        &mut config.sandbox_provider,
        body.given("sandbox_provider", |value| word_of(&value)),
    );
    let chosen = config.sandbox_provider.filter(|chosen| before != Some(*chosen));
    // Checked only when it changes: an agent of a provider that was switched off stays editable.
    if chosen.is_some_and(|chosen| !facts.providers.contains(&chosen)) {
        body.fault(
            "sandbox_provider",
            "is not enabled on this server; see GET /api/catalog",
        );
    }
}

fn merge_access(body: &mut Body, config: &mut AgentConfig) {
    clearable(
        &mut config.allowed_vault_ids,
        body.given("allowed_vault_ids", |value| ids_of(&value)),
    );
    clearable(
        &mut config.allowed_environment_ids,
        body.given("allowed_environment_ids", |value| ids_of(&value)),
    );
    clearable(
        &mut config.allowed_inference_credential_ids,
        body.given("allowed_inference_credential_ids", |value| ids_of(&value)),
    );
    clearable(
        &mut config.inference_credential_id,
        body.given("inference_credential_id", |value| id_of(&value)),
    );
    match body.take("permission_policy") {
        None => {}
        Some(value) => match PermissionPolicy::parse(&value) {
            Ok(_) => config.permission_policy = value.as_object().cloned().unwrap_or_default(),
            Err(error) => body.fault("permission_policy", error.to_string()),
        },
    }
}

fn merge_tools(body: &mut Body, config: &mut AgentConfig) {
    if let Some(skills) = body.list("skills") {
        for (index, skill) in skills.iter().enumerate() {
            if let Err(message) = check_skill(skill) {
                body.fault(format!("skills/{index}"), message);
            }
        }
        config.skills = skills;
    }
    if let Some(servers) = body.map("mcp_servers") {
        for (name, server) in &servers {
            if !server.is_object() {
                body.fault(format!("mcp_servers/{name}"), "must be an object");
            }
        }
        config.mcp_servers = servers;
    }
}

/// Exactly one of `content` (with a name, without a ref) and `source` (`owner/repo`) (http-api 4.12).
fn check_skill(skill: &Value) -> Result<(), &'static str> {
    let map = skill.as_object().ok_or("must be an object")?;
    let text = |key: &str| match map.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if !text.trim().is_empty() => Ok(Some(text.as_str())),
        Some(_) => Err("name, content, source and ref must be texts that are not blank"),
    };
    let (name, content, source, reference) = (text("name")?, text("content")?, text("source")?, text("ref")?);
    match (content, source) {
        (Some(_), None) if name.is_none() => Err("a skill with content needs a name"),
        (Some(_), None) if reference.is_some() => Err("ref belongs to a source"),
        (Some(_), None) => Ok(()),
        (None, Some(source)) if !is_repository(source) => Err("source must read owner/repo"),
        (None, Some(_)) if reference.is_some_and(|reference| !reference.chars().all(is_ref_character)) => {
            Err("ref may hold letters, digits and . _ / -")
        }
        (None, Some(_)) => Ok(()),
        _ => Err("needs exactly one of content and source"),
    }
}

fn is_repository(source: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && part.chars().all(|c| is_ref_character(c) && c != '/');
    source
        .split_once('/')
        .is_some_and(|(owner, name)| plain(owner) && plain(name))
}

fn is_ref_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '/' | '-')
}

/// What a runtime needs: a command (`acp`) or a model of its provider (the others).
fn check_runtime(body: &mut Body, config: &AgentConfig) {
    match (config.runtime, &config.runtime_command) {
        (Runtime::Acp, None) => body.fault("runtime_command", "is required for the runtime acp"),
        (Runtime::Acp, Some(_)) | (_, None) => {}
        (_, Some(_)) => body.fault("runtime_command", "belongs to the runtime acp alone"),
    }
    let Some(model) = config.model.as_deref() else {
        if config.runtime != Runtime::Acp && !body.has_fault("model") {
            body.fault("model", "is required for this runtime");
        }
        return;
    };
    let Some(provider) = model_provider(model) else {
        body.fault("model", "must read provider/model_id");
        return;
    };
    if !model_providers(config.runtime).is_none_or(|known| known.contains(&provider)) {
        body.fault("model", "is of a provider that this runtime does not use");
    }
}

/// The provider of `provider/model_id`; None when the text does not read like that (http-api 4.1).
fn model_provider(model: &str) -> Option<&str> {
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
    let (provider, id) = model.split_once('/')?;
    let plain = !provider.is_empty() && provider.chars().all(lower);
    (plain && !id.is_empty() && id.chars().all(|c| lower(c) || c == '.')).then_some(provider)
}

/// Whose models a runtime can drive; None: anybody's (http-api 5.4).
pub fn model_providers(runtime: Runtime) -> Option<&'static [&'static str]> {
    match runtime {
        Runtime::Claude => Some(&["anthropic"]),
        Runtime::Codex => Some(&["openai"]),
        Runtime::Gemini => Some(&["google"]),
        Runtime::Opencode => Some(&["anthropic", "openai", "google"]),
        Runtime::Acp => None,
    }
}

#[cfg(test)]
#[path = "fields_tests.rs"]
mod tests;
