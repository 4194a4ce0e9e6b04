//! Choosing a model and options before a prompt: what to send, and what an answer means (runtimes 6.1).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::report::OptionValue;

/// What the agent lets a client choose, from the session's result and every later word about it.
#[derive(Debug, Default, Clone)]
pub(super) struct Offer {
    /// `configOptions`, the last list that was told.
    pub options: Option<Vec<Value>>,
    /// `models`: the older, separate list. Only whether it is there, and the current one.
    pub models: Option<Option<String>>,
}

/// How the model is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModelSetter {
    ConfigOption,
    SetModel,
}

impl ModelSetter {
    pub fn rpc(self) -> &'static str {
        match self {
            Self::ConfigOption => "session/set_config_option",
            Self::SetModel => "session/set_model",
        }
    }

    pub fn params(self, session: &str, model: &str) -> Value {
        match self {
            Self::ConfigOption => json!({"sessionId": session, "configId": "model", "value": model}),
            Self::SetModel => json!({"sessionId": session, "modelId": model}),
        }
    }
}

impl Offer {
    /// Takes what a result says about options and models. Returns true when the option list changed hands.
    pub fn learn(&mut self, result: &Value) -> bool {
        if let Some(models) = result.get("models").filter(|models| models.is_object()) {
            self.models = Some(models.get("currentModelId").and_then(Value::as_str).map(str::to_owned));
        }
        match result.get("configOptions").and_then(Value::as_array) {
            Some(options) => {
                self.options = Some(options.clone());
                true
            }
            None => false,
        }
    }

    fn option(&self, id: &str) -> Option<&Value> {
        self.options
            .iter()
            .flatten()
            .find(|option| option_id(option) == Some(id))
    }

    /// The way to set a model; `None` when the agent offers no selection.
    pub fn setter(&self) -> Option<ModelSetter> {
        match (self.option("model"), &self.models) {
            (Some(_), _) => Some(ModelSetter::ConfigOption),
            (None, Some(_)) => Some(ModelSetter::SetModel),
            (None, None) => None,
        }
    }

    /// The model that the agent says it uses.
    pub fn current_model(&self) -> Option<String> {
        let option = self
            .option("model")
            .and_then(|option| option.get("currentValue"))
            .and_then(Value::as_str);
        option.map(str::to_owned).or_else(|| self.models.clone().flatten())
    }

    /// The next option to set, in the agent's own order, and the parameters for it. Options that already have the
    /// wanted value are put into `done` on the way.
    pub fn next_setting(
        &self,
        wanted: &BTreeMap<String, OptionValue>,
        done: &mut BTreeSet<String>,
        session: &str,
    ) -> Option<(String, Value)> {
        for option in self.options.iter().flatten() {
            let Some(id) = option_id(option) else { continue };
            let Some(value) = wanted.get(id).filter(|_| !done.contains(id)) else {
                continue;
            };
            let sent = sent_value(option, value);
            if option.get("currentValue") == Some(&sent) {
                done.insert(id.to_owned());
                continue;
            }
            let params = if sent.is_boolean() {
                json!({"sessionId": session, "configId": id, "type": "boolean", "value": sent})
            } else {
                json!({"sessionId": session, "configId": id, "value": sent})
            };
            return Some((id.to_owned(), params));
        }
        None
    }
}

fn option_id(option: &Value) -> Option<&str> {
    option.get("id").and_then(Value::as_str)
}

/// A switch that the agent spells as a select is set with `on` or `off`.
fn sent_value(option: &Value, value: &OptionValue) -> Value {
    let is_boolean = option.get("type").and_then(Value::as_str) == Some("boolean");
    match value {
        OptionValue::Flag(flag) if is_boolean => (*flag).into(),
        OptionValue::Flag(true) => "on".into(),
        OptionValue::Flag(false) => "off".into(),
        OptionValue::Choice(choice) => choice.as_str().into(),
    }
}

