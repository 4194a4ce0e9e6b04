//! `GET /api/catalog`: what this deployment offers (http-api 5.10, RUL-51). Only what is enabled is listed.

use actix_web::web::Data;
use fountain_actors::domain::agent::Runtime;
use fountain_actors::domain::conversation::SandboxApiAccess;
use serde_json::{Map, Value, json};

use super::agents::fields::model_providers;
use super::environments::fields::PACKAGE_MANAGERS;
use super::state::AppState;
use super::wire::{self, Reply};

/// Ids that forms offer. Any other id of the provider is accepted as well.
fn models(runtime: Runtime) -> &'static [&'static str] {
    match runtime {
        Runtime::Claude => &["anthropic/claude-opus-4-5", "anthropic/claude-sonnet-4-5"],
        Runtime::Codex => &["openai/gpt-5-codex", "openai/gpt-5"],
        Runtime::Gemini => &["google/gemini-2.5-pro", "google/gemini-2.5-flash"],
        Runtime::Opencode => &["anthropic/claude-sonnet-4-5", "openai/gpt-5", "google/gemini-2.5-pro"],
        Runtime::Acp => &[],
    }
}

pub async fn show(state: Data<AppState>) -> Reply {
    let facts = &state.catalog;
    let offered: Map<String, Value> = facts
        .runtimes
        .iter()
        .map(|runtime| (runtime.to_string(), json!(models(*runtime))))
        .collect();
    let mut providers: Vec<&str> = facts
        .runtimes
        .iter()
        .filter_map(|runtime| model_providers(*runtime))
        .flatten()
        .copied()
        .collect();
    providers.sort_unstable();
    providers.dedup();
    wire::ok(json!({
        "runtimes": facts.runtimes,
        "models": offered,
        "model_providers": providers,
        "sandbox_providers": {"enabled": facts.providers, "default": state.settings.default_provider},
        "sandbox_api_access": SandboxApiAccess::ALL,
        "package_managers": PACKAGE_MANAGERS,
        "apps": {"conversations": null, "team": null},
        "mcp_servers": [],
        "first_request": first_request(&state.settings.public_url),
    }))
}

/// What a newcomer may paste. The placeholders stand in capitals, so that a forgotten one is seen.
fn first_request(base: &str) -> Value {
    let prompt = "Say hello and tell me which directory you are in.";
    let base = base.trim_end_matches('/');
    let curl = format!(
        "curl -sS {base}/api/conversations -H \"Authorization: Bearer FOUNTAIN_API_KEY\" -H \"Content-Type: \
         application/json\" -d '{{\"agent_id\": \"AGENT_ID\", \"prompt\": \"{prompt}\"}}'"
    );
    let typescript = format!(
        "await fetch(\"{base}/api/conversations\", {{ method: \"POST\", headers: {{ Authorization: \"Bearer \
         FOUNTAIN_API_KEY\", \"Content-Type\": \"application/json\" }}, body: JSON.stringify({{ agent_id: \
         \"AGENT_ID\", prompt: \"{prompt}\" }}) }});"
    );
    json!({
        "curl": curl,
        "typescript": typescript,
        "prompt": prompt,
        "placeholders": ["FOUNTAIN_API_KEY", "AGENT_ID"],
    })
}
