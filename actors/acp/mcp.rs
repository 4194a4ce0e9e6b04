//! An agent's MCP servers as the array that session calls carry (runtimes 8.1).
//!
//! Stored is a map of name to server. On the wire it is an array sorted by name, environment and headers as pairs: an
//! adapter accepts a map in their place and reads it as nothing. Values may hold secrets; nothing here logs.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// Why the servers cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum McpError {
    /// The field is no map.
    #[error("mcp_servers must be a map of name to server")]
    NotAMap,
    /// A server is neither a command nor an http or sse address.
    #[error("mcp server {name:?} needs a command, or a type http or sse with a url")]
    Unreadable { name: String },
}

/// Builds the array. `null` is no server.
///
/// # Errors
/// [`McpError`] with the name of the server.
pub fn mcp_servers(stored: &Value) -> Result<Value, McpError> {
    let map = match stored {
        Value::Null => return Ok(json!([])),
        Value::Object(map) => map,
        _ => return Err(McpError::NotAMap),
    };
    let sorted: BTreeMap<&String, &Value> = map.iter().collect();
    let entry = |(name, server): (&String, &Value)| {
        entry(name, server).ok_or_else(|| McpError::Unreadable { name: name.clone() })
    };
    sorted
        .into_iter()
        .map(entry)
        .collect::<Result<Vec<_>, _>>()
        .map(Value::Array)
}

fn entry(name: &str, server: &Value) -> Option<Value> {
    let kind = server.get("type").and_then(Value::as_str);
    let mut entry = Map::from_iter([("name".to_owned(), Value::from(name))]);
    if let Some(kind @ ("http" | "sse")) = kind {
        entry.insert("type".into(), kind.into());
        entry.insert("url".into(), server.get("url").filter(|url| url.is_string())?.clone());
        entry.insert("headers".into(), pairs(server.get("headers")));
        return Some(Value::Object(entry));
    }
    // `stdio` may be said or not; on the wire it is said by saying nothing.
    if !matches!(kind, None | Some("stdio")) {
        return None;
    }
    entry.insert(
        "command".into(),
        server.get("command").filter(|command| command.is_string())?.clone(),
    );
    let args = server.get("args").filter(|args| args.is_array()).cloned();
    entry.insert("args".into(), args.unwrap_or_else(|| json!([])));
    entry.insert("env".into(), pairs(server.get("env")));
    Some(Value::Object(entry))
}

/// A map as sorted pairs; pairs that are pairs already stay as they are. Sent even when empty: agents that read with
/// the protocol's own types demand the field.
fn pairs(from: Option<&Value>) -> Value {
    match from {
        Some(Value::Object(map)) => {
            let sorted: BTreeMap<&String, &Value> = map.iter().collect();
            let pair = |(name, value): (&String, &Value)| {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                json!({"name": name, "value": value})
            };
            sorted.into_iter().map(pair).collect()
        }
        Some(list @ Value::Array(_)) => list.clone(),
        _ => json!([]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_sorted_by_name_and_maps_become_pairs() {
        let stored = json!({
            "web": {"type": "http", "url": "https://mcp.test", "headers": {"B": "2", "A": "1"}},
            "files": {"command": "mcp-files", "args": ["--ro"], "env": {"Z": "z", "A": 1}},
            "bare": {"type": "stdio", "command": "x"},
        });
        let expected = json!([
            {"name": "bare", "command": "x", "args": [], "env": []},
            {"name": "files", "command": "mcp-files", "args": ["--ro"],
             "env": [{"name": "A", "value": "1"}, {"name": "Z", "value": "z"}]},
            {"name": "web", "type": "http", "url": "https://mcp.test",
             "headers": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
        ]);
        assert_eq!(mcp_servers(&stored), Ok(expected));
        assert_eq!(mcp_servers(&Value::Null), Ok(json!([])));
    }

    #[test]
    fn an_unreadable_server_is_named() {
        let refused = |server| mcp_servers(&json!({"odd": server})).unwrap_err().to_string();
        for server in [
            json!({}),
            json!({"type": "http"}),
            json!({"type": "ws", "url": "x"}),
            json!("x"),
        ] {
            assert!(refused(server).contains("odd"));
        }
        assert_eq!(mcp_servers(&json!([])), Err(McpError::NotAMap));
    }
}