/// The model that an answer to a setter reports.
pub(super) fn reported_model(setter: ModelSetter, result: &Value) -> Option<String> {
    let mut told = Offer::default();
    told.learn(result);
    match setter {
        ModelSetter::ConfigOption => told.option("model")?.get("currentValue")?.as_str().map(str::to_owned),
        ModelSetter::SetModel => {
            let flat = ["currentModelId", "modelId"]
                .into_iter()
                .find_map(|key| result.get(key)?.as_str());
            flat.map(str::to_owned).or_else(|| told.current_model())
        }
    }
}

/// The same model under two names: `opus[1m]` is `claude-opus-5`, `claude-haiku-4-5` is not.
pub(super) fn is_same_model(wanted: &str, reported: &str) -> bool {
    let (wanted, reported) = (bare(wanted), bare(reported));
    !wanted.is_empty() && !reported.is_empty() && (wanted.contains(&reported) || reported.contains(&wanted))
}

fn bare(name: &str) -> String {
    let mut depth = 0_usize;
    let outside = name.chars().filter(|c| match c {
        '[' => {
            depth += 1;
            false
        }
        ']' => {
            depth = depth.saturating_sub(1);
            false
        }
        _ => depth == 0,
    });
    outside
        .filter(char::is_ascii_alphanumeric)
        .map(|c| c.to_ascii_lowercase())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(result: &Value) -> Offer {
        let mut offer = Offer::default();
        offer.learn(result);
        offer
    }

    #[test]
    fn the_setter_follows_what_the_session_offers() {
        let both = json!({"configOptions": [{"id": "model"}], "models": {"currentModelId": "m"}});
        assert_eq!(offer(&both).setter(), Some(ModelSetter::ConfigOption));
        assert_eq!(offer(&json!({"models": {}})).setter(), Some(ModelSetter::SetModel));
        assert_eq!(offer(&json!({"configOptions": [{"id": "mode"}]})).setter(), None);
        assert_eq!(offer(&both).current_model().as_deref(), Some("m"));
    }

    #[test]
    fn names_of_one_model_meet() {
        assert!(is_same_model("claude-opus-5", "opus[1m]"));
        assert!(is_same_model(
            "anthropic/claude-sonnet-4-6",
            "anthropic/claude-sonnet-4-6"
        ));
        assert!(is_same_model("gpt-5.5", "gpt-5.5[medium]"));
        assert!(!is_same_model("claude-opus-5", "claude-haiku-4-5"));
        assert!(!is_same_model("claude-opus-5", "[1m]"));
    }

    #[test]
    fn options_are_set_in_the_agents_order_and_only_when_they_differ() {
        let offer = offer(&json!({"configOptions": [
            {"id": "mode", "type": "select", "currentValue": "default"},
            {"id": "fast", "type": "select", "currentValue": "off"},
            {"id": "search", "type": "boolean", "currentValue": false},
            {"id": "effort", "type": "select", "currentValue": "low"},
        ]}));
        let wanted = BTreeMap::from([
            ("effort".to_owned(), OptionValue::Choice("low".into())),
            ("fast".to_owned(), OptionValue::Flag(true)),
            ("search".to_owned(), OptionValue::Flag(true)),
            ("unknown".to_owned(), OptionValue::Flag(true)),
        ]);
        let mut done = BTreeSet::new();
        let (id, params) = offer.next_setting(&wanted, &mut done, "s").unwrap();
        assert_eq!(
            (id.as_str(), &params),
            ("fast", &json!({"sessionId": "s", "configId": "fast", "value": "on"}))
        );
        done.insert(id);
        let (id, params) = offer.next_setting(&wanted, &mut done, "s").unwrap();
        let boolean = json!({"sessionId": "s", "configId": "search", "type": "boolean", "value": true});
        assert_eq!((id.as_str(), &params), ("search", &boolean));
        done.insert(id);
        assert_eq!(offer.next_setting(&wanted, &mut done, "s"), None);
        assert!(done.contains("effort") && !done.contains("unknown"));
    }
}
