//! What a model name means (runtimes 6.1): stored as `provider/model_id`, sent as the runtime spells it.

use crate::domain::agent::Runtime;

/// The providers of models.
pub const PROVIDERS: &[&str] = &["anthropic", "openai", "google"];

/// A stored model, split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model<'a> {
    /// One of [`PROVIDERS`].
    pub provider: &'a str,
    /// The provider's own name of it; never checked.
    pub id: &'a str,
}

impl<'a> Model<'a> {
    /// Splits at the first `/`. `None` is no model: a half is empty, or the provider is unknown.
    #[must_use]
    pub fn parse(stored: &'a str) -> Option<Self> {
        let (provider, id) = stored.split_once('/')?;
        (PROVIDERS.contains(&provider) && !id.is_empty()).then_some(Self { provider, id })
    }
}

/// Whether a runtime can drive a stored model. `acp` takes none from us and therefore any.
#[must_use]
pub fn accepts(runtime: Runtime, stored: &str) -> bool {
    let Some(model) = Model::parse(stored) else {
        return false;
    };
    own_provider(runtime).is_none_or(|own| own == model.provider)
}

/// The only provider whose models a runtime drives.
fn own_provider(runtime: Runtime) -> Option<&'static str> {
    match runtime {
        Runtime::Claude => Some("anthropic"),
        Runtime::Codex => Some("openai"),
        Runtime::Gemini => Some("google"),
        Runtime::Opencode | Runtime::Acp => None,
    }
}

/// What is sent over ACP: the bare id, the whole string for opencode, nothing for `acp`.
#[must_use]
pub fn sent(runtime: Runtime, stored: Option<&str>) -> Option<String> {
    let stored = stored?;
    let model = Model::parse(stored)?;
    match runtime {
        Runtime::Claude | Runtime::Codex | Runtime::Gemini => Some(model.id.to_owned()),
        Runtime::Opencode => Some(stored.to_owned()),
        Runtime::Acp => None,
    }
}

/// Models that the catalog suggests for a runtime (2026-09).
#[must_use]
pub fn suggestions(runtime: Runtime) -> Vec<String> {
    if runtime == Runtime::Acp {
        return Vec::new();
    }
    let own = own_provider(runtime);
    let matching = SUGGESTED
        .iter()
        .filter(|(provider, _)| own.is_none_or(|own| own == *provider));
    matching.map(|(provider, id)| format!("{provider}/{id}")).collect()
}

const SUGGESTED: &[(&str, &str)] = &[
    ("anthropic", "claude-fable-5-1"),
    ("anthropic", "claude-opus-5-5"),
    ("anthropic", "claude-opus-5"),
    ("anthropic", "claude-sonnet-5"),
    ("anthropic", "claude-haiku-4-5"),
    ("openai", "gpt-6-astra"),
    ("openai", "gpt-5.5"),
    ("google", "gemini-3.1-pro-preview"),
    ("google", "gemini-3.7-flash"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_split_at_the_first_slash() {
        assert_eq!(
            Model::parse("openai/a/b"),
            Some(Model {
                provider: "openai",
                id: "a/b"
            })
        );
        for no in ["", "openai", "openai/", "/x", "other/x"] {
            assert_eq!(Model::parse(no), None, "{no}");
        }
    }

    #[test]
    fn runtimes_take_their_own_provider_and_spell_models_their_way() {
        assert!(accepts(Runtime::Claude, "anthropic/any-id"));
        assert!(!accepts(Runtime::Claude, "openai/gpt-5.5"));
        assert!(accepts(Runtime::Opencode, "google/x") && accepts(Runtime::Acp, "openai/x"));
        assert_eq!(sent(Runtime::Codex, Some("openai/gpt-5.5")).as_deref(), Some("gpt-5.5"));
        assert_eq!(
            sent(Runtime::Opencode, Some("openai/gpt-5.5")).as_deref(),
            Some("openai/gpt-5.5")
        );
        assert_eq!(sent(Runtime::Acp, Some("openai/gpt-5.5")), None);
        assert_eq!(sent(Runtime::Claude, None), None);
    }

    #[test]
    fn every_suggestion_is_a_model_that_its_runtime_accepts() {
        for runtime in Runtime::ALL {
            assert!(
                suggestions(*runtime).iter().all(|model| accepts(*runtime, model)),
                "{runtime}"
            );
        }
        assert!(suggestions(Runtime::Acp).is_empty());
    }
}
